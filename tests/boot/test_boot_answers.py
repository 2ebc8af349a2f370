"""The decision and what is made from it, without a network: answers, files, scripts, folders."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from boot_kit import STRANGER, make_fleet, make_images, make_plan

from duckctl.boot.answers import BootAnswer, BootRequest, decide
from duckctl.boot.arch import ARCHS
from duckctl.boot.dnsmasq import find_pool, render_config, render_hosts
from duckctl.boot.explain import explain_duck
from duckctl.boot.intents import Intent
from duckctl.boot.plan import BootPlan, BootPolicy, find_interfaces
from duckctl.boot.scripts import duck_script, first_script
from duckctl.boot.tree import sync_tftp, tftp_paths, web_paths

MAC = "02:00:00:00:00:0{}"


def answer(plan: BootPlan, duck: int, arch: int | None, ipxe: bool = False) -> BootAnswer:
    domain = plan.fleet.domains[0 if duck < 5 else 1]
    return decide(plan, BootRequest(domain, MAC.format(duck), arch, ipxe))


@pytest.fixture
def plan(tmp_path: Path) -> BootPlan:
    return make_plan(make_fleet(tmp_path), tmp_path)


def test_t01_t02_snponly_unless_the_model_needs_another(plan: BootPlan) -> None:
    """UEFI gets the loader with the firmware's driver; duck03 asks for iPXE's own (T1, T2)."""
    assert [answer(plan, 2, arch).file for arch in (6, 7, 9)] == ["snponly.efi"] * 3
    assert [answer(plan, 3, arch).file for arch in (6, 7, 9)] == ["ipxe.efi"] * 3


def test_t04_t05_own_drivers_are_never_a_default(tmp_path: Path) -> None:
    """No answer to a duck without duck_ipxe names ipxe.efi, not even without snponly (T4, T5)."""
    for loaders in (("snponly.efi", "ipxe.efi"), ("ipxe.efi",)):
        plan = make_plan(make_fleet(tmp_path), tmp_path, loaders=loaders)
        files = [answer(plan, 2, arch).file for arch in ARCHS]
        assert not any(file.endswith("ipxe.efi") for file in files), files


def test_t08_both_uefi_arch_codes(plan: BootPlan) -> None:
    """7 and 9 (and 6) are the same firmware: the same answer for every duck (T8)."""
    for duck in range(1, 7):
        assert answer(plan, duck, 7) == answer(plan, duck, 9) == answer(plan, duck, 6)
        assert answer(plan, duck, 16) == answer(plan, duck, 15)


def test_t11_ipxe_gets_the_script_and_never_itself(plan: BootPlan) -> None:
    """Second stage by user class or option 175: the script; no loader again (T11)."""
    for arch in (0, 7, 9):
        second = answer(plan, 2, arch, ipxe=True)
        assert (second.stage, second.file) == ("script", "http://198.18.0.1:8080/boot.ipxe")
    assert answer(plan, 1, 7, ipxe=True).file == "duckos/duckos.efi", "duckos needs no script"


def test_t14_proxy_answers_carry_no_address(tmp_path: Path) -> None:
    """In proxy mode another server gives addresses; HTTP boot then is silent (T14)."""
    plan = make_plan(make_fleet(tmp_path, "proxy", "proxy"), tmp_path)
    for arch in (0, 6, 7, 9):
        found = answer(plan, 1, arch)
        assert (found.action, found.address) == ("boot", None)
    assert answer(plan, 1, 16).action == "silent"
    assert answer(plan, 1, None).action == "silent"


def test_t16_the_port_changes_nothing(plan: BootPlan) -> None:
    """The same request to port 67 and to 4011 has one answer (T16)."""
    for arch in ARCHS:
        request = BootRequest(plan.fleet.domains[0], MAC.format(1), arch)
        assert decide(plan, request) == decide(plan, replace(request, port=4011))


def test_t20_tftp_has_first_stages_only(plan: BootPlan) -> None:
    """Kernel, initramfs and UKI go over HTTP while a boot loader is there (T20)."""
    assert sorted(tftp_paths(plan)) == [
        "duckos/duckos.efi", "duckos/duckos.img", "ipxe.efi", "snponly.efi", "undionly.kpxe"
    ]  # fmt: skip
    assert "/images/linux/initrd.img" in web_paths(plan)


def test_without_loaders_uefi_gets_the_uki_and_bios_nothing(tmp_path: Path) -> None:
    """The one case in which a UKI goes over TFTP; BIOS is told what to install."""
    plan = make_plan(make_fleet(tmp_path), tmp_path, loaders=())
    assert answer(plan, 2, 7).file == "linux/linux.efi"
    assert "linux/linux.efi" in tftp_paths(plan)
    bios = answer(plan, 2, 0)
    assert (bios.action, bios.file) == ("address", "")
    assert "package ipxe" in bios.reason


def test_t24_scripts_use_the_card_that_booted(plan: BootPlan) -> None:
    """netX, never net0; the duck's system is told the same card (T24)."""
    first = first_script(plan, plan.fleet.domains[0])
    own = duck_script(plan, plan.fleet.domains[0], MAC.format(2))
    assert "${netX/mac:hexhyp}" in first
    assert "net0" not in first + own
    assert "BOOTIF=01-02-00-00-00-00-02" in own
    assert "duck.name=duck02" in own


