"""``python -m duckctl`` is the same as ``duckctl``."""

from duckctl.cli import main

main()
