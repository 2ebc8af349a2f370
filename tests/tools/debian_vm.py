"""One Debian machine in QEMU (TCG): debian_image's disk, an emulated Intel IOMMU, ssh on loopback.

Ports: management (user-mode network), two ports in IOMMU groups of their own, and one that shares
its group with another device, behind a PCI bridge. On loopback, ``port`` leads to ssh (TCP) and to
a duckd (UDP).
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from pathlib import Path

from debian_image import MANAGEMENT_MAC, debian_image

from duckctl.process import die_with_parent

MEMORY_MIB = 1024
DUCK_PORT = 7211
BOOT_S_MAX = 240.0
BOOTS_MAX = 5
PORTS = ("0000:00:11.0", "0000:00:12.0")
SHARED_PORT = "0000:02:01.0"


def free_port() -> int:
    """A TCP port of loopback that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def qemu_command(disk: Path, port: int, log: Path) -> list[str]:
    # TCG: where tests run there is no KVM. Not restrict=on: it drops answers to forwarded UDP.
    forward = f",hostfwd=udp:127.0.0.1:{port}-:{DUCK_PORT}"
    words = f"""
        qemu-system-x86_64 -machine q35,accel=tcg -cpu max -smp 2 -m {MEMORY_MIB} -no-reboot
        -nodefaults -display none -serial file:{log} -device intel-iommu,intremap=off
        -drive file={disk},format=raw,cache=unsafe,if=none,id=disk
        -device virtio-blk-pci,drive=disk,addr=0xf
        -netdev user,id=m,hostfwd=tcp:127.0.0.1:{port}-:22{forward}
        -device virtio-net-pci,netdev=m,mac={MANAGEMENT_MAC},addr=0x10,romfile=
        -device pcie-root-port,id=root,chassis=9,addr=0x13
        -device pcie-pci-bridge,id=bridge,bus=root
        -device virtio-rng-pci,bus=bridge,addr=2
        """.split()
    for number, place in ((1, "addr=0x11"), (2, "addr=0x12"), (3, "bus=bridge,addr=1")):
        mac = f"52:54:00:d0:0{number}:01"
        iommu = "" if number == 3 else "disable-legacy=on,iommu_platform=on,"
        words += ["-netdev", f"hubport,hubid={number},id=h{number}", "-device"]
        words += [f"virtio-net-pci,netdev=h{number},mac={mac},{iommu}romfile=,{place}"]
    return words


class DebianVm:
    """A running machine. Use as a context: it ends, by its pid, however the test does.

    When it restarts, QEMU ends and is started again: GRUB hangs in its heap after a warm reset of
    this emulated machine.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        image, self.key = debian_image()
        self.port = free_port()
        self.log = folder / "serial.log"
        disk = folder / "disk.raw"
        subprocess.run(["cp", "--sparse=always", str(image), str(disk)], check=True)
        self._command = qemu_command(disk, self.port, self.log)
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._power = threading.Thread(target=self._keep_on, daemon=True)
        self._power.start()

    def _keep_on(self) -> None:
        with (self.folder / "qemu.log").open("ab") as log:
            for _ in range(BOOTS_MAX):
                if self._closing.is_set():
                    return
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    preexec_fn=die_with_parent,
                )
                if self._process.wait() != 0:
                    return

    def __enter__(self) -> DebianVm:
        deadline = time.monotonic() + BOOT_S_MAX
        while self.ssh("true", timeout_s=15, check=False) is None:
            if not self._power.is_alive() or time.monotonic() > deadline:
                self.__exit__()
                said = (self.folder / "qemu.log").read_text() + self.log.read_text()[-2000:]
                raise RuntimeError(f"the machine does not answer: {said}")
            time.sleep(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        while self._power.is_alive():
            if self._process is not None:
                self._process.kill()
            self._power.join(0.2)
        (self.folder / "disk.raw").unlink()

    def ssh(self, command: str, timeout_s: float = 120, check: bool = True) -> str | None:
        """What a command prints; None if it failed and that is not checked."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": "10",
            "IdentitiesOnly": "yes",
            "LogLevel": "ERROR",
            "StrictHostKeyChecking": "accept-new",
            "UserKnownHostsFile": str(self.folder / "ssh_known_hosts"),
        }
        words = ["ssh", "-i", str(self.key), "-p", str(self.port)]
        words += [f"-o{name}={value}" for name, value in options.items()]
        try:
            done = subprocess.run(
                [*words, "root@127.0.0.1", command],
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            if check:
                raise
            return None
        if done.returncode != 0:
            if check:
                raise RuntimeError(f"{command!r} failed: {done.stdout}{done.stderr}")
            return None
        return done.stdout

    def say(self, command: str) -> str:
        """What a command prints, without the last line end."""
        return (self.ssh(command) or "").strip()
