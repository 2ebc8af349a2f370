"""One GPU machine and a shelf of small x86 boxes run a mixture-of-experts model together."""

__version__ = "0.1.0"
