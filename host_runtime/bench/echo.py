"""ctypes wrapper of libduckecho.so: emulated ducks behind the lanes' mailboxes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from host_runtime.errors import HostError

if TYPE_CHECKING:
    from host_runtime.cuda.lane import Lane


class EchoEvent(ctypes.Structure):
    """One answered call, times in ns since the epoch."""

    _fields_ = (
        ("seen_ns", ctypes.c_int64),
        ("start_ns", ctypes.c_int64),
        ("end_ns", ctypes.c_int64),
        ("answered_ns", ctypes.c_int64),
        ("lane", ctypes.c_int32),
        ("layer", ctypes.c_int32),
    )


class EchoDucks:
    """A polling thread that answers each call after duck and wire time."""

    def __init__(self, library: Path, lanes: Sequence[Lane]) -> None:
        try:
            self._library = ctypes.CDLL(str(library))
        except OSError as error:
            raise HostError(f"cannot load {library}: {error}", "build it: make native") from error
        self._library.echo_start.restype = ctypes.c_void_p
        self._library.echo_events.restype = ctypes.c_int64
        self._lanes = list(lanes)  # keeps the flags' memory alive
        pointers = (ctypes.c_void_p * len(self._lanes))(
            *(lane.mailbox.flags.data_ptr() for lane in self._lanes)
        )
        handle = self._library.echo_start(len(self._lanes), pointers)
        if not handle:
            raise HostError("the thread of the emulated ducks does not start")
        self._handle = ctypes.c_void_p(handle)

    def set(self, duck_ns: int, wire_ns: int) -> None:
        """Time of each call from now on."""
        self._library.echo_set(self._handle, ctypes.c_int64(duck_ns), ctypes.c_int64(wire_ns))

    def events(self, most: int = 4096) -> list[EchoEvent]:
        """The calls since `set`, oldest first."""
        out = (EchoEvent * most)()
        count = self._library.echo_events(self._handle, out, ctypes.c_int64(most))
        return list(out[: min(count, most)])

    def close(self) -> None:
        """End the thread."""
        self._library.echo_stop(self._handle)
