"""The boot service as a process, and ducks that it boots in QEMU."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from netns_kit import Net
from qemu_kit import Guest

from duckctl.health import probe
from duckctl.image.manifest import ImageManifest
from duckctl.inventory import Fleet
from duckctl.process import wait_until

MAC = "52:54:00:00:00:01"
BOOT_S = 150.0  # TCG on a shared machine; typical are 10 to 45 s


@contextmanager
def serving(net: Net, fleet: Fleet, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`duckctl boot serve` in the host namespace, from its ready line to its end."""
    command = [sys.executable, "-m", "duckctl", "boot", "serve", "--inventory", str(fleet.path),
               "--http-port", "8080", *words]  # fmt: skip
    log = fleet.path.parent / "serve.log"
    with log.open("w") as file:
        process = subprocess.Popen(net.run_in(net.host, command), stderr=file, text=True)
    try:
        ready = wait_until(lambda: "serving network boot" in log.read_text(), 20)
        assert ready, log.read_text()
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(15)


def ask(net: Net, fleet: Fleet, *extra: str) -> dict[str, Any]:
    """What the duck tells to the host's probe."""
    document = probe(fleet, fleet.ducks, 5.0, extra, net.run_in(net.host, []))
    (answer,) = document["ducks"]
    assert answer["error"] is None, answer
    found: dict[str, Any] = answer
    return found


def check_hello(
    net: Net, fleet: Fleet, image: ImageManifest, machine: Guest, platform: str
) -> None:
    """The duck says that it is ready, and answers as what it is."""
    took_s = machine.wait_for(" ready name=", BOOT_S)
    facts = ask(net, fleet)
    assert facts["platform"] == platform
    assert facts["build"] == image.build_hash
    assert facts["mac_address"] == MAC
    sys.stdout.write(f"power-on to ready: {took_s:.1f} s\n")
