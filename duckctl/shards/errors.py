"""Refusals of the shard commands: what was wrong, where, what was expected, what to do next."""

from __future__ import annotations

from duckctl.errors import DuckError, ExitCode, UsageError


class CheckpointError(DuckError):
    """The model directory is damaged, incomplete or of a kind that is not supported."""


class PlanError(UsageError):
    """The experts cannot be cut as asked, or do not fit."""


class CacheError(DuckError):
    """A weight cache is damaged or does not belong to what was asked for."""


class CacheBusyError(DuckError):
    """Another process writes to the same cache."""


class DiskFullError(DuckError):
    """The cache does not fit into the free space."""


class ConversionInterruptedError(DuckError):
    """The user stopped the conversion; finished pieces are kept."""

    exit_code = ExitCode.INTERRUPTED
