"""IPMI against a pyghmi BMC that drives a plain QEMU, Redfish against sushy-tools' fake driver."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from power_kit import fleet_with, free_port, ladder_with, password_file

from duckctl.power.backend import Action, PowerBackend, PowerError, PowerState
from duckctl.power.ladder import cycle_duck, power_ladder
from duckctl.process import wait_until

TOOLS = {"ipmitool": "ipmitool", "qemu-system-x86_64": "qemu-system-x86"}
needs_ipmi = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS),
    reason=f"one of {', '.join(TOOLS)} is not installed (Debian: {', '.join(TOOLS.values())})",
)
BMC = """\
import subprocess, sys
from pyghmi.ipmi.bmc import Bmc

MACHINE = ["qemu-system-x86_64", "-accel", "tcg", "-m", "16", "-display", "none", "-nodefaults"]

class Machine(Bmc):
    process = None
    starts = 0

    def get_power_state(self):
        return int(self.process is not None and self.process.poll() is None)

    def power_on(self):
        if not self.get_power_state():
            self.process = subprocess.Popen(MACHINE)
            self.starts += 1
            with open(sys.argv[2], "w") as file:
                file.write(f"{self.process.pid} {self.starts}")
        return 0

    def power_off(self):
        if self.get_power_state():
            self.process.kill()
            self.process.wait()
        return 0

    def power_cycle(self):
        self.power_off()
        return self.power_on()

machine = Machine({"admin": "quack-secret"}, port=int(sys.argv[1]), address="127.0.0.1")
try:
    machine.listen()
finally:
    machine.power_off()
"""


@dataclass(frozen=True)
class BoardController:
    """A running BMC; ``pid_file`` has its QEMU's pid and how often it was started."""

    port: int
    pid_file: Path


