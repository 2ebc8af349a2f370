"""Errors of the host runtime that a person can act on."""

from __future__ import annotations


class HostError(RuntimeError):
    """A failure with a cause that can be named, and what to do next in `hint` ("" = nothing known)."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class FileFormatError(HostError):
    """A file given to the host runtime is missing, malformed or says something impossible."""


class ConfigError(HostError):
    """config.json or generation_config.json is missing, malformed or asks for something unsupported."""


class WeightsError(HostError):
    """A tensor or a file of the checkpoint is missing, damaged or not what the model expects."""


class NumericsError(HostError):
    """NaN or infinity where finite numbers were due."""
