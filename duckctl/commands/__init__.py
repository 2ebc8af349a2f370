"""One file per command; its `app` is a Typer instance that `duckctl.cli` loads when needed."""
