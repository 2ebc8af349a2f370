"""Errors that a person sees: what was wrong, where, what was expected, what to do next.

Exit codes are a type (``ExitCode``); ``cli.py`` is the only place that maps errors to them.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes of duckctl, documented in docs/reference/cli.md."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    PARTIAL = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


class DuckError(Exception):
    """Base of every expected failure. ``hint`` says what to do next."""

    exit_code = ExitCode.FAILURE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class NativePartMissingError(DuckError):
    """A native file is not in the installation."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the native part '{name}' is not in this installation of duckctl",
            "install again with: pip install .   (in the source tree: make setup)",
        )


class UsageError(DuckError):
    """The command line or a file given by the user is wrong."""

    exit_code = ExitCode.USAGE


class UnreachableError(DuckError):
    """At least one duck did not answer."""

    exit_code = ExitCode.UNREACHABLE
