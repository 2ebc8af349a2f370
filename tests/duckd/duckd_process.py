"""Real duckd processes and real kernels, compiled by the tests."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from duckd_client import KERNEL_REGION, Client
from duckd_crypto import FleetKey

from duckctl.native import native_path

KERNELS = Path(__file__).parent / "kernels"
ROOT = Path(__file__).resolve().parents[2]
KERNEL_FLAGS = [
    "-std=gnu11",
    "-O1",
    "-g0",
    "-ffreestanding",
    "-fPIE",
    "-fno-stack-protector",
    "-nostdlib",
    "-static-pie",
    "-fcf-protection=none",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wl,--no-dynamic-linker",
    "-Wl,-e,entry",
    "-Wl,-z,noexecstack",
    "-Wl,--build-id=none",
]


chosen_binary: Path | None = None  # set by pytest --duckd


def duckd_binary() -> Path:
    return chosen_binary or native_path("duckd")


def build_kernel(source: Path, target: Path, *defines: str) -> bytes:
    command = ["gcc", *KERNEL_FLAGS, f"-I{ROOT}/kernels/include", *(f"-D{d}" for d in defines)]
    subprocess.run([*command, str(source), "-o", str(target)], check=True)
    return target.read_bytes()


def kernel_builder(folder: Path) -> Callable[..., bytes]:
    """build("echo", "REFUSE_START"): the bytes of a test kernel, compiled once, into `folder`."""
    built: dict[tuple[str, ...], bytes] = {}

    def build(name: str, *defines: str) -> bytes:
        key = (name, *defines)
        if key not in built:
            built[key] = build_kernel(KERNELS / f"{name}.c", folder / f"{len(built)}.elf", *defines)
        return built[key]

    return build


def write_key(folder: Path, key: FleetKey | None = None) -> tuple[Path, FleetKey]:
    """The public key's file, as duckd reads it."""
    key = key or FleetKey()
    path = folder / "fleet.pub"
    path.write_text(f"duck-p256-public:{key.public.hex()}\n")
    path.chmod(0o644)
    return path, key


class DuckProcess:
    """A running duckd on a free port of the loopback interface."""

    def __init__(
        self,
        folder: Path,
        *more: str,
        name: str = "d01",
        cores: int = 1,
        key: FleetKey | None = None,
    ) -> None:
        self.identity_file = folder / f"{name}.identity"
        self.key_file, self.key = write_key(folder, key)
        self.name = name
        command = [str(duckd_binary()), "--name", name]
        if not (more and more[0] == "--listen" and not more[1].startswith("127.")):
            command += ["--listen", "127.0.0.1:0"]
        command += ["--fleet-pub", str(self.key_file), "--cores", str(cores)]
        command += ["--identity-file", str(self.identity_file)]
        self.errors = (folder / f"{name}.stderr").open("wb+")
        self.process = subprocess.Popen(
            [*command, *more], stdout=subprocess.PIPE, stderr=self.errors
        )
        words = self._ready_line().split()
        assert words[:2] == ["duckd", "ready"], words
        self.facts = dict(word.split("=", 1) for word in words[2:])
        self.port = int(self.facts["listen"].split(",")[0].rsplit(":", 1)[1])

    def _ready_line(self) -> str:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], 10.0)
        assert readable, "duckd did not say that it is ready"
        return self.process.stdout.readline().decode()

    @property
    def identity(self) -> X25519PrivateKey:
        """The duck's own key, which only its file tells."""
        digits = self.identity_file.read_text().strip().removeprefix("duck-x25519-private:")
        return X25519PrivateKey.from_private_bytes(bytes.fromhex(digits))

    @property
    def pid(self) -> int:
        return self.process.pid

    def client(self, *, domain_session: int = 0) -> Client:
        return Client(self.port, self.key, domain_session=domain_session).hello()

    def serving(self, kernel: bytes, **open_fields: int) -> Client:
        """A client with an open compute session of this kernel."""
        client = self.client(domain_session=open_fields.get("domain_session", 0))
        client.load(KERNEL_REGION, kernel)
        reply = client.open(**open_fields)
        assert reply.status == 0, reply
        return client

    def children(self) -> list[int]:
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(word) for word in text.split()]

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208

    def resident_kb(self, kind: str = "VmRSS") -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(kind + ":"):
                return int(line.split()[1])
        raise AssertionError(f"no {kind}")

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(10.0)
        self._close()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10.0)
        self._close()

    def _close(self) -> None:
        self.errors.close()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.errors.closed:
            self.stop()
