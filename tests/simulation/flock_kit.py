"""A flock of simulated boxes behind real network boot: namespaces, inventory, images, commands.

One host namespace; per domain a veth pair into a namespace of its own, in which all addresses of
the domain are local (so the kernel answers ARP for every box), and one flock process.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from duckctl.image.duckos import build_duckos
from duckctl.image.fleet_public import public_path, read_public
from duckctl.inventory import load_inventory
from duckctl.process import descendants

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PROGRAMS = ("ip", "dnsmasq", "gcc")
PARTS = ("flock", "flock_dhcp", "flock_fetch", "flock_platform", "flock_control")
FLAGS = (
    *("-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-Wconversion"),
    *("-Wshadow", "-Wvla", "-Wstrict-prototypes", "-Wmissing-prototypes"),
)
ARCHS = (0, 7, 9, 16)  # BIOS, both codes of UEFI, UEFI HTTP boot
START_S = 20.0
DOMAIN = """\
        domain{d}:
          vars: {{domain_subnet: 10.77.{net}.0/23, domain_host_address: 10.77.{net}.1}}
          hosts:
"""
DUCK = '            {name}: {{duck_mac: "{mac}", duck_address: {address}}}\n'


def require_programs() -> None:
    """Skips where the simulation cannot run, and says what is missing."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")


