"""The real dnsmasq, with our configuration, answers every kind of packet as ``decide`` says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from boot_kit import STRANGER, dnsmasq_of, make_fleet, make_plan
from dhcp_client import ACK, DISCOVER, OFFER, REQUEST, Client, Reply
from netns_kit import Net, ip, needs_namespaces, udp_socket

from duckctl.boot.answers import BootAnswer, BootRequest, decide
from duckctl.boot.arch import ARCHS
from duckctl.boot.intents import Intent
from duckctl.boot.plan import BootPlan
from duckctl.inventory import load_inventory

pytestmark = needs_namespaces("dnsmasq", "ip")

SILENCE_S = 0.2
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
    if reply is None:
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
    if proxy and mac == STRANGER and plan.unknown == "discover" and reply is not None:
        # dnsmasq logs the MAC of those alone that it answers: an offer of nothing (boot.md).
        assert (reply.kind, reply.file, reply.address) == (OFFER, "", "0.0.0.0"), case
        got = ("silent", "", "")
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


def every_case(plan: BootPlan, net: Net, macs: list[tuple[str, int]]) -> None:
    for mac, domain in macs:
        for arch in (*ARCHS, None):
            for ipxe in (False, True) if arch in (0, 7) else (False,):
                check(plan, net, domain, mac, arch, ipxe)


STRANGERS = [(STRANGER, 0), (STRANGER, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [("dhcp", "proxy"), ("proxy", "dhcp")])
def test_t16_one_decision_for_both_ports(net: Net, tmp_path: Path, first: str, second: str) -> None:
    """Every duck and a stranger, every arch, both stages, ports 67 and 4011, both modes."""
    intents = {"duck04": Intent("local")}
    plan = make_plan(make_fleet(tmp_path, first, second), tmp_path, intents)
    macs = [(duck.mac or "", int(duck.domain.name[-1])) for duck in plan.fleet.ducks]
    with dnsmasq_of(plan, net):
        every_case(plan, net, [*macs, *STRANGERS])


@pytest.mark.slow
@pytest.mark.parametrize("unknown", ["boot", "ignore"])
def test_strangers_are_answered_as_the_inventory_says(
    net: Net, tmp_path: Path, unknown: str
) -> None:
    """A box that no duck is: the default image, or silence, in full and in proxy mode."""
    plan = make_plan(make_fleet(tmp_path, "dhcp", "proxy", unknown), tmp_path)
    with dnsmasq_of(plan, net):
        every_case(plan, net, STRANGERS)


MODES = [
    (first, second)
    for first in ("dhcp", "proxy", "off")
    for second in ("dhcp", "proxy", "off")
    if (first, second) != ("off", "off")
]


@pytest.mark.parametrize("unknown", ["discover", "boot", "ignore"])
@pytest.mark.parametrize(("first", "second"), MODES)
@pytest.mark.slow
def test_a_duck_at_the_wrong_port_gets_no_file(
    net: Net, tmp_path: Path, first: str, second: str, unknown: str
) -> None:
    """A duck that asks in the other domain, whatever both are: no file there, and never an address
    of another subnet; at its own port it gets its file as ever."""
    plan = make_plan(make_fleet(tmp_path, first, second, unknown), tmp_path)
    with dnsmasq_of(plan, net):
        for place, mac in ((1, "02:00:00:00:00:01"), (0, "02:00:00:00:00:05")):
            if plan.mode_of(plan.fleet.domains[place]) == "off":
                continue
            wrong = decide(plan, BootRequest(plan.fleet.domains[place], mac, 7))
            assert wrong.file == "", "the decision itself"
            check(plan, net, place, mac, 7, False)
            check(plan, net, 1 - place, mac, 7, False)
            check(plan, net, place, STRANGER, 7, False)


@pytest.mark.parametrize("name", ["known", "known-othernet", "ipxe", "arch7", "noboot", "nic1"])
def test_a_domain_may_be_named_like_a_tag(net: Net, tmp_path: Path, name: str) -> None:
    """dnsmasq's own tags, ours and those of its interfaces: names of domains are none of them."""
    fleet = make_fleet(tmp_path, "dhcp", "proxy", "boot")
    fleet.path.write_text(fleet.path.read_text().replace("dom0:", f"{name}:"))
    plan = make_plan(load_inventory(fleet.path), tmp_path)
    with dnsmasq_of(plan, net):
        for mac, domain in (("02:00:00:00:00:02", 0), ("02:00:00:00:00:06", 1), *STRANGERS):
            check(plan, net, domain, mac, 7, False)
        check(plan, net, 0, "02:00:00:00:00:02", 7, True)


