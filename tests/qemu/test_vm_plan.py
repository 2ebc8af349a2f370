"""What a qemu lab will consist of is decided by pure functions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from lab_kit import PROCESSES, SHAPE

from duckctl.errors import UsageError
from duckctl.inventory import load_inventory
from duckctl.lab.state import LabFolder
from duckctl.lab.vm import machine, needs, network, shape, wake
from duckctl.lab.vm.inventory import vm_inventory
from duckctl.lab.vm.state import VmState, load, save

MAC = "52:d0:cc:01:01:65"
MAGIC = b"\xff" * 6 + bytes.fromhex(MAC.replace(":", "")) * 16


def state_of(wanted: shape.VmShape) -> VmState:
    state = VmState("abc123", "this boot", wanted, shape.plan(wanted), (), image="duckos")
    return network.planned(state)


def test_lists_are_dealt_out_to_the_ducks_in_turn() -> None:
    """Domains get equal runs of ducks; every list of options goes round."""
    wanted = replace(
        SHAPE, ducks=5, domains=2, kinds=("qemu", "process"), nics=("virtio", "e1000e"),
        cores=(1, 4, 2), memory_mib=(64, 128),
    )  # fmt: skip
    assert [
        (d.name, d.domain, d.kind, d.address, d.mac, d.nic, d.cores) for d in shape.plan(wanted)
    ] == [
        ("d01", 1, "qemu", "198.18.1.101", "52:d0:cc:01:01:65", "virtio", 1),
        ("d02", 1, "process", "198.18.1.102", "52:d0:cc:01:01:66", "e1000e", 4),
        ("d03", 1, "qemu", "198.18.1.103", "52:d0:cc:01:01:67", "virtio", 2),
        ("d04", 2, "process", "198.18.2.101", "52:d0:cc:02:01:65", "e1000e", 1),
        ("d05", 2, "qemu", "198.18.2.102", "52:d0:cc:02:01:66", "virtio", 4),
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ducks": 0}, "1 to 32 ducks"),
        ({"ducks": 33}, "1 to 32 ducks"),
        ({"ducks": 2, "domains": 3}, "1 to 2 domains"),
        ({"boot": "http"}, "no HTTP boot"),
    ],
)
def test_impossible_labs_are_refused(wrong: dict[str, int], said: str) -> None:
    """Each refusal names what was asked for and what is possible."""
    with pytest.raises(UsageError, match=said):
        shape.plan(replace(SHAPE, **wrong))  # type: ignore[arg-type]


def test_options_name_what_they_may_be() -> None:
    """A wrong word or number is refused with the choices."""
    assert shape.choices("bios, uefi", "--firmware", shape.Firmware) == ("bios", "uefi")
    assert shape.numbers("64,16384", "--memory", 32, 65536) == (64, 16384)
    with pytest.raises(UsageError, match=r"--nic 'rtl' is none of virtio, e1000e"):
        shape.choices("virtio,rtl", "--nic", shape.Nic)
    with pytest.raises(UsageError, match=r"'16G' is not a number from 32 to 64"):
        shape.numbers("16G", "--memory", 32, 64)


def test_the_wiring_plugs_each_duck_into_its_domain() -> None:
    """Guests get a tap, processes a cable to their own namespace; proxy mode a second server."""
    wanted = replace(SHAPE, ducks=2, domains=2, kinds=("qemu", "process"), boot="proxy", mtu=9000)
    lines = network.wiring(state_of(wanted))
    assert list(lines) == ["sw", "host", "lan", "d02"]
    assert "tuntap add p1.1 mode tap" in lines["sw"]
    assert "link set p1.1 mtu 9000 master br1 up" in lines["sw"]
    cable = "link add p2.2 mtu 9000 type veth peer name eth0 mtu 9000 netns duckabc123-d02"
    assert cable in lines["sw"]
    assert "addr add 198.18.2.1/24 brd + dev nic2" in lines["host"]
    assert "addr add 198.18.2.2/24 brd + dev lan2" in lines["lan"]
    assert "addr add 198.18.2.101/24 brd + dev eth0" in lines["d02"]


def test_the_state_file_brings_back_every_field(tmp_path: Path) -> None:
    """What was saved is what is loaded, tuples and all."""
    folder = LabFolder(tmp_path)
    state = state_of(replace(SHAPE, ducks=3, kinds=("qemu", "process")))
    save(folder, state)
    assert load(folder) == state
    assert folder.backend() == "qemu"


def test_the_inventory_is_a_good_one(tmp_path: Path) -> None:
    """The fleet that other commands read has the lab's addresses, stations and switches."""
    wanted = replace(SHAPE, ducks=2, domains=2, kinds=("qemu", "process"), mtu=9000, boot="proxy")
    path = tmp_path / "inventory.yml"
    path.write_text(vm_inventory(state_of(wanted), "fleet.key"), encoding="utf-8")
    fleet = load_inventory(path)
    assert [(d.name, str(d.address), d.mac, d.image) for d in fleet.ducks] == [
        ("d01", "198.18.1.101", "52:d0:cc:01:01:65", "duckos"),
        ("d02", "198.18.2.101", "52:d0:cc:02:01:65", "linux"),
    ]
    assert [(d.mtu, d.boot, str(d.call_address)) for d in fleet.domains] == [
        (9000, "proxy", "198.18.1.255"),
        (9000, "proxy", "198.18.2.255"),
    ]
    assert [[p.backend for p in duck.power] for duck in fleet.ducks] == [["reboot", "lab"]] * 2


