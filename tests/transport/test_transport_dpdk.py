"""The port on NIC queues does what the port on sockets does: the same calls, faults, lost links."""

from __future__ import annotations

from pathlib import Path

import pytest
from segment_shelf import check_call, running_segments
from segments import AF_PACKET, why_not_dpdk
from transport_kit import OPEN_MS, Shelf, library, load_all, open_request, wait_until

from host_runtime.transport import (
    DomainEndpoint,
    DuckEndpoint,
    DuckUnreachableError,
    Faults,
    Transport,
    TransportError,
    TransportOptions,
)

QUICK = TransportOptions(silence_ms=800, ping_ms=100)


@pytest.fixture(autouse=True)
def _needs_dpdk() -> None:
    reason = why_not_dpdk()
    if reason:
        pytest.skip(reason)


def check_calls_and_faults(transport: Transport, shelf: Shelf) -> None:
    """Two domains of two ducks: loading, broadcast calls, then with loss, duplicates, disorder."""
    load_all(transport, shelf)
    transport.session_open(range(4), open_request(), OPEN_MS)
    for _ in range(20):
        check_call(transport, [0, 1, 2, 3])
    transport.set_faults(Faults(seed=51, drop=0.05, duplicate=0.05, reorder=0.05))
    for _ in range(20):
        check_call(transport, [0, 1, 2, 3])
    stats = [transport.domain_stats(domain) for domain in range(2)]
    assert all(one.packets_received > 100 and one.damaged == 0 for one in stats)


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_calls_and_faults(tmp_path: Path, echo_kernel: bytes, mtu: int) -> None:
    """Two domains of two ducks: loading, broadcast calls, then with loss, duplicates, disorder."""
    with running_segments(tmp_path, echo_kernel, mtu, device=AF_PACKET) as (segments, shelf):
        with segments.in_host():
            transport = shelf.transport()
        with transport:
            check_calls_and_faults(transport, shelf)


def test_unicast_calls(tmp_path: Path, echo_kernel: bytes) -> None:
    """Without a broadcast address each duck gets its own copy."""
    with running_segments(tmp_path, echo_kernel, 1500, 1, 3, device=AF_PACKET) as (segments, shelf):
        shelf.call_addresses.clear()
        with segments.in_host():
            transport = shelf.transport()
        with transport:
            load_all(transport, shelf)
            transport.session_open(range(3), open_request(), OPEN_MS)
            for _ in range(10):
                check_call(transport, [0, 1, 2])


def test_a_tap_device(tmp_path: Path, echo_kernel: bytes) -> None:
    """A second driver: DPDK makes the interface, which is plugged into the switch. 1500 only: the
    driver names 1,522 bytes as its longest frame, and DPDK refuses an MTU beyond that."""
    if not Path("/dev/net/tun").exists():
        pytest.skip("there is no /dev/net/tun: the kernel has no tap interfaces")
    device = "net_tap,iface=tap-{nic}"
    with running_segments(tmp_path, echo_kernel, 1500, device=device) as (segments, shelf):
        with segments.inside(segments.switch):
            transport = shelf.transport()
            for domain in range(2):
                segments.plug_in(f"tap-nic{domain}", domain)
        with transport:
            check_calls_and_faults(transport, shelf)


@pytest.mark.slow
def test_a_link_goes_and_comes_back(tmp_path: Path, echo_kernel: bytes) -> None:
    """The switch's port of one domain: its ducks fail by name, and serve again when it is back."""
    with running_segments(tmp_path, echo_kernel, 1500, 2, 1, device=AF_PACKET) as (segments, shelf):
        with segments.in_host():
            transport = shelf.transport(QUICK)
        with transport:
            load_all(transport, shelf)
            transport.session_open([0, 1], open_request(), OPEN_MS)
            check_call(transport, [0, 1])
            segments.set_port(1, "down")
            with pytest.raises(DuckUnreachableError, match="heard in domain domain2"):
                check_call(transport, [0, 1])
            segments.set_port(1, "up")
            wait_until(lambda: answers(transport, 1), 10, "the duck is back")
            transport.session_open([0, 1], open_request(), OPEN_MS)
            check_call(transport, [0, 1])


@pytest.mark.slow
def test_a_duck_gets_another_card(tmp_path: Path, echo_kernel: bytes) -> None:
    """The same address at another MAC that nobody announces: the session goes on."""
    with running_segments(tmp_path, echo_kernel, 1500, 1, 1, device=AF_PACKET) as (segments, shelf):
        shelf.call_addresses.clear()
        with segments.in_host():
            transport = shelf.transport()
        with transport:
            load_all(transport, shelf)
            transport.session_open([0], open_request(), OPEN_MS)
            check_call(transport, [0])
            segments.change_card(0, 0)
            check_call(transport, [0])


def answers(transport: Transport, duck: int) -> bool:
    try:
        transport.hello(duck, 300)
    except TransportError:
        return False
    return True


def open_on(device: str, address: str | None = "10.21.1.1") -> None:
    domains = [DomainEndpoint("domain1", address, None, 1500, device)]
    ducks = [DuckEndpoint("d01", "10.21.1.10", 7211, 0)]
    Transport(library(), domains, ducks, b"\1" * 32).close()


@pytest.mark.parametrize(
    ("device", "address", "words"),
    [
        ("net_af_packet,iface=nowhere", "10.21.1.1", "DPDK has no driver that takes it"),
        ("0000:ff:1f.7", "10.21.1.1", "DPDK has no driver that takes it"),
        ("net_nonsense", "10.21.1.1", "DPDK has no driver that takes it"),
        ("net_af_packet,iface=lo", None, "a device needs bind_address"),
    ],
)
def test_devices_that_do_not_open(device: str, address: str | None, words: str) -> None:
    with pytest.raises(TransportError, match=words):
        open_on(device, address)
