"""duckos boots in QEMU in every way there is, with 1 and 4 cores and 64 MB to 16 GB."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path

import pytest
from boot_guest import OVMF, UP, Guest

from duckctl.native import native_path


@pytest.fixture(scope="module")
def image() -> Path:
    return native_path("duckos.img")


def changed(image: Path, folder: Path, *places: int) -> Path:
    """A copy that some loaders do not recognise: zeros at ``places``."""
    data = bytearray(image.read_bytes())
    for place in places:
        data[place : place + 2] = bytes(2)
    target = folder / "changed.img"
    target.write_bytes(data)
    return target


@pytest.mark.parametrize("cores", [1, 4])
def test_kernel_boot_with_cores(image: Path, tmp_path: Path, cores: int) -> None:
    """All cores run; temperature and clock, which QEMU has not, are said to be missing."""
    with Guest(tmp_path, "-kernel", image, cores=cores) as guest:
        guest.wait_for(UP)
        assert f"cpu: {cores} cores run" in guest.lines
        assert "cpu: clock not controllable; no temperature sensor" in guest.lines
        guest.wait_for("AVX2 FMA F16C")


@pytest.mark.parametrize(
    ("memory", "window"), [("64M", 50), ("1G", 970), ("4G", 4040), ("16G", 16320)]
)
def test_kernel_boot_with_memory(image: Path, tmp_path: Path, memory: str, window: int) -> None:
    """Guests of all sizes; q35 puts its PCI hole at 2 GiB, so that large ones have two parts."""
    with Guest(tmp_path, "-M", "q35", "-kernel", image, memory=memory) as guest:
        guest.wait_for(UP)
        assert int(guest.wait_for(r"window (\d+) MB")[1]) >= window


def test_kernel_boot_on_a_cpu_without_avx_and_large_pages(image: Path, tmp_path: Path) -> None:
    """The oldest x86-64 boots as well, and says what it has not."""
    with Guest(tmp_path, "-kernel", image, cpu="qemu64", cores=2, memory="4G") as guest:
        guest.wait_for(UP)
        guest.wait_for("no AVX: kernels that need it will be refused")
        guest.wait_for("2 MiB pages")


@pytest.mark.parametrize(
    ("machine", "source"),
    [
        (("-M", "pc"), "HPET"),
        (("-M", "pc,hpet=off"), "ACPI timer"),
        (("-no-acpi", "-M", "pc,hpet=off"), "PIT"),
    ],
)
def test_the_clock_is_measured_against_what_is_there(
    image: Path, tmp_path: Path, machine: tuple[str, ...], source: str
) -> None:
    """HPET, ACPI timer and PIT find the same TSC frequency, within 3 %."""
    with Guest(tmp_path, "-kernel", image, *machine) as guest:
        guest.wait_for(UP)
        measured = guest.wait_for(rf"timer: TSC (\d+) MHz by {source}")
    with Guest(tmp_path, "-kernel", image, "-M", "q35") as other:
        known = other.wait_for(r"timer: TSC (\d+) MHz by HPET")
    assert abs(int(measured[1]) / int(known[1]) - 1) < 0.03


def test_too_little_memory_is_said(image: Path, tmp_path: Path) -> None:
    """8 MB are not enough for anything: the serial line says so, and nothing runs."""
    with Guest(tmp_path, "-kernel", image, memory="8M") as guest:
        guest.wait_for("duckos can't start: no 8 MiB of free memory in one piece below 4 GiB")


def test_the_command_line_is_obeyed(image: Path, tmp_path: Path) -> None:
    """Options of the loader arrive; one that does not exist is named."""
    line = "cores=2 watchdog=off nonsense=1"
    with Guest(tmp_path, "-kernel", image, "-append", line, cores=4) as guest:
        guest.wait_for(UP)
        assert "cpu: 2 cores run" in guest.lines
        assert "watchdog: off" in guest.lines
        assert "options: ignored: nonsense=1" in guest.lines


def test_the_config_block_is_obeyed(image: Path, tmp_path: Path) -> None:
    """What stands in the block of the file counts, whoever loads it."""
    data = bytearray(image.read_bytes())
    text = b"version=7.7\nbuild=abc123\ncores=1\n"
    data[0x2008 : 0x2008 + len(text)] = text
    (tmp_path / "own.img").write_bytes(data)
    with Guest(tmp_path, "-kernel", tmp_path / "own.img", cores=2) as guest:
        guest.wait_for(UP)
        assert guest.lines[0].startswith("duckos 7.7 build abc123, started by BIOS at ")
        assert "cpu: 1 cores run" in guest.lines


def test_multiboot(image: Path, tmp_path: Path) -> None:
    """Without its Linux header the file is loaded as a multiboot kernel."""
    own = changed(image, tmp_path, 0x202, 0x204)
    with Guest(tmp_path, "-kernel", own, "-append", "cores=1", cores=2) as guest:
        guest.wait_for(UP)
        guest.wait_for("started by multiboot at 0xff000")
        assert "cpu: 1 cores run" in guest.lines


@pytest.mark.slow
def test_raw_network_boot_program(image: Path, tmp_path: Path) -> None:
    """Without any header but its first bytes, a boot ROM loads it to 7C00h and jumps there."""
    multiboot = image.read_bytes().index(struct.pack("<I", 0x1BADB002))
    own = changed(image, tmp_path, 0x202, 0x204, 0x1FE, multiboot, multiboot + 2)
    network = f"user,id=n,tftp={tmp_path},bootfile={own.name}"
    arguments = ("-netdev", network, "-device", "e1000e,netdev=n", "-boot", "n")
    with Guest(tmp_path, *arguments, network=True) as guest:
        guest.wait_for(UP)
        guest.wait_for("started by BIOS at 0xff000")


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 4])
def test_uefi(image: Path, tmp_path: Path, cores: int) -> None:
    """The same file as a UEFI application, wherever the firmware puts it."""
    if not OVMF.exists():
        pytest.skip(f"{OVMF} is not there (package ovmf)")
    with Guest(tmp_path, "-bios", OVMF, "-kernel", image, cores=cores, memory="256M") as guest:
        guest.wait_for(UP, 180)
        guest.wait_for("started by UEFI at 0x")
        assert f"cpu: {cores} cores run" in guest.lines
        assert int(guest.wait_for(r"window (\d+) MB")[1]) >= 200


@pytest.mark.parametrize("machine", ["pc", "q35"])
def test_a_panic_tells_everything_and_resets(image: Path, tmp_path: Path, machine: str) -> None:
    """An NMI is a panic: registers, back-trace, then reset by what ACPI names (q35) or the
    chipset (pc); with -no-reboot a reset ends QEMU."""
    arguments = ("-M", machine, "-kernel", image, "-append", "panic_seconds=0")
    with Guest(tmp_path, *arguments, cores=2) as guest:
        guest.wait_for(UP)
        guest.monitor("nmi")
        guest.wait_for(r"^PANIC on core \d: NMI \(vector 2, error 0\) at ffffffff8")
        for word in ("rax", "r8", "r12", "flags"):
            guest.wait_for(rf"^panic: .*\b{word} [0-9a-f]+")
        guest.wait_for(r"^panic: at ffffffff8[0-9a-f]+ \w+\+\d+")
        guest.wait_for("^panic: reboot in 0 s")
        assert guest.exit_code() == 0


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["pc", "q35"])
def test_the_power_button_switches_off(image: Path, tmp_path: Path, machine: str) -> None:
    """A short press (or a management controller's soft off) is seen within two seconds; power goes
    off by ACPI, which ends QEMU even though it was told not to end at a reset."""
    with Guest(tmp_path, "-M", machine, "-no-shutdown", "-kernel", image) as guest:
        guest.wait_for(UP)
        guest.monitor("system_powerdown")
        guest.wait_for("^power button: off", 15)
        end = time.monotonic() + 20
        while "shutdown" not in guest.monitor("info status") and time.monotonic() < end:
            time.sleep(0.1)
        assert "paused (shutdown)" in guest.monitor("info status")


@pytest.mark.slow
@pytest.mark.parametrize("nic", ["virtio-net-pci", "e1000e"])
def test_a_panic_tells_the_host(image: Path, tmp_path: Path, nic: str) -> None:
    """One datagram to the host's port 7212 with the end of the log: what broke, and where."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        try:
            host.bind(("127.0.0.1", 7212))
        except OSError:
            pytest.skip("UDP port 7212 of this machine is in use")
        host.settimeout(20)
        line = "host=10.0.2.2 panic_seconds=1 poll=hlt"  # QEMU's own network: we are 10.0.2.2
        arguments = ("-kernel", image, "-append", line)
        network = ("-netdev", "user,id=n", "-device", f"{nic},netdev=n")
        with Guest(tmp_path, *arguments, *network, network=True) as guest:
            guest.wait_for("^duckos ready ")
            guest.monitor("nmi")
            text = host.recv(65536).decode()
            assert guest.exit_code() == 0
        assert "\nPANIC on core 0: NMI (vector 2, error 0) at ffffffff8" in text
        assert "\npanic: at ffffffff8" in text
        assert len(text) <= 1200
