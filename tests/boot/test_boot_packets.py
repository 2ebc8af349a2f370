"""The real dnsmasq, with our configuration, answers every kind of packet as ``decide`` says."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from boot_kit import STRANGER, dnsmasq_of, make_fleet, make_images, make_plan, reload_dnsmasq
from dhcp_client import ACK, OFFER, REQUEST, Client, Reply
from netns_kit import Net, ip, needs_namespaces, udp_socket

from duckctl.boot.answers import BootAnswer, BootRequest, decide
from duckctl.boot.arch import ARCHS
from duckctl.boot.intents import Intent
from duckctl.boot.plan import BootPlan, BootPolicy

pytestmark = needs_namespaces("dnsmasq", "ip")

SILENCE_S = 0.3
BOX_ADDRESS = "198.18.{}.240"  # of a proxy's client: some other server gave it


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    with Net("p", domains=2) as made:
        for index in range(2):
            ip("-n", made.box, "addr", "add", f"{BOX_ADDRESS.format(index)}/24", "dev",
               f"br{index}")  # fmt: skip
        yield made


def client(net: Net, mac: str, domain: int) -> Client:
    return Client(udp_socket(net.box, f"br{domain}", 68), mac)


def summary(reply: Reply | None) -> tuple[str, str, str]:
    """What a reply means: action, file, address."""
    if reply is None or (reply.kind == OFFER and not reply.file and reply.address == "0.0.0.0"):
        return ("silent", "", "")
    return ("boot" if reply.file else "address", reply.file, reply.address)


def expected(answer: BootAnswer) -> tuple[str, str, str | None]:
    if answer.action == "silent":
        return ("silent", "", "")
    return (answer.action, answer.file, str(answer.address) if answer.address else None)


def check(plan: BootPlan, net: Net, domain: int, mac: str, arch: int | None, ipxe: bool) -> None:
    """One DISCOVER (and in proxy mode a request to port 4011) against the decision."""
    place = plan.fleet.domains[domain]
    answer = decide(plan, BootRequest(place, mac, arch, ipxe))
    proxy = plan.mode_of(place) == "proxy"
    box = client(net, mac, domain)
    case = f"{place.name} {mac} arch {arch} ipxe {ipxe}: {answer.reason}"
    silence = SILENCE_S if answer.action == "silent" else 1.2
    reply = box.discover(arch, ipxe, wait_s=silence)
    wanted = expected(answer)
    got = summary(reply)
    if proxy and wanted[0] == "boot":
        wanted = (wanted[0], wanted[1], "0.0.0.0")
    assert got[:2] == wanted[:2], case
    if wanted[2] is not None:
        assert got[2] == wanted[2], case
    if answer.action == "boot" and reply is not None:
        check_options(reply, arch, proxy, case)
    if proxy and arch is not None and ARCHS.get(arch, ARCHS[0]).over == "tftp":
        own = BOX_ADDRESS.format(domain)
        late = box.ask(REQUEST, arch, ipxe, to=(str(place.host_address), 4011), ciaddr=own,
                       wait_s=silence)  # fmt: skip
        port_4011 = decide(plan, BootRequest(place, mac, arch, ipxe, 4011))
        assert port_4011 == answer, "one decision for both ports"
        file = late[0].file if late else ""
        assert file == answer.file, f"port 4011: {case}"
        if answer.action == "boot":
            assert late[0].kind == ACK
            assert late[0].options[43].startswith(bytes.fromhex("060108")), case
    box.box.close()


def check_options(reply: Reply, arch: int | None, proxy: bool, case: str) -> None:
    vendor = reply.options.get(60, b"").rstrip(b"\0")
    if arch in (15, 16, 20):
        assert vendor == b"HTTPClient", case
        assert reply.file.startswith("http://"), case
    elif proxy:
        assert vendor == b"PXEClient", case
        if arch == 0:
            assert reply.options[43].startswith(bytes.fromhex("060108")), case
    elif vendor:
        # Option 60 without 43 would send EDK2 to port 4011 (T14).
        assert reply.options[43].startswith(bytes.fromhex("060108")), case


def every_case(plan: BootPlan, net: Net) -> None:
    macs = [(duck.mac or "", int(duck.domain.name[-1])) for duck in plan.fleet.ducks]
    for mac, domain in [*macs, (STRANGER, 0), (STRANGER, 1)]:
        for arch in (*ARCHS, None):
            for ipxe in (False, True) if arch in (0, 7) else (False,):
                check(plan, net, domain, mac, arch, ipxe)


@pytest.mark.parametrize("unknown", ["discover", "boot", "ignore"])
@pytest.mark.parametrize(("first", "second"), [("dhcp", "proxy"), ("proxy", "dhcp")])
@pytest.mark.slow
def test_real_dnsmasq_agrees_with_the_decision(
    net: Net, tmp_path: Path, first: str, second: str, unknown: str
) -> None:
    """Every duck and a stranger, every arch, both stages, both ports, full and proxy mode."""
    intents = {"duck04": Intent("local")}
    plan = make_plan(make_fleet(tmp_path, first, second, unknown), tmp_path, intents)
    with dnsmasq_of(plan, net):
        every_case(plan, net)
