"""Mailboxes of captured GPU steps, served by native threads with the ducks of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from host_runtime.errors import HostError
from host_runtime.experts.base import ExpertsUnavailableError, MailboxMemory
from host_runtime.experts.call_trace import CallRecorder, ticket_of
from host_runtime.transport import Lane, LaneOutcome, LaneShape, Transport, TransportError

Explain = Callable[[TransportError, int], ExpertsUnavailableError]


class RemoteLanes:
    """The threads, and their errors in the words of RemoteExperts. See base.LaneCalls."""

    def __init__(
        self,
        transport: Transport,
        mailboxes: Sequence[MailboxMemory],
        shape: LaneShape,
        refuse_while_away: Callable[[], None],
        explain: Explain,
        recorder: Callable[[], CallRecorder | None],
    ) -> None:
        lanes = [Lane(box.flags, box.ids, box.weights, box.hidden, box.result) for box in mailboxes]
        self.native = transport.open_lanes(lanes, shape)
        self._count = len(lanes)
        self._refuse_while_away, self._explain = refuse_while_away, explain
        self._recorder = recorder

    def begin(self) -> None:
        """A step begins. Raises ExpertsUnavailableError."""
        self._refuse_while_away()
        try:
            self.native.begin()
        except TransportError as error:
            raise ExpertsUnavailableError(error.message, hint=error.hint) from error

    def end(self) -> list[HostError | None]:
        """The step is over; of each lane what went wrong first."""
        outcomes = self.native.end()
        recorder = self._recorder()
        if recorder is not None:
            for lane in range(self._count):
                self._record(recorder, lane)
        return [self._error(outcome) for outcome in outcomes]

    def close(self) -> None:
        """End the threads."""
        self.native.close()

    def _error(self, outcome: LaneOutcome) -> HostError | None:
        if outcome.error is None:
            return None
        return self._explain(outcome.error, outcome.failed_layer)

    def _record(self, recorder: CallRecorder, lane: int) -> None:
        for call in self.native.calls(lane):
            if call.call:  # 0: it failed
                ticket = ticket_of(call.session, call.call)
                recorder.submitted(ticket, call.layer, 1)
                recorder.waited(ticket, call.sent_ns / 1e9, call.answered_ns / 1e9)
