"""Errors of the host transport: what happened, at which duck, what to do next."""

from __future__ import annotations

from enum import IntEnum

from host_runtime.errors import HostError
from host_runtime.transport import native


class TransportCode(IntEnum):
    """enum duckhost_code"""

    OK = 0
    ARGUMENT = 1
    SYSTEM = 2
    UNREACHABLE = 3
    VERSION = 4
    DEADLINE = 5
    REFUSED = 6
    FAULT = 7
    STATE = 8
    CANCELLED = 9
    CLOSED = 10
    USED_UP = 11


class TransportError(HostError):
    """A transport function failed; ``message`` names the duck.

    ``duck`` is its index (-1: none in particular), ``ducks`` all ducks concerned. ``status``,
    ``detail`` and ``value`` are what the duck said (struct duck_done or duck_fault), else 0.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        code: TransportCode,
        duck: int = -1,
        ducks: tuple[int, ...] = (),
        status: int = 0,
        detail: int = 0,
        value: int = 0,
    ) -> None:
        super().__init__(message, hint)
        self.code = code
        self.duck = duck
        self.ducks = ducks
        self.status = status
        self.detail = detail
        self.value = value


class DuckUnreachableError(TransportError):
    """A duck that owes an answer was silent for too long."""


class VersionMismatchError(TransportError):
    """A duck speaks another protocol version."""


class DeadlineError(TransportError):
    """A duck answers, but did not finish in time."""


class DuckRefusedError(TransportError):
    """A duck answered with an error status."""


class DuckFaultError(TransportError):
    """A kernel faulted, or refused a call."""


CLASS_OF_CODE: dict[TransportCode, type[TransportError]] = {
    TransportCode.UNREACHABLE: DuckUnreachableError,
    TransportCode.VERSION: VersionMismatchError,
    TransportCode.DEADLINE: DeadlineError,
    TransportCode.REFUSED: DuckRefusedError,
    TransportCode.FAULT: DuckFaultError,
}


def native_error(code: int, error: native.Error) -> TransportError | None:
    """What a native function told, None for OK."""
    if code == TransportCode.OK:
        return None
    kind = TransportCode(code)
    return CLASS_OF_CODE.get(kind, TransportError)(
        error.text.decode(errors="replace"),
        error.hint.decode(errors="replace"),
        code=kind,
        duck=error.duck,
        ducks=tuple(i for i in range(native.DUCKS_MAX) if error.ducks >> i & 1),
        status=error.status,
        detail=error.detail,
        value=error.value,
    )
