"""The CPU's side of the mailboxes: one thread per lane that hands expert calls to a backend.

    link = CallLink(lanes)
    with link.serving(experts):     # while captured steps run
        ...
    link.close()

A failed call is answered too, so that the card never waits for ever; the error is raised by
`serving` when the step is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from host_runtime.cuda.lane import Lane
from host_runtime.experts.base import Experts
from host_runtime.ops.gpu.mailbox import ANSWERED, LAYER, POSTED

_IDLE_WAIT_S = 0.05  # how soon a thread without work sees that it shall end


class CallLink:
    """Serves the mailboxes of `lanes` while a step runs; idle otherwise."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = list(lanes)
        self._experts: Experts | None = None
        self._errors: list[Exception] = []
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(lane,), name=f"lane-{number}", daemon=True)
            for number, lane in enumerate(self._lanes)
        ]
        for thread in self._threads:
            thread.start()

    @contextmanager
    def serving(self, experts: Experts) -> Iterator[None]:
        """Answer calls with `experts` inside the block; raises the first error behind it."""
        with self._changed:
            self._experts, self._errors = experts, []
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._experts = None
                errors = self._errors
        if errors:
            raise errors[0]

    def close(self) -> None:
        """End the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self, lane: Lane) -> None:
        flags = lane.mailbox.flags.numpy()
        answered = int(flags[ANSWERED])
        while True:
            experts = self._experts
            if experts is None:
                with self._changed:
                    if self._closed:
                        return
                    self._changed.wait(_IDLE_WAIT_S)
                continue
            number = int(flags[POSTED])
            if number != answered:
                self._answer(lane, experts, int(flags[LAYER]))
                answered = number
                flags[ANSWERED] = number
            else:
                time.sleep(0)  # lets the other threads of the interpreter run

    def _answer(self, lane: Lane, experts: Experts, layer: int) -> None:
        box = lane.mailbox
        try:
            if self._errors:
                raise self._errors[0]
            ids = (box.ids.to(torch.int64) & 0xFFFF)[None]
            pending = experts.submit(
                layer, box.hidden[None].clone(), ids, box.weights[None].clone()
            )
            box.result.copy_(pending.wait())
        except Exception as error:  # noqa: BLE001 - whatever it is, the card waits for an answer
            box.result.zero_()
            with self._changed:
                self._errors.append(error)
