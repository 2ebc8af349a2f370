"""One duckos guest under QEMU, started from the image's Linux entry, on QEMU's user network: no
privilege is needed, and the guest's UDP port is a port of this machine's loopback interface."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

import pytest
from duckd_client import KERNEL_REGION, Client
from duckd_crypto import FleetKey

from duckctl.native import native_path

READY_LIMIT_S = 60.0
LOOK_S = 0.02
QEMU = "qemu-system-x86_64"

chosen_image: Path | None = None  # set by pytest --duckos


def image() -> Path:
    return chosen_image or native_path("duckos.img")


def need_qemu() -> None:
    if shutil.which(QEMU) is None:
        pytest.skip(f"{QEMU} is missing (Debian: qemu-system-x86)")


def free_udp_port(address: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


class DuckosGuest:
    """A running guest; ``facts`` are the words of its ready line.

    ``public``: the fleet's public key in hex; without it the guest obeys ``key``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        cores: int = 1,
        memory: str = "128M",
        poll: str = "hlt",
        nic: str = "virtio-net-pci",
        name: str = "d01",
        address: str = "127.0.0.1",
        may_reboot: bool = False,
        public: str = "",
        options: str = "",
    ) -> None:
        self.key = FleetKey()
        self.name = name
        self.port = free_udp_port(address)
        self.serial = folder / f"{name}.serial"
        self.serial.write_bytes(b"")
        words = f"name={name} poll={poll} console=serial {options}"
        words += f" fleet_public={public or self.key.public.hex()}"
        forward = f"hostfwd=udp:{address}:{self.port}-:7211"
        command = [
            *(QEMU, "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"),
            *("-smp", str(cores), "-m", memory, "-nodefaults", "-display", "none"),
            *(() if may_reboot else ("-no-reboot",)),
            *("-serial", f"file:{self.serial}", "-kernel", str(image()), "-append", words),
            *("-netdev", f"user,id=n0,restrict=off,{forward}", "-device", f"{nic},netdev=n0"),
        ]
        self.errors = (folder / f"{name}.qemu").open("wb+")
        self.process = subprocess.Popen(command, stdout=self.errors, stderr=self.errors)
        line = self.wait_for_boot(1)
        self.facts = dict(word.split("=", 1) for word in line.split() if "=" in word)

    def wait_for_boot(self, count: int) -> str:
        """The count-th ready line; fails when the guest ends or is silent for too long."""
        deadline = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < deadline:
            lines = self.serial.read_text(errors="replace").splitlines()
            ready = [line for line in lines if "duckos ready" in line]
            if len(ready) >= count:
                return ready[count - 1]
            assert self.process.poll() is None, self.said()
            time.sleep(LOOK_S)
        raise AssertionError(f"not ready in {READY_LIMIT_S} s: {self.said()}")

    def said(self) -> str:
        self.errors.seek(0)
        return self.serial.read_text(errors="replace")[-4000:] + self.errors.read().decode()

    def client(self, *, domain_session: int = 0) -> Client:
        return Client(self.port, self.key, domain_session=domain_session).hello()

    def serving(self, kernel: bytes, **open_fields: int) -> Client:
        """A client with an open compute session of this kernel."""
        client = self.client(domain_session=open_fields.get("domain_session", 0))
        client.load(KERNEL_REGION, kernel)
        reply = client.open(**open_fields)
        assert reply.status == 0, reply
        return client

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(10.0)
        self.errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
