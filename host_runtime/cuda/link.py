"""The CPU's side of the mailboxes: who answers the expert calls of captured steps.

    link = CallLink(lanes)
    with link.serving(experts):     # while captured steps run
        ...
    link.close()

Experts that serve mailboxes themselves (base.LaneExperts: those on ducks) do it with native
threads. For all others a Python thread per lane polls the flags and hands each call to `experts`.
A failed call is answered too, so that the card never waits for ever; the error is raised by
`serving` when the step is over. Other lanes go on after one has failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from host_runtime.cuda.mailbox import Mailbox, memory_of
from host_runtime.errors import HostError
from host_runtime.experts.base import Experts, LaneCalls, LaneExperts
from host_runtime.ops.mailbox_words import ANSWERED, LAYER, POSTED

_IDLE_WAIT_S = 0.05  # how soon a thread without work sees that it shall end


class HasMailbox(Protocol):
    """A lane: cuda/lane.py, or mailbox.HostLane."""

    @property
    def mailbox(self) -> Mailbox: ...


class CallLink:
    """Serves mailboxes while a step runs; idle otherwise. Used by one thread."""

    def __init__(self, lanes: Sequence[HasMailbox]) -> None:
        self._mailboxes = [lane.mailbox for lane in lanes]
        self._native: tuple[LaneExperts, LaneCalls] | None = None
        self._python: PythonLanes | None = None

    @contextmanager
    def serving(self, experts: Experts) -> Iterator[None]:
        """Answer calls with `experts` inside the block; raises the first error behind it."""
        lanes = self._lanes_for(experts)
        lanes.begin()
        try:
            yield
        finally:
            errors = [error for error in lanes.end() if error is not None]
        try:
            if errors:
                raise errors[0]
        finally:
            # An error knows this frame: if the frame knew the error, both, and all that the callers
            # hold, would stay in memory until the cyclic garbage collection.
            del errors

    def close(self) -> None:
        """End the threads."""
        if self._python is not None:
            self._python.close()
        self._drop_native()

    def _lanes_for(self, experts: Experts) -> LaneCalls:
        if isinstance(experts, LaneExperts):
            if self._native is None or self._native[0] is not experts:
                self._drop_native()
                memory = [memory_of(mailbox) for mailbox in self._mailboxes]
                self._native = experts, experts.open_lanes(memory)
            return self._native[1]
        if self._python is None:
            self._python = PythonLanes(self._mailboxes)
        self._python.experts = experts
        return self._python

    def _drop_native(self) -> None:
        if self._native is not None:
            self._native[1].close()
        self._native = None


class PythonLanes:
    """A Python thread per mailbox, for any experts. See base.LaneCalls."""

    def __init__(self, mailboxes: Sequence[Mailbox]) -> None:
        self.experts: Experts | None = None
        self._mailboxes = list(mailboxes)
        self._errors: list[Exception | None] = [None] * len(self._mailboxes)
        self._running = self._closed = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._serve, args=(lane,), name=f"lane-{lane}", daemon=True)
            for lane in range(len(self._mailboxes))
        ]
        for thread in self._threads:
            thread.start()

    def begin(self) -> None:
        """A step begins: calls go to `experts`."""
        with self._changed:
            self._errors = [None] * len(self._mailboxes)
            self._running = True
            self._changed.notify_all()

    def end(self) -> list[HostError | None]:
        """The step is over. Raises what is no HostError: a defect."""
        with self._changed:
            self._running = False
            errors, self._errors = self._errors, [None] * len(self._mailboxes)
        found: list[HostError | None] = []
        try:
            for error in errors:
                if error is not None and not isinstance(error, HostError):
                    raise error
                found.append(error)
            return found
        finally:
            error = None  # as in CallLink.serving
            del errors, found

    def close(self) -> None:
        """End the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self, lane: int) -> None:
        flags = self._mailboxes[lane].flags.numpy()
        answered = int(flags[ANSWERED])
        while True:
            if not self._running:
                with self._changed:
                    if self._closed:
                        return
                    if not self._running:
                        self._changed.wait(_IDLE_WAIT_S)
                continue
            number = int(flags[POSTED])
            if number != answered:
                self._answer(lane, int(flags[LAYER]))
                answered = number
                flags[ANSWERED] = number
            else:
                time.sleep(0)  # lets the other threads of the interpreter run

    def _answer(self, lane: int, layer: int) -> None:
        box, experts = self._mailboxes[lane], self.experts
        assert experts is not None
        if self._errors[lane] is not None:
            box.result.zero_()
            return
        try:
            ids = (box.ids.to(torch.int64) & 0xFFFF)[None]
            pending = experts.submit(
                layer, box.hidden[None].clone(), ids, box.weights[None].clone()
            )
            box.result.copy_(pending.wait())
        except Exception as error:  # noqa: BLE001 - whatever it is, the card waits for an answer
            box.result.zero_()
            self._errors[lane] = error