def is_bound(port: int) -> bool:
    """True once someone listens on this UDP port (proc_net_udp: local address, hexadecimal)."""
    lines = Path("/proc/net/udp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(f":{port:04X}") for line in lines)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[BoardController]:
    port = free_port(socket.SOCK_DGRAM)
    pid_file = tmp_path / "machine"
    process = subprocess.Popen(
        [sys.executable, "-c", BMC, str(port), str(pid_file)], stderr=subprocess.PIPE
    )
    try:
        assert wait_until(lambda: is_bound(port) or process.poll() is not None, 20)
        assert process.poll() is None, process.stderr.read() if process.stderr else b""
        yield BoardController(port, pid_file)
    finally:
        process.send_signal(2)  # its `finally` ends the QEMU
        process.wait(10)


def ipmi(folder: Path, port: int, user: str = "admin", password: str = "quack-secret") -> str:
    password_file(folder, password)
    return (
        f"{{backend: ipmi, address: 127.0.0.1, port: '{port}', user: {user}, "
        "password_file: bmc.password}"
    )


@needs_ipmi
def test_ipmi_switches_a_real_machine(tmp_path: Path, controller: BoardController) -> None:
    """On, status, off; and a cycle of what is off switches it on."""
    (bmc,) = ladder_with(tmp_path, ipmi(tmp_path, controller.port))
    assert bmc.state() is PowerState.OFF
    bmc.act(Action.ON)
    assert bmc.state() is PowerState.ON
    pid = int(controller.pid_file.read_text().split()[0])
    assert b"qemu-system-x86_64" in Path(f"/proc/{pid}/cmdline").read_bytes()
    bmc.act(Action.OFF)
    assert bmc.state() is PowerState.OFF
    bmc.act(Action.CYCLE)
    assert bmc.state() is PowerState.ON


@pytest.mark.slow
@needs_ipmi
def test_the_ladder_restarts_a_hung_machine_by_its_bmc(
    tmp_path: Path, controller: BoardController
) -> None:
    """A command that switches nothing is tried first; the BMC then starts a new QEMU."""
    useless = "{backend: command, on: 'true', off: 'true'}"
    fleet = fleet_with(tmp_path, f"[{useless}, {ipmi(tmp_path, controller.port)}]")
    ladder = power_ladder(fleet.ducks[0], fleet)
    ladder[1].act(Action.ON)
    before = controller.pid_file.read_text()
    outcome = cycle_duck(
        "duck01", ladder, lambda: controller.pid_file.read_text() != before, wait_s=0.5
    )
    assert outcome.came_back
    assert [step.backend for step in outcome.steps] == ["command", "command", "ipmi"]
    assert controller.pid_file.read_text().split()[1] == "2"


@needs_ipmi
def test_ipmi_with_a_wrong_password_is_named(tmp_path: Path, controller: BoardController) -> None:
    """The BMC's refusal comes through; the password does not."""
    (bmc,) = ladder_with(tmp_path, ipmi(tmp_path, controller.port, password="not-this"))
    with pytest.raises(PowerError) as caught:
        bmc.state()
    assert "'ipmitool' ended with exit code 1" in caught.value.message
    assert "not-this" not in caught.value.message


def test_a_password_file_is_nobody_elses(tmp_path: Path) -> None:
    """Others may not read it, it may not be missing, empty or binary: each has its message."""
    (bmc,) = ladder_with(tmp_path, ipmi(tmp_path, 623))
    path = tmp_path / "bmc.password"
    path.chmod(0o644)
    with pytest.raises(PowerError, match="can be read by others"):
        bmc.state()
    path.write_bytes(b"quack\xff\n")
    path.chmod(0o600)
    with pytest.raises(PowerError, match=r"is not UTF-8$"):
        bmc.state()
    path.write_text("")
    with pytest.raises(PowerError, match="is empty"):
        bmc.state()
    path.unlink()
    with pytest.raises(PowerError, match="is no file"):
        bmc.state()


REDFISH_CONFIG = """\
SUSHY_EMULATOR_LISTEN_IP = "127.0.0.1"
SUSHY_EMULATOR_LISTEN_PORT = {port}
SUSHY_EMULATOR_STATE_DIR = "{folder}"
SUSHY_EMULATOR_AUTH_FILE = "{folder}/htpasswd"
SUSHY_EMULATOR_FAKE_SYSTEMS = {systems}
"""
SYSTEM = {
    "uuid": "27946b59-9e44-4fa7-8e91-f3527a1ef094",
    "name": "duck01",
    "power_state": "Off",
    "external_notifier": False,
    "nics": [{"mac": "a8:b8:e0:21:01:0b", "ip": "127.0.0.1"}],
}
OTHER = {**SYSTEM, "uuid": "27946b59-9e44-4fa7-8e91-f3527a1ef095", "name": "duck02"}


def start_redfish(
    folder: Path, systems: list[dict[str, object]]
) -> tuple[subprocess.Popen[bytes], int]:
    """An emulator on a free port; returns when it answers."""
    import bcrypt
    import httpx

    port = free_port()
    hashed = bcrypt.hashpw(b"quack-secret", bcrypt.gensalt(4)).decode()
    (folder / "htpasswd").write_text(f"admin:{hashed}\n")
    config = folder / "redfish.conf"
    config.write_text(REDFISH_CONFIG.format(port=port, folder=folder, systems=repr(systems)))
    program = Path(sys.executable).with_name("sushy-emulator")
    process = subprocess.Popen(
        [program, "--fake", "--config", config],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/redfish/v1/").status_code < 500
        except httpx.HTTPError:
            return process.poll() is not None

    assert wait_until(answers, 30)
    assert process.poll() is None
    return process, port


@pytest.fixture
def redfish(tmp_path: Path) -> Iterator[int]:
    process, port = start_redfish(tmp_path, [dict(SYSTEM)])
    yield port
    process.terminate()
    process.wait(10)


def redfish_power(folder: Path, port: int, more: str = "", user: str = "admin") -> PowerBackend:
    password_file(folder)
    (backend,) = ladder_with(
        folder,
        f"{{backend: redfish, url: 'http://127.0.0.1:{port}', user: {user}, "
        f"password_file: bmc.password{more}}}",
    )
    return backend


def becomes(backend: PowerBackend, state: PowerState) -> bool:
    """The emulator applies a change after 1 to 11 seconds, as hardware does."""
    deadline = time.monotonic() + 15
    while backend.state() is not state:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.slow
def test_redfish_switches_a_system(tmp_path: Path, redfish: int) -> None:
    """On, restart and off, each seen in the system's PowerState."""
    system = redfish_power(tmp_path, redfish)
    assert system.state() is PowerState.OFF
    system.act(Action.CYCLE)  # of what is off: switches on
    assert becomes(system, PowerState.ON)
    system.act(Action.CYCLE)
    assert becomes(system, PowerState.ON)
    system.act(Action.OFF)
    assert becomes(system, PowerState.OFF)


@pytest.mark.slow
def test_redfish_refusals_are_named(tmp_path: Path, redfish: int) -> None:
    """A wrong user, a system that is not there, a port where nobody listens."""
    with pytest.raises(PowerError, match="it refuses user 'nobody'"):
        redfish_power(tmp_path, redfish, user="nobody").state()
    with pytest.raises(PowerError, match="HTTP 404"):
        redfish_power(tmp_path, redfish, ", system: nine").state()
    with pytest.raises(PowerError, match="ConnectError"):
        redfish_power(tmp_path, free_port()).state()


@pytest.mark.slow
def test_redfish_does_not_guess_between_systems(tmp_path: Path) -> None:
    """Two systems behind one address: one must be named."""
    process, port = start_redfish(tmp_path, [dict(SYSTEM), dict(OTHER)])
    try:
        with pytest.raises(PowerError, match="it has 2 systems"):
            redfish_power(tmp_path, port).state()
        named = redfish_power(tmp_path, port, f", system: {OTHER['uuid']}")
        assert named.state() is PowerState.OFF
    finally:
        process.terminate()
        process.wait(10)


def test_a_bmc_is_asked_without_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests carry a password: the proxy of the environment hears nothing of them."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # nobody listens there
    Confused.answers = {f"{SYSTEMS}/1": b'{"PowerState": "On"}'}
    with ThreadingHTTPServer(("127.0.0.1", 0), Confused) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            board = redfish_power(tmp_path, server.server_address[1], more=", system: '1'")
            assert board.state() is PowerState.ON
        finally:
            server.shutdown()


class Confused(BaseHTTPRequestHandler):
    """A board whose firmware answers null where a list or an object is due."""

    answers: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        body = self.answers.get(self.path, b"null")
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing on stderr."""


SYSTEMS = "/redfish/v1/Systems"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({SYSTEMS: b'{"Members": null}'}, "it has 0 systems"),
        ({SYSTEMS: b'{"Members": [null, 7]}'}, "it has 0 systems"),
        ({f"{SYSTEMS}/1": b'{"PowerState": "On", "Actions": null}'}, "no action"),
        ({f"{SYSTEMS}/1": b'{"PowerState": ["On"]}'}, "no action"),
    ],
)
def test_a_confused_board_is_named(
    tmp_path: Path, answers: dict[str, bytes], expected: str
) -> None:
    """Its answer is an error of the board, not of this program."""
    Confused.answers = {SYSTEMS: b'{"Members": [{"@odata.id": "/redfish/v1/Systems/1"}]}'} | answers
    with ThreadingHTTPServer(("127.0.0.1", 0), Confused) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            board = redfish_power(tmp_path, server.server_address[1])
            with pytest.raises(PowerError, match=expected):
                board.act(Action.CYCLE)
            if b"[" in answers.get(f"{SYSTEMS}/1", b""):
                with pytest.raises(PowerError, match="is none of"):
                    board.state()
        finally:
            server.shutdown()
