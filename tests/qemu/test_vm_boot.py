"""duckos boots from nothing to HELLO in every way that a lab knows; times are printed.

The limits asserted are several times those of `duckctl bench boot` on an idle machine
(docs/reference/boot-times.md): they catch a time-out that is waited for, not a slow machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lab_kit import SHAPE, answers, boot, lab_folder, why_not

from duckctl.health import probe
from duckctl.inventory import load_inventory
from duckctl.lab.state import LabFolder
from duckctl.lab.vm import lab
from duckctl.lab.vm.shape import VmShape
from duckctl.lab.vm.state import required

ALL = replace(SHAPE, boot="pxe", firmware=("bios", "uefi"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not(ALL)), reason=why_not(ALL)),
]
BIOS_LIMIT_S, UEFI_LIMIT_S = 40.0, 80.0
# Both NICs, with one and with four cores: four guests have all combinations.
MANY = replace(
    SHAPE, ducks=4, domains=2, nics=("virtio", "e1000e"), cores=(1, 1, 4, 4),
    memory_mib=(64, 64, 256, 256),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LabFolder]:
    with lab_folder(tmp_path / "lab") as folder:
        yield folder


def assert_as_ordered(folder: LabFolder, shape: VmShape) -> None:
    """Each duck tells the machine that it was given, and has the name of its reservation."""
    state, timings = boot(folder, shape)
    for duck, timing, facts in zip(state.ducks, timings, answers(folder, state), strict=True):
        assert facts["name_told"] == duck.name
        assert facts["core_count"] == duck.cores
        assert facts["mac_address"] == duck.mac
        assert facts["mtu_bytes"] == shape.mtu
        assert facts["memory_bytes"] <= duck.memory_mib << 20
        assert facts["memory_bytes"] >= 0.6 * duck.memory_mib * (1 << 20)
        assert facts["build_ok"]
        limit_s = BIOS_LIMIT_S if duck.firmware == "bios" else UEFI_LIMIT_S
        assert timing.reached["hello"] - timing.power_on < limit_s


def test_kernel(folder: LabFolder) -> None:
    """QEMU starts the image itself: both NICs, one and four cores, 64 and 256 MB, two domains."""
    assert_as_ordered(folder, MANY)


def test_bios_pxe(folder: LabFolder) -> None:
    """SeaBIOS, the NIC's iPXE ROM, DHCP and TFTP; jumbo frames."""
    assert_as_ordered(folder, replace(MANY, boot="pxe", mtu=9000))


def test_uefi_pxe(folder: LabFolder) -> None:
    """OVMF: its own network stack on virtio, the iPXE ROM on e1000e."""
    shape = replace(MANY, boot="pxe", ducks=2, firmware=("uefi",), memory_mib=(256,), cores=(1, 4))
    assert_as_ordered(folder, shape)


def test_uefi_http(folder: LabFolder) -> None:
    """OVMF fetches the image over HTTP; no TFTP is involved."""
    shape = replace(SHAPE, boot="http", firmware=("uefi",), memory_mib=(256,))
    assert_as_ordered(folder, shape)
    assert "]: sent " not in (folder.root / "boot/dnsmasq.log").read_text()


def test_sixteen_gigabytes(folder: LabFolder) -> None:
    """A guest with memory above the hole at 4 GB offers it for weights, in one piece."""
    shape = replace(SHAPE, memory_mib=(16384,))
    assert_as_ordered(folder, shape)
    (facts,) = answers(folder, required(folder))
    assert facts["weight_bytes_max"] > 12 << 30


def test_thirty_two_boxes_at_once(folder: LabFolder) -> None:
    """A whole rack switched on together boots by PXE through one dnsmasq."""
    boot(folder, replace(SHAPE, boot="pxe", ducks=32, domains=4))


def test_power_cut_and_hang(folder: LabFolder) -> None:
    """A killed and a hung box come back by their switch, with another boot id."""
    state, _ = boot(folder, replace(SHAPE, ducks=2))
    before = [facts["boot_id"] for facts in answers(folder, state)]
    lab.hang(folder, ["d01"])
    lab.switch_off(folder, ["d02"])
    assert not any(facts["reachable"] for facts in silent(folder))
    lab.cycle(folder, ["d01", "d02"])
    boot(folder, replace(SHAPE, ducks=2))
    after = [facts["boot_id"] for facts in answers(folder, state)]
    assert all(a != b for a, b in zip(after, before, strict=True))


def silent(folder: LabFolder) -> list[dict[str, object]]:
    """What ducks say that are not expected to say anything; waits a short time."""
    fleet = load_inventory(folder.inventory)
    state = required(folder)
    found: list[dict[str, object]] = probe(fleet, fleet.ducks, 1.0, (), lab.require_inside(state))[
        "ducks"
    ]
    return found
