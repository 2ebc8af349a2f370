"""The base of expected failures on the host side: what was wrong, and what to do next."""

from __future__ import annotations


class HostError(Exception):
    """An expected failure. ``hint`` says what to do next; it may be empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class FileFormatError(HostError):
    """A file given to the host runtime is missing, malformed or says something impossible."""


class WeightsError(HostError):
    """A tensor or a file of the checkpoint is missing, damaged or not what the model expects."""


class NumericsError(HostError):
    """NaN or infinity where finite numbers were due."""
