"""duckos reads ACPI tables right, and no broken table leads it outside of the table."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import duckos_host
import pytest
from duckos_host import DUCKOS

CPU_MAX = 64
IO_APICS_MAX = 16


class Register(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_uint64),
        ("space", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
    ]


class Facts(ctypes.Structure):
    _fields_ = [
        ("lapic_address", ctypes.c_uint64),
        ("cpu_count", ctypes.c_uint32),
        ("cpu_skipped", ctypes.c_uint32),
        ("apic_id", ctypes.c_uint32 * CPU_MAX),
        ("io_apic_count", ctypes.c_uint32),
        ("io_apic_address", ctypes.c_uint64 * IO_APICS_MAX),
        ("hpet_address", ctypes.c_uint64),
        ("ecam_address", ctypes.c_uint64),
        ("ecam_first_bus", ctypes.c_uint8),
        ("ecam_last_bus", ctypes.c_uint8),
        ("reset", Register),
        ("reset_value", ctypes.c_uint8),
        ("pm_timer", Register),
        ("pm_timer_32_bit", ctypes.c_bool),
        ("pm1a_event", Register),
        ("pm1b_event", Register),
        ("pm1_event_bytes", ctypes.c_uint8),
        ("pm1a_control", Register),
        ("pm1b_control", Register),
        ("has_power_button", ctypes.c_bool),
        ("smi_command", ctypes.c_uint16),
        ("acpi_enable", ctypes.c_uint8),
        ("dsdt_address", ctypes.c_uint64),
        ("has_s5", ctypes.c_bool),
        ("s5_type_a", ctypes.c_uint8),
        ("s5_type_b", ctypes.c_uint8),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = duckos_host.build_library(tmp_path_factory.mktemp("acpi"), DUCKOS / "acpi/tables.c")
    built.acpi_read_table.restype = built.acpi_read_root.restype = ctypes.c_bool
    return built


def with_checksum(data: bytes, at: int, until: int | None = None) -> bytes:
    """``data`` with the byte at ``at`` set so that the bytes up to ``until`` sum to zero."""
    changed = bytearray(data)
    changed[at] = 0
    changed[at] = -sum(changed[:until]) & 0xFF
    return bytes(changed)


def table(name: str, body: bytes, revision: int = 1) -> bytes:
    header = struct.pack(
        "<4sIBB6s8sIII", name.encode(), 36 + len(body), revision, 0, b"DUCK  ", b"TEST    ", 1, 0, 1
    )
    return with_checksum(header + body, 9)


def read(library: ctypes.CDLL, *tables: bytes) -> tuple[list[bool], Facts]:
    facts = Facts()
    results = [
        library.acpi_read_table(data, ctypes.c_size_t(len(data)), ctypes.byref(facts))
        for data in tables
    ]
    return results, facts


def madt(*entries: bytes) -> bytes:
    return table("APIC", struct.pack("<II", 0xFEE00000, 1) + b"".join(entries))


def lapic(apic_id: int, flags: int = 1) -> bytes:
    return struct.pack("<BBBBI", 0, 8, apic_id, apic_id, flags)


def x2apic(apic_id: int, flags: int = 1) -> bytes:
    return struct.pack("<BBHIII", 9, 16, 0, apic_id, flags, 0)


def gas(space: int, address: int) -> bytes:
    return struct.pack("<BBBBQ", space, 32, 0, 3, address)


def fadt(size: int = 244) -> bytes:
    body = bytearray(size)
    struct.pack_into("<I", body, 40, 0x7FE0_1000)
    struct.pack_into("<HxxB", body, 48, 0xB2, 0xF1)
    struct.pack_into("<I", body, 56, 0x600)
    body[88] = 4
    struct.pack_into("<II", body, 64, 0x604, 0)
    struct.pack_into("<I", body, 76, 0x608)
    struct.pack_into("<I", body, 112, 1 << 10 | 1 << 8)
    if size >= 129:
        body[116:128] = gas(1, 0xCF9)
        body[128] = 0x0F
    return table("FACP", bytes(body[36:]))


def test_cores_are_counted_once(library: ctypes.CDLL) -> None:
    """Enabled cores of both kinds count, disabled and repeated ones do not."""
    cores = madt(lapic(0), lapic(2), lapic(4, flags=0), x2apic(2), x2apic(300), b"\x01\x04zz")
    results, facts = read(library, cores)
    assert results == [True]
    assert facts.apic_id[: facts.cpu_count] == [0, 2, 300]
    assert facts.lapic_address == 0xFEE00000


def test_interrupt_controllers_are_found(library: ctypes.CDLL) -> None:
    """The I/O APICs' addresses, at most sixteen of them."""
    controllers = [struct.pack("<BBBBII", 1, 12, i, 0, 0xFEC00000 + i, 0) for i in range(20)]
    _, facts = read(library, madt(*controllers))
    assert facts.io_apic_count == IO_APICS_MAX
    assert facts.io_apic_address[1] == 0xFEC00001


def test_more_cores_than_places_are_counted_as_skipped(library: ctypes.CDLL) -> None:
    """A hundred cores: 64 are taken, 36 are told."""
    _, facts = read(library, madt(*(x2apic(i) for i in range(100))))
    assert (facts.cpu_count, facts.cpu_skipped) == (64, 36)


