"""On Ethernet segments (namespaces) one broadcast CALL reaches all ducks of its domain only."""

from __future__ import annotations

from pathlib import Path

import pytest
from segment_shelf import DOMAINS, DUCKS_PER_DOMAIN, check_call, running_segments
from segments import why_not
from transport_kit import (
    OPEN_MS,
    load_all,
    open_request,
    reserve,
)

from host_runtime import wire
from host_runtime.transport import DeadlineError, Faults, Transport, TransportOptions

CALL_BYTES = 12016  # of a message of check_call
FRAGMENT_BYTES_MAX = 8972 + 42
OTHER_BYTES_MAX = 600  # ARP


def resent(transport: Transport, domain: int) -> int:
    """Fragments that ducks of this domain asked for again (on a busy machine some do)."""
    ducks = range(domain * DUCKS_PER_DOMAIN, (domain + 1) * DUCKS_PER_DOMAIN)
    return sum(transport.duck_status(duck).fragments_resent for duck in ducks)


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_broadcast_calls(tmp_path: Path, echo_kernel: bytes, mtu: int) -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    quiet = TransportOptions(silence_ms=60_000, ping_ms=50_000, query_us=500_000)
    with running_segments(tmp_path, echo_kernel, mtu) as (segments, shelf):
        with segments.in_host():
            transport = shelf.transport(quiet)
        with transport:
            load_all(transport, shelf)
            transport.session_open(range(4), open_request(), OPEN_MS)
            repaired = [resent(transport, domain) for domain in range(DOMAINS)]
            before = [segments.sent_bytes(domain) for domain in range(DOMAINS)]
            for _ in range(10):
                check_call(transport, [0, 1, 2, 3])
            for domain in range(DOMAINS):
                repairs = FRAGMENT_BYTES_MAX * (resent(transport, domain) - repaired[domain])
                sent = segments.sent_bytes(domain) - before[domain]
                # Once per domain: one copy per duck would be twice as much. Headers and ARP add
                # a little.
                assert sent >= 10 * CALL_BYTES
                assert sent - repairs <= 10 * CALL_BYTES * 1.2 + OTHER_BYTES_MAX

            transport.session_open([2, 3], open_request(), OPEN_MS)
            before = [segments.sent_bytes(domain) for domain in range(DOMAINS)]
            for _ in range(10):
                check_call(transport, [2, 3])
            assert segments.sent_bytes(0) - before[0] <= OTHER_BYTES_MAX
            assert segments.sent_bytes(1) - before[1] >= 10 * CALL_BYTES

            transport.set_faults(Faults(seed=51, drop=0.05, duplicate=0.05, reorder=0.05))
            transport.session_open(range(4), open_request(), OPEN_MS)
            for _ in range(20):
                check_call(transport, [0, 1, 2, 3])


def test_an_mtu_that_the_network_card_does_not_have(tmp_path: Path, echo_kernel: bytes) -> None:
    """The fleet file says 9000, the card has 1500: small packets pass, the rest is explained."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    options = TransportOptions(silence_ms=600, ping_ms=100)
    with running_segments(tmp_path, echo_kernel, 1500) as (segments, shelf):
        shelf.mtu = 9000
        with segments.in_host():
            transport = shelf.transport(options)
        with transport:
            transport.hello(0, 5000)
            reserve(transport, 0, wire.Region.WEIGHTS, 100_000)
            with pytest.raises(DeadlineError, match=r"d01 .*acknowledged nothing") as caught:
                transport.write(0, wire.Region.WEIGHTS, 0, bytes(100_000))
        assert "MTU of domain domain1 (9000) do not fit this host's network card" in (
            caught.value.hint
        )