def test_t25_scripts_try_again_at_different_times_and_end_in_failure(plan: BootPlan) -> None:
    """Bounded tries, waits that differ from duck to duck, exit 1 at the end (T25, tinkerbell)."""
    waits = set()
    for duck in range(1, 5):
        script = duck_script(plan, plan.fleet.domains[0], MAC.format(duck))
        assert script.startswith("#!ipxe\n")
        assert script.rstrip().endswith("exit 1")
        assert "iseq ${tries} 5 && goto over" in script
        waits.add(re.findall(r"sleep (\d+)", script)[0])
    assert len(waits) > 1


def test_scripts_of_ducks_without_an_image_say_why(tmp_path: Path) -> None:
    """local, held and unknown boxes: a reason without anything that iPXE would interpret."""
    intents = {"duck02": Intent("held", reason="it loops; ${net0/mac} && reboot || `x`")}
    plan = make_plan(make_fleet(tmp_path), tmp_path, intents)
    for mac in (MAC.format(2), STRANGER):
        script = duck_script(plan, plan.fleet.domains[0], mac)
        assert script.rstrip().endswith("exit 1")
        assert not set("${}&|`") & set(script.split("\n", 1)[1])


def test_t27_one_ducks_change_touches_no_other(tmp_path: Path) -> None:
    """An intent for duck01 changes one line; making the files twice changes none (T27)."""
    fleet = make_fleet(tmp_path)
    before = make_plan(fleet, tmp_path, images={}, loaders=())
    after = replace(before, images=make_images(), intents={"duck01": Intent("local")})
    plain = replace(before, images=make_images())
    lines = zip(render_hosts(plain).splitlines(), render_hosts(after).splitlines(), strict=True)
    assert [old.split(",")[0] for old, new in lines if old != new] == [MAC.format(1)]
    assert render_config(plain) == render_config(after)
    assert sync_tftp(before) == []


def test_t27_the_folder_is_made_once(tmp_path: Path) -> None:
    """The second run changes nothing; a file that nobody serves goes; a new one comes whole."""
    loader = tmp_path / "snponly.efi"
    loader.write_bytes(b"one")
    plan = make_plan(make_fleet(tmp_path), tmp_path, images={}, loaders=())
    plan = replace(plan, ipxe_files={"snponly.efi": loader})
    assert sync_tftp(plan) == ["snponly.efi"]
    assert sync_tftp(plan) == []
    (plan.paths.tftp / "stale.img").write_bytes(b"x")
    loader.write_bytes(b"another")
    assert sync_tftp(plan) == ["snponly.efi", "stale.img"]
    assert (plan.paths.tftp / "snponly.efi").read_bytes() == b"another"


def test_t32_dns_is_off_and_only_our_ports_are_bound(plan: BootPlan) -> None:
    """port=0 and bind-interfaces with the interfaces of the domains alone (T32)."""
    lines = render_config(plan).splitlines()
    assert {"port=0", "bind-interfaces", "except-interface=lo"} <= set(lines)
    assert [line for line in lines if line.startswith("interface=")] == [
        "interface=nic0", "interface=nic1"
    ]  # fmt: skip


def test_t36_the_port_is_found_by_pci_or_mac_before_its_name(tmp_path: Path) -> None:
    """A renamed interface is still the domain's: PCI address, MAC, then the name (T36)."""
    for name, mac in (("enp6s0f0np0", "aa:00:00:00:00:01"), ("eth7", "aa:00:00:00:00:02")):
        (tmp_path / "sys/class/net" / name).mkdir(parents=True)
        (tmp_path / "sys/class/net" / name / "address").write_text(mac + "\n")
    (tmp_path / "sys/bus/pci/devices/0000:06:00.0/net/enp6s0f0np0").mkdir(parents=True)
    fleet = make_fleet(tmp_path)
    first = replace(fleet.domains[0], host_pci="0000:06:00.0", host_nic="enp6s0f0")
    second = replace(fleet.domains[1], host_mac="aa:00:00:00:00:02", host_nic="eth1")
    fleet = replace(fleet, domains=(first, second))
    assert find_interfaces(fleet, tmp_path / "sys") == {"dom0": "enp6s0f0np0", "dom1": "eth7"}


def test_the_pool_keeps_clear_of_reservations(plan: BootPlan) -> None:
    """Within the subnet, away from host and ducks, bounded; a full subnet has none."""
    pool = find_pool(plan, plan.fleet.domains[0])
    assert pool is not None
    assert pool.size == plan.policy.pool_addresses_max
    taken = {duck.address for duck in plan.fleet.ducks} | {IPv4Address("198.18.0.1")}
    assert not any(pool.first <= address <= pool.last for address in taken)
    small = replace(plan, policy=BootPolicy(pool_addresses_max=4))
    found = find_pool(small, plan.fleet.domains[0])
    assert found is not None
    assert (found.size, str(found.last)) == (4, "198.18.0.254")


def test_an_image_that_is_not_built_is_named(tmp_path: Path) -> None:
    """The duck gets an address; the reason says what to run."""
    plan = make_plan(make_fleet(tmp_path), tmp_path, images={})
    found = answer(plan, 1, 7)
    assert (found.action, found.file) == ("address", "")
    assert found.reason == "image 'duckos' is not built; make it: duckctl image build duckos"
    other = make_plan(plan.fleet, tmp_path, {"duck01": Intent("image", "lab-2")})
    assert answer(other, 1, 7).reason.endswith("image build duckos|linux --name lab-2")


def test_explain_has_every_way_to_ask(plan: BootPlan) -> None:
    """Every arch once, iPXE on both firmwares, and a system that is up."""
    told = explain_duck(plan, plan.fleet.ducks[1])
    assert [e.arch for e in told] == [*ARCHS, 0, 7, None]
    assert all(e.answer.reason for e in told)