def test_fadt_of_both_generations(library: ctypes.CDLL) -> None:
    """The long table names a reset register; the one of ACPI 1.0 has ports only."""
    results, new = read(library, fadt())
    assert results == [True]
    assert (new.reset.address, new.reset.space, new.reset_value) == (0xCF9, 1, 0x0F)
    assert (new.pm1a_event.address, new.pm1_event_bytes) == (0x600, 4)
    assert new.pm1b_event.address == 0
    assert new.has_power_button
    assert (new.pm1a_control.address, new.pm_timer.address) == (0x604, 0x608)
    assert (new.pm_timer_32_bit, new.smi_command, new.acpi_enable) == (True, 0xB2, 0xF1)
    results, old = read(library, fadt(116))
    assert results == [True]
    assert (old.reset.address, old.dsdt_address) == (0, 0x7FE01000)


def test_wide_registers_win(library: ctypes.CDLL) -> None:
    """Where a 64-bit register is given, it is taken instead of the port."""
    body = bytearray(fadt()[36:])
    struct.pack_into("<Q", body, 140 - 36, 0x1_2345_6000)
    body[160 - 36 : 172 - 36] = gas(1, 0x1880)
    body[208 - 36 : 220 - 36] = gas(0, 0xFED0_1000)
    _, facts = read(library, table("FACP", bytes(body)))
    assert facts.dsdt_address == 0x1_2345_6000
    assert (facts.pm1b_event.address, facts.pm1b_event.space) == (0x1880, 1)
    assert (facts.pm_timer.address, facts.pm_timer.space) == (0xFED01000, 0)


def test_hpet_and_configuration_space(library: ctypes.CDLL) -> None:
    """The HPET's address and segment 0 of PCI Express; other segments are passed over."""
    hpet = table("HPET", struct.pack("<I", 0x8086A201) + gas(0, 0xFED00000) + bytes(4))
    spaces = struct.pack("<QHBBI", 0x1000, 1, 0, 255, 0) + struct.pack(
        "<QHBBI", 0xE0000000, 0, 0, 127, 0
    )
    results, facts = read(library, hpet, table("MCFG", bytes(8) + spaces))
    assert results == [True, True]
    assert facts.hpet_address == 0xFED00000
    assert (facts.ecam_address, facts.ecam_last_bus) == (0xE0000000, 127)


@pytest.mark.parametrize(
    ("aml", "types"),
    [
        (b"\x08_S5_\x12\x06\x04\x00\x00\x00\x00", (0, 0)),
        (b"\x08\\_S5_\x12\x0a\x04\x0a\x05\x0a\x07\x00\x00", (5, 7)),
        (b"\x08_S5_\x12\x46\x00\x04\x01\x0a\x03", (1, 3)),
        (b"\x08_S5_\x13\x06\x04\x00\x00", None),
        (b"x_S5_\x12\x06\x04\x00\x00", None),
        (b"\x08_S5_\x12\xc6", None),
        (b"\x08_S5_", None),
        (b"\x08_S5_\x12\x06\x04\x0a", None),
    ],
)
def test_power_off_is_found_in_the_dsdt(
    library: ctypes.CDLL, aml: bytes, types: tuple[int, int] | None
) -> None:
    r"""\_S5's two numbers in every coding of small constants; anything else is no power-off."""
    _, facts = read(library, table("DSDT", b"\x10\x20ABC" + aml))
    assert (facts.s5_type_a, facts.s5_type_b) == types if types else not facts.has_s5


def test_root_pointer(library: ctypes.CDLL) -> None:
    """Old and new root pointers; a wrong checksum makes the old fields count, or none."""
    old = with_checksum(struct.pack("<8sB6sBI", b"RSD PTR ", 0, b"DUCK  ", 2, 0x1000), 8)
    new = with_checksum(old + struct.pack("<IQI", 36, 0x1_0000_2000, 0), 32)

    def root(data: bytes) -> tuple[bool, int, int]:
        xsdt, rsdt = ctypes.c_uint64(), ctypes.c_uint64()
        found = library.acpi_read_root(
            data, ctypes.c_size_t(len(data)), ctypes.byref(xsdt), ctypes.byref(rsdt)
        )
        return found, xsdt.value, rsdt.value

    assert root(new) == (True, 0x1_0000_2000, 0x1000)
    assert root(new[:-1] + b"\x01") == (True, 0, 0x1000)
    assert root(old) == (True, 0, 0x1000)
    assert root(b"X" + new[1:])[0] is False
    assert root(new[:19])[0] is False


def test_broken_tables_are_refused(library: ctypes.CDLL) -> None:
    """Wrong checksum, too short, an entry of no length, an entry beyond the end."""
    good = madt(lapic(0))
    broken = [
        good[:-1] + bytes([good[-1] ^ 1]),
        good[:35],
        table("APIC", b"\0" * 4),
        madt(b"\x00\x00" + bytes(6)),
        madt(b"\x00\x30" + bytes(6)),
        table("HPET", b"\0" * 8),
        table("FACP", bytes(60)),
    ]
    assert read(library, *broken)[0] == [False] * len(broken)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_bytes_lead_outside_of_the_table(tmp_path: Path, seed: int) -> None:
    """A hundred thousand mutated and random tables under the address sanitizer."""
    program = duckos_host.build_program(tmp_path, "fuzz_tables", DUCKOS / "acpi/tables.c")
    assert duckos_host.run_program(program, str(seed), "100000").startswith("read ")
