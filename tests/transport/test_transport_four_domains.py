"""Four isolated domains: the same sums over both kinds of port, and nothing crosses over."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from segment_shelf import check_call, running_segments
from segments import AF_PACKET, why_not, why_not_dpdk
from transport_kit import OPEN_MS, load_all, open_request

DOMAINS = 4
PROTOCOL_AT, ADDRESSES_AT = 14 + 9, 14 + 12  # of source and target, in a frame
UDP = 17


@pytest.mark.slow
@pytest.mark.parametrize("per_domain", [1, 2])
@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("port", ["udp", "dpdk"])
def test_four_domains(
    tmp_path: Path, echo_kernel: bytes, port: str, mtu: int, per_domain: int
) -> None:
    """Sums of 4 or 8 ducks are the float32 sums in duck order, bit for bit, whatever the port and
    the MTU; each bridge sees its own network's addresses only, and its share of the calls."""
    reason = why_not_dpdk() if port == "dpdk" else why_not()
    if reason:
        pytest.skip(reason)
    device = AF_PACKET if port == "dpdk" else ""
    ducks = list(range(DOMAINS * per_domain))
    with running_segments(tmp_path, echo_kernel, mtu, DOMAINS, per_domain, device=device) as (
        segments,
        shelf,
    ):
        with segments.in_host():
            transport = shelf.transport()
        with transport:
            load_all(transport, shelf)
            transport.session_open(ducks, open_request(), OPEN_MS)
            with segments.captured() as frames:
                for _ in range(10):
                    check_call(transport, ducks)
    for domain, found in enumerate(frames):
        network = ipaddress.ip_network(f"10.21.{domain + 1}.0/24")
        ends = {
            ipaddress.ip_address(frame[at : at + 4])
            for frame in found
            if frame[PROTOCOL_AT] == UDP  # kernels announce themselves to multicast groups
            for at in (ADDRESSES_AT, ADDRESSES_AT + 4)
        }
        assert len(found) >= 10, f"domain {domain} took part"
        assert all(end in network for end in ends), f"domain {domain}: {ends}"
