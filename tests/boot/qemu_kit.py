"""Guests of QEMU (TCG) on the taps of a test network; serial output in a file."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from netns_kit import Net

OVMF = (Path("/usr/share/OVMF/OVMF_CODE_4M.fd"), Path("/usr/share/OVMF/OVMF_VARS_4M.fd"))
# Keys that Debian's OVMF has enrolled for tests (its passphrase is no secret).
SECURE_OVMF = (
    Path("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd"),
    Path("/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd"),
)
SNAKEOIL_KEY = Path("/usr/share/ovmf/PkKek-1-snakeoil.key")
SNAKEOIL_CERTIFICATE = Path("/usr/share/ovmf/PkKek-1-snakeoil.pem")
# OVMF tries PXE on IPv6 first, a minute per try, and HTTP last; these switch stacks off.
NO_IPV6 = ("-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n")
ONLY_HTTP = (*NO_IPV6, "-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n")


@dataclass
class Guest:
    """A guest that runs."""

    process: subprocess.Popen[bytes]
    serial: Path
    started: float

    def text(self) -> str:
        return self.serial.read_text(errors="replace") if self.serial.exists() else ""

    def wait_for(self, wanted: str, timeout_s: float) -> float:
        """Seconds from the start until the serial line said it."""
        deadline = time.monotonic() + timeout_s
        while wanted not in self.text():
            assert self.process.poll() is None, f"the guest ended:\n{self.text()[-2000:]}"
            if time.monotonic() > deadline:
                raise AssertionError(f"no '{wanted}' in {timeout_s} s:\n{self.text()[-2000:]}")
            time.sleep(0.05)
        return time.monotonic() - self.started


@contextmanager
def guest(
    net: Net, folder: Path, mac: str, words: Sequence[str], domain: int = 0, memory_mib: int = 512,
    model: str = "virtio-net-pci",
) -> Iterator[Guest]:  # fmt: skip
    """A guest with one card on a tap of ``domain``; ended by its pid whatever happens."""
    tap = f"t{mac.replace(':', '')[-6:]}"
    net.add_tap(tap, domain)
    serial = folder / f"{tap}.log"
    command = net.run_in(net.box, [
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1",
        "-m", str(memory_mib), "-display", "none", "-no-reboot", "-nodefaults",
        "-serial", f"file:{serial}", "-device", "virtio-rng-pci",
        "-netdev", f"tap,id=n,ifname={tap},script=no,downscript=no",
        "-device", f"{model},netdev=n,mac={mac}", *words,
    ])  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield Guest(process, serial, time.monotonic())
    finally:
        process.kill()
        process.wait()


def ovmf(folder: Path) -> list[str]:
    """Flash of a UEFI guest; its variables begin empty."""
    code, variables = OVMF
    own = folder / "vars.fd"
    shutil.copy(variables, own)
    return [
        "-machine", "q35",
        "-drive", f"if=pflash,format=raw,readonly=on,file={code}",
        "-drive", f"if=pflash,format=raw,file={own}",
    ]  # fmt: skip


def secure_ovmf(folder: Path) -> list[str]:
    """The same with Secure Boot on and the snakeoil keys enrolled."""
    code, variables = SECURE_OVMF
    own = folder / "secure-vars.fd"
    shutil.copy(variables, own)
    return [
        "-machine", "q35,smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on",
        "-global", "ICH9-LPC.disable_s3=1",
        "-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={code}",
        "-drive", f"if=pflash,format=raw,unit=1,file={own}",
    ]  # fmt: skip


def snakeoil_key(folder: Path) -> Path:
    """The private key without its passphrase, as sbsign wants it."""
    plain = folder / "snakeoil.key"
    subprocess.run(
        ["openssl", "rsa", "-in", str(SNAKEOIL_KEY), "-passin", "pass:snakeoil", "-out",
         str(plain)], check=True, capture_output=True,
    )  # fmt: skip
    return plain
