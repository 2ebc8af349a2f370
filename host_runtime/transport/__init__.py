"""The host's side of the network: one port per domain, sessions, bulk writes and calls."""

from host_runtime.transport.api import (
    DomainEndpoint,
    DuckEndpoint,
    Faults,
    Greeting,
    IdentityCheck,
    Transport,
    TransportOptions,
)
from host_runtime.transport.errors import (
    DeadlineError,
    DuckFaultError,
    DuckRefusedError,
    DuckUnreachableError,
    TransportCode,
    TransportError,
    VersionMismatchError,
)
from host_runtime.transport.lanes import Lane, LaneCall, LaneOutcome, Lanes, LaneShape
from host_runtime.transport.native import (
    DomainStats,
    DuckLinkStatus,
    FaultCounters,
    Progress,
    Timing,
)

__all__ = [
    "DeadlineError",
    "DomainEndpoint",
    "DomainStats",
    "DuckEndpoint",
    "DuckFaultError",
    "DuckLinkStatus",
    "DuckRefusedError",
    "DuckUnreachableError",
    "FaultCounters",
    "Faults",
    "Greeting",
    "IdentityCheck",
    "Lane",
    "LaneCall",
    "LaneOutcome",
    "LaneShape",
    "Lanes",
    "Progress",
    "Timing",
    "Transport",
    "TransportCode",
    "TransportError",
    "TransportOptions",
    "VersionMismatchError",
]
