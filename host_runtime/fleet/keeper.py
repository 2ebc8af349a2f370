"""What the host knows of one duck, and the pure rules by which the monitor judges it."""

from __future__ import annotations

from concurrent.futures import Future

from host_runtime import wire
from host_runtime.fleet.cache import SliceConfig
from host_runtime.fleet.config import DuckConfig
from host_runtime.fleet.kernel_file import KernelFile
from host_runtime.fleet.loader import DuckLoader, LoadReport, PieceBudget
from host_runtime.fleet.status import DuckReport, DuckState
from host_runtime.fleet.versions import DuckFacts
from host_runtime.transport import DuckLinkStatus, Transport, TransportCode, TransportError

RETRY_S_FIRST = 0.25
RETRY_S_MAX = 2.0
# A heartbeat's word on the session counts when the session is older than SETTLE_S and the duck was
# heard within FRESH_S: then it was sent after OPEN (heartbeats come every 0.2 s).
SETTLE_S = 2.0
FRESH_S = 1.0

NEEDS_REVIVAL = frozenset(
    {
        DuckState.UNREACHABLE,
        DuckState.WRONG_VERSION,
        DuckState.WRONG_IDENTITY,
        DuckState.IDLE,
        DuckState.LOST,
        DuckState.FAULTED,
    }
)


class Keeper:
    """One duck: its part of the model, its state, and when to try again. The manager locks."""

    def __init__(
        self,
        transport: Transport,
        duck: DuckConfig,
        part: SliceConfig,
        kernel: KernelFile,
        budget: PieceBudget,
    ) -> None:
        self.duck = duck
        self.part = part
        self.state = DuckState.UNREACHABLE
        self.detail = "not asked yet"
        self.facts: DuckFacts | None = None
        self.job: Future[None] | None = None
        self.attempts = 0
        self.retry_at = 0.0
        self.serving_since = 0.0
        self.loads = 0
        self._transport = transport
        self._loader = DuckLoader(transport, duck.slot, duck, part, kernel, budget)

    @property
    def bytes_done(self) -> int:
        return self._loader.bytes_done

    def load(self) -> LoadReport:
        """Load what the duck lacks, by its last INFO."""
        if self.facts is None:
            raise RuntimeError(f"{self.duck.name} was not joined before loading")
        report = self._loader.load(self.facts)
        self.loads += 1
        return report

    def cancel(self) -> None:
        self._loader.cancel()

    def put_off(self, now: float) -> None:
        """The pause before the next attempt doubles up to RETRY_S_MAX."""
        pause = min(RETRY_S_FIRST * 2.0 ** min(self.attempts, 10), RETRY_S_MAX)
        self.attempts += 1
        self.retry_at = now + pause

    def wants_revival(self, now: float) -> bool:
        at_work = self.job is not None and not self.job.done()
        return self.state in NEEDS_REVIVAL and not at_work and now >= self.retry_at

    def describe(self) -> str:
        """``d02 is lost (no packet for 3.0 s)``"""
        detail = self.detail
        if detail.startswith(f"{self.duck.name} "):
            return detail  # the transport's own words
        if self.state is DuckState.LOADING:
            detail = f"{self.bytes_done / max(self.part.region_bytes, 1):.0%} of its weights"
        return f"{self.duck.name} is {self.state}" + (f" ({detail})" if detail else "")

    def report(self) -> DuckReport:
        link = self._transport.duck_status(self.duck.slot)
        counters = {
            "calls": float(link.calls),
            "kernel_ns": float(link.kernel_ns),
            "queue_ns": float(link.queue_ns),
            "call_ns": float(link.call_ns),
            "round_trip_ns": float(link.round_trip_ns),
            "sent_packets": float(link.packets_sent),
            "received_packets": float(link.packets_received),
            "sent_bytes": float(link.bytes_sent),
            "received_bytes": float(link.bytes_received),
            "resent": float(link.fragments_resent),
            "nacks_sent": float(link.nacks_sent),
            "nacks_received": float(link.nacks_received),
            "queries_sent": float(link.queries_sent),
            "dropped_mac": float(link.dropped_mac),
            "dropped_replay": float(link.dropped_replay),
            "weight_bytes_sent": float(link.bulk_bytes),
            "weight_bytes_done": float(self.bytes_done),
            "weight_bytes": float(self.part.region_bytes),
            "loads": float(self.loads),
        }
        return DuckReport(self.duck.name, self.duck.endpoint, self.state, self.detail, counters)


def watch(
    state: DuckState, link: DuckLinkStatus, serving_s: float, silence_s: float
) -> tuple[DuckState, str] | None:
    """What a duck's heartbeats say against its state; None when they fit.

    Only ducks that should be there are judged: a duck that is being joined or loaded is judged by
    the job that does it. ``serving_s`` is the age of the session, 0 while one is being opened.
    """
    if state not in (DuckState.READY, DuckState.SERVING):
        return None
    silent_s = link.heard_age_ns / 1e9
    if link.boot_changed:
        return DuckState.LOST, "it restarted"
    if silent_s > silence_s or not link.attached:
        return DuckState.LOST, f"no packet for {silent_s:.1f} s"
    if state is DuckState.SERVING and serving_s > SETTLE_S and silent_s < FRESH_S:
        if link.state == wire.State.FAULTED:
            return DuckState.FAULTED, "its compute session ended"
        if link.state != wire.State.SERVING:
            return DuckState.LOST, "its compute session was closed by another host"
    return None


def failure_state(error: TransportError) -> DuckState | None:
    """The state of the ducks that a failed call or OPEN names; None = they are well.

    A kernel that refuses one call (BAD_REQUEST) goes on serving. A session whose call numbers are
    used up leaves ducks that only have to be opened again.
    """
    if error.code is TransportCode.USED_UP:
        return DuckState.READY
    if error.code is TransportCode.UNREACHABLE:
        return DuckState.LOST
    if error.code is TransportCode.FAULT and error.status != wire.Status.ERR_BAD_REQUEST:
        return DuckState.FAULTED
    if error.code in (TransportCode.DEADLINE, TransportCode.REFUSED):
        return DuckState.FAULTED
    return None