def test_a_duck_may_be_named_with_digits(net: Net, tmp_path: Path) -> None:
    """What the inventory takes for a name, dnsmasq takes for one too, not for a lease's time."""
    fleet = make_fleet(tmp_path)
    text = fleet.path.read_text()
    for number, name in enumerate(("12-30m", "m", "12h3", "infinite1"), 1):
        text = text.replace(f"duck0{number}:", f"{name}:")
    fleet.path.write_text(text)
    plan = make_plan(load_inventory(fleet.path), tmp_path)
    with dnsmasq_of(plan, net):
        for duck in plan.fleet.ducks[:4]:
            (reply,) = client(net, duck.mac or "", 0).ask(DISCOVER, 7)
            assert reply.address == str(duck.address)
            assert reply.options[51] == plan.policy.duck_lease_s.to_bytes(4, "big"), duck.name


def test_t09_http_boot_has_url_and_option_60(net: Net, tmp_path: Path) -> None:
    """Codes 15, 16 and 20, for a duck and for a stranger that may boot (T9)."""
    plan = make_plan(make_fleet(tmp_path, unknown="boot"), tmp_path)
    with dnsmasq_of(plan, net):
        for mac in ("02:00:00:00:00:01", "02:00:00:00:00:02", STRANGER):
            for arch in (15, 16, 20):
                reply = client(net, mac, 0).discover(arch)
                assert reply is not None
                assert reply.options[60].rstrip(b"\0") == b"HTTPClient"
                assert reply.file.startswith("http://198.18.0.1:8080/"), reply.file


def test_t10_the_arch_is_option_93_not_option_60(net: Net, tmp_path: Path) -> None:
    """A client whose vendor text names another firmware than option 93 does (T10)."""
    plan = make_plan(make_fleet(tmp_path), tmp_path)
    with dnsmasq_of(plan, net):
        box = client(net, "02:00:00:00:00:01", 0)
        (uefi,) = box.ask(DISCOVER, 7, vendor="PXEClient:Arch:00000:UNDI:002001")
        (bios,) = box.ask(DISCOVER, 0, vendor="PXEClient:Arch:00007:UNDI:003016")
    assert (uefi.file, bios.file) == ("duckos/duckos.efi", "duckos/duckos.img")


def test_t30_one_machine_has_one_lease(net: Net, tmp_path: Path) -> None:
    """Firmware, loader and system with three client ids get the same address; a stranger's lease
    is short (T30)."""
    plan = make_plan(make_fleet(tmp_path), tmp_path)
    with dnsmasq_of(plan, net):
        for mac in ("02:00:00:00:00:01", STRANGER):
            box = client(net, mac, 0)
            found = set()
            for identity in (b"", b"\x3d\x05\x00abcd", b"\x3d\x07\x01\x02\x03\x04\x05\x06\x07"):
                extra = (identity,) if identity else ()
                (offer,) = box.ask(DISCOVER, 7, extra=extra)
                wanted = (b"\x32\x04" + IPv4Address(offer.address).packed,
                          b"\x36\x04" + offer.options[54], *extra)  # fmt: skip
                (ack,) = box.ask(REQUEST, 7, extra=wanted)
                assert ack.kind == ACK
                found.add((ack.address, int.from_bytes(ack.options[51], "big")))
            assert len(found) == 1
            box.box.close()
    assert found.pop()[1] == plan.policy.pool_lease_s


def test_a_running_duckos_gets_its_settings(net: Net, tmp_path: Path) -> None:
    """Vendor class duckos: option 43 has host and domain, option 26 the MTU."""
    fleet = make_fleet(tmp_path)
    domains = (replace(fleet.domains[0], mtu=9000), fleet.domains[1])
    ducks = tuple(replace(duck, domain=domains[0]) for duck in fleet.ducks[:4])
    plan = make_plan(replace(fleet, domains=domains, ducks=ducks), tmp_path)
    with dnsmasq_of(plan, net):
        (reply,) = client(net, "02:00:00:00:00:01", 0).ask(DISCOVER, None, vendor="duckos")
    assert b"\x01\x0fhost=198.18.0.1" in reply.options[43]
    assert b"\x01\x0bdomain=dom0" in reply.options[43]
    assert reply.options[26] == (9000).to_bytes(2, "big")
    assert reply.file == ""
