"""Routed experts behind one interface: `local` (torch) and `remote` (ducks)."""

from host_runtime.experts.base import (
    DuckStatus,
    Experts,
    ExpertsUnavailableError,
    PendingExperts,
)

__all__ = ["DuckStatus", "Experts", "ExpertsUnavailableError", "PendingExperts"]