@pytest.mark.parametrize(
    ("wanted", "present", "absent"),
    [
        ({}, "virtio-net-pci,netdev=net,mac=52:d0:cc:01:01:65,bootindex=1,host_mtu=1500,romfile=",
         "pflash"),
        ({"boot": "pxe", "nics": ("e1000e",)},
         "e1000e,netdev=net,mac=52:d0:cc:01:01:65,bootindex=1 ", "romfile"),
        ({"boot": "pxe", "firmware": ("uefi",)}, "if=pflash,unit=1", "IPv4PXESupport"),
        ({"boot": "http", "firmware": ("uefi",)}, "IPv4PXESupport,string=no", "-kernel"),
    ],
)  # fmt: skip
def test_a_guest_is_what_was_asked_for(
    wanted: dict[str, str], present: str, absent: str, tmp_path: Path
) -> None:
    """Firmware, NIC and way of booting decide QEMU's command line."""
    state = state_of(replace(SHAPE, **wanted))  # type: ignore[arg-type]
    duck = state.ducks[0]
    line = " ".join(machine.guest_command(state, LabFolder(tmp_path), duck, ["-boot", "x"])) + " "
    assert present in line
    assert absent not in line
    assert "-name duckabc123-d01 " in line
    assert "-accel tcg,thread=multi -cpu max -smp 1 -m 64M" in line


def test_missing_privileges_are_named() -> None:
    """Each capability is looked up by its bit."""
    assert needs.missing_privileges("CapEff:\t000001fffeffffff\n") == []
    assert needs.missing_privileges("CapEff:\t0000000000001000\n") == [
        "CAP_NET_RAW",
        "CAP_SYS_ADMIN",
    ]
    assert len(needs.missing_privileges("CapEff:\t0000000000000000\n")) == 3


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A lab of processes needs no QEMU; one of UEFI guests needs OVMF."""
    monkeypatch.setattr(needs, "program", lambda _name: None)
    monkeypatch.setattr(needs, "OVMF_CODE", tmp_path / "none.fd")
    wanted = replace(SHAPE, boot="pxe", firmware=("uefi",))
    found = needs.missing_packages(wanted)
    assert {"qemu-system-x86", "dnsmasq-base", "iproute2", "ovmf"} <= set(found)
    assert needs.missing_packages(PROCESSES) == ["iproute2", "dnsmasq-base"]


def test_a_magic_packet_wakes_its_own_station_only() -> None:
    """The pattern counts wherever it stands in the frame; fifteen repeats are none."""
    assert wake.woken(b"head" + MAGIC + b"password", ["52:d0:cc:01:01:66", MAC]) == MAC
    assert wake.woken(MAGIC[:-6], [MAC]) is None
    assert wake.woken(MAGIC, ["52:d0:cc:01:01:66"]) is None


def test_names_of_interfaces_fit_the_kernel() -> None:
    """An interface has at most 15 characters in its name, in the largest lab too."""
    wanted = replace(SHAPE, ducks=32, domains=8, kinds=("qemu", "process"), boot="proxy")
    words = " ".join(line for lines in network.wiring(state_of(wanted)).values() for line in lines)
    names = set(re.findall(r"(?:link add|tuntap add|dev|name|set) (\S+)", words))
    assert max(map(len, names)) <= 15
