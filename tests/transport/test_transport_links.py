"""A domain whose link goes down is named; it serves again when it is back, without a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from segment_shelf import check_call, running_segments
from segments import why_not
from transport_kit import OPEN_MS, load_all, open_request, wait_until

from host_runtime.transport import (
    DuckUnreachableError,
    Transport,
    TransportError,
    TransportOptions,
)

CALLS = 10
FRAGMENTS = 9  # of 12,016 bytes at MTU 1500
QUICK = TransportOptions(silence_ms=700, ping_ms=100)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["card", "port"])
def test_a_domain_goes_and_comes_back(tmp_path: Path, echo_kernel: bytes, what: str) -> None:
    """The host's card down, then the switch's port: one domain fails by name, the other answers."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with running_segments(tmp_path, echo_kernel, 1500) as (segments, shelf):
        with segments.in_host():
            transport = shelf.transport(QUICK)
        cut = segments.set_host_link if what == "card" else segments.set_port
        with transport:
            load_all(transport, shelf)
            transport.session_open(range(4), open_request(), OPEN_MS)
            check_call(transport, [0, 1, 2, 3])
            cut(1, "down")
            with pytest.raises(DuckUnreachableError, match="heard in domain domain2") as caught:
                check_call(transport, [0, 1, 2, 3])
            assert set(caught.value.ducks) <= {2, 3}
            with pytest.raises(TransportError, match=r"has ended: d0[34]"):
                check_call(transport, [0, 1, 2, 3])
            transport.session_open([0, 1], open_request(), OPEN_MS)
            check_call(transport, [0, 1])
            cut(1, "up")
            wait_until(lambda: all(is_back(transport, duck) for duck in (2, 3)), 10, "both ducks")
            transport.session_open(range(4), open_request(), OPEN_MS)
            before = segments.sent_units(1)
            for _ in range(CALLS):
                check_call(transport, [0, 1, 2, 3])
            # Errors of a link that is down do not end segmentation: two or three units per call,
            # and some repairs on a busy machine.
            assert segments.sent_units(1) - before < CALLS * FRAGMENTS


def is_back(transport: Transport, duck: int) -> bool:
    """A duck answers a new HELLO; its weights are still there."""
    try:
        transport.hello(duck, 300)
    except TransportError:
        return False
    return True