def build_flock(folder: Path) -> Path:
    """Compiles the simulator against the core's own sources."""
    program = folder / "flock"
    sources = [HERE / f"{part}.c" for part in PARTS]
    sources += sorted((ROOT / "images/core").glob("*.c")) + sorted(
        (ROOT / "kernels/wire").glob("*.c")
    )
    includes = [f"-I{ROOT / p}" for p in ("images/core", "kernels/include", "kernels/wire")]
    words: list[str | Path] = [
        "gcc",
        *FLAGS,
        *includes,
        f"-I{HERE}",
        *sources,
        "-lbearssl",
        "-o",
        program,
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


@dataclass(frozen=True)
class Count:
    """What one box has been through."""

    boots: int
    switched: int
    obeyed: int  # REBOOTs
    phase: str


@dataclass
class Finished:
    """A command that has ended. ``peak_bytes``: of it and all that it started, at once."""

    code: int
    out: str
    err: str
    seconds: float
    peak_bytes: int

    @property
    def document(self) -> dict[str, Any]:
        """What was printed as JSON."""
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed


@dataclass
class Running:
    """A command that was started."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    begin_s: float

    def check(self, timeout_s: float) -> None:
        """Fails, with what it said, when it has ended too early or takes too long."""
        took_s = time.monotonic() - self.begin_s
        assert took_s < timeout_s, self.err.read_text()[-3000:]

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it: to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """kill -9 to the whole group: the command and what it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


@dataclass
class Flock:
    """The running simulation."""

    folder: Path
    program: Path
    ducks: int
    domains: int
    switched: bool  # the boxes have a power switch in the inventory
    firmware_ms: int = 300
    start_ms: int = 200
    strangers: int = 0  # boxes of domain 0 that the inventory does not name
    tag: str = field(default_factory=lambda: f"fl{secrets.token_hex(3)}")
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def inventory(self) -> Path:
        return self.folder / "flock.yml"

    @property
    def host(self) -> str:
        return f"{self.tag}-h"

    def control(self, domain: int) -> Path:
        return self.folder / f"control{domain}"

    def name(self, index: int) -> str:
        return f"duck{index + 1:04}"

    def stranger(self, number: int) -> str:
        """The name that a box of nobody would get, in domain 0."""
        first = -(-self.ducks // self.domains) * self.domains
        return self.name(first + number * self.domains)

    def domain_of(self, name: str) -> int:
        return (int(name.removeprefix("duck")) - 1) % self.domains

    # ---- making it ------------------------------------------------------------------------------

    def write(self) -> None:
        """The inventory and the flocks' lists of boxes."""
        ask = f"{self.program} ask {self.folder}/control"
        text = (
            "all:\n  vars: {fleet_name: flock, fleet_key_file: fleet.key}\n  children:\n"
            "    ducks:\n      vars:\n        duck_image: duckos\n        duck_identity: per_boot\n"
            "        duck_cores: 4\n"
            "        duck_memory_gib: 32\n        duck_link_mbps: 2500\n      children:\n"
        )
        for d in range(self.domains):
            text += DOMAIN.format(d=d, net=2 * d)
            if self.switched:
                power = {verb: f"{ask}{d} {verb} {{duck}}" for verb in ("on", "off", "status")}
                options = ", ".join(f'{verb}: "{words}"' for verb, words in power.items())
                text = text.replace(
                    f"domain_host_address: 10.77.{2 * d}.1}}",
                    f"domain_host_address: 10.77.{2 * d}.1,\n                 "
                    f"duck_power: [{{backend: reboot}}, {{backend: command, {options}}}]}}",
                )
            boxes = []
            for index in range(d, self.ducks, self.domains):
                place = index // self.domains + 10
                mac = f"a8:b8:e0:77:{index >> 8:02x}:{index & 255:02x}"
                address = f"10.77.{2 * d + place // 256}.{place % 256}"
                text += DUCK.format(name=self.name(index), mac=mac, address=address)
                boxes.append(f"{self.name(index)} {mac} {ARCHS[index // self.domains % 4]}")
            if d == 0:
                boxes += [f"{self.stranger(n)} {stranger_mac(n)} 7" for n in range(self.strangers)]
            (self.folder / f"boxes{d}").write_text("\n".join(boxes) + "\n")
        self.inventory.write_text(text)

    def build_image(self) -> None:
        """The real duckos image with this fleet's public key: the boxes read it from there."""
        fleet = load_inventory(self.inventory)
        build_duckos(self.folder, read_public(public_path(fleet.key_file)))

    def connect(self) -> None:
        """The namespaces."""
        _ip("netns", "add", self.host)
        _ip("-n", self.host, "link", "set", "lo", "up")
        for d in range(self.domains):
            space, nic, net = f"{self.tag}-w{d}", f"nic{d}", f"10.77.{2 * d}.0/23"
            _ip("netns", "add", space)
            _ip("-n", self.host, "link", "add", nic, "type", "veth", "peer", "eth0", "netns", space)
            _ip("-n", self.host, "addr", "add", f"10.77.{2 * d}.1/23", "brd", "+", "dev", nic)
            _ip("-n", self.host, "link", "set", nic, "up")
            for link in ("lo", "eth0"):
                _ip("-n", space, "link", "set", link, "up")
            _ip("-n", space, "route", "add", net, "dev", "eth0")
            _ip("-n", space, "route", "add", "local", net, "dev", "lo")
            # The host's own address is not ours.
            _ip("-n", space, "route", "add", f"10.77.{2 * d}.1/32", "dev", "eth0")

    def start_boot_service(self) -> None:
        """dnsmasq and our HTTP server, as a person would start them."""
        self._start(self.host, self.duckctl("boot", "serve"), "serving")

    def start_boxes(self, on: bool) -> None:
        """One flock per domain."""
        for d in range(self.domains):
            words = [
                *(str(self.program), "run", "eth0", str(self.folder / f"boxes{d}")),
                *(str(self.control(d)), str(self.firmware_ms), str(self.start_ms)),
                *(["on"] if on else []),
            ]
            self._start(f"{self.tag}-w{d}", words, "flock ready")

    def _start(self, space: str, words: Sequence[str], ready: str) -> None:
        log = self.folder / f"log{len(self.processes)}"
        with log.open("w") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", space, *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        give_up = time.monotonic() + START_S
        while ready not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up, log.read_text()
            time.sleep(0.02)

    def close(self) -> None:
        """Ends what was started, the last first, and removes the namespaces."""
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes):
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait(10)
        for space in [f"{self.tag}-w{d}" for d in range(self.domains)] + [self.host]:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    # ---- using it -------------------------------------------------------------------------------

    def duckctl(self, *words: str) -> list[str]:
        """The arguments of a command on this fleet."""
        return [sys.executable, "-m", "duckctl", *words, "--inventory", str(self.inventory)]

    def start_run(self, *words: str) -> Running:
        """A command in the host namespace, in a process group of its own."""
        number = len(list(self.folder.glob("out*")))
        out, err = self.folder / f"out{number}", self.folder / f"err{number}"
        with out.open("w") as out_file, err.open("w") as err_file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.host, *self.duckctl(*words)],
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
            )
        return Running(process, out, err, time.monotonic())

    def await_words(self, running: Running, words: str, timeout_s: float) -> None:
        """Until a run has said something (stderr)."""
        while words not in running.err.read_text():
            running.check(timeout_s)
            time.sleep(0.02)

    def finish_run(self, running: Running, timeout_s: float) -> Finished:
        """A run to its end, with the most memory that it and its children used."""
        peak = 0
        try:
            while running.process.poll() is None:
                running.check(timeout_s)
                peak = max(peak, _resident_bytes(running.process.pid))
                time.sleep(0.2)
        finally:
            running.kill()
        seconds = time.monotonic() - running.begin_s
        out, err = running.out.read_text(), running.err.read_text()
        return Finished(running.process.returncode, out, err, seconds, peak)

    def run(self, *words: str, timeout_s: float = 240.0) -> Finished:
        """A command from start to end."""
        return self.finish_run(self.start_run(*words), timeout_s)

    def ask(self, domain: int, *words: str) -> str:
        words = (str(self.program), "ask", str(self.control(domain)), *words)
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    def tell(self, name: str, verb: str, *more: str) -> None:
        """Does something to a box."""
        self.ask(self.domain_of(name), verb, name, *more)

    def counts(self) -> dict[str, Count]:
        """What all boxes have been through."""
        found = {}
        for d in range(self.domains):
            for line in self.ask(d, "count").splitlines():
                if line.strip():
                    name, boots, switched, obeyed, phase = line.split()
                    found[name] = Count(int(boots), int(switched), int(obeyed), phase)
        return dict(sorted(found.items()))


@contextmanager
def running_flock(flock: Flock, on: bool) -> Iterator[Flock]:
    """The whole simulation; ``on``: the boxes are switched on at the start."""
    try:
        subprocess.run(
            [sys.executable, "-m", "duckctl", "init", "--fleet-dir", str(flock.folder)],
            check=True,
            capture_output=True,
        )
        flock.write()
        flock.build_image()
        flock.connect()
        flock.start_boot_service()
        flock.start_boxes(on)
        yield flock
    finally:
        flock.close()


def stranger_mac(number: int) -> str:
    return f"a8:b8:e0:99:00:{number:02x}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _resident_bytes(pid: int) -> int:
    """Resident memory of a process and all below it."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for each in [pid, *(child.pid for child in descendants(pid))]:
        with suppress(OSError, IndexError):
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * page
    return total
