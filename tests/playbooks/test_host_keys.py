"""Host keys, with a real sshd on loopback: pinned at first contact, a changed one is refused."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from duckctl.playbook import PlaybookResult, run, run_playbook
from duckctl.process import command_line

pytest.importorskip("ansible_runner", reason="ansible-runner is not installed")
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(SSHD).exists(), reason="needs openssh-server"),
    pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs openssh-client"),
]

INVENTORY = """\
all:
  vars: {{fleet_name: test}}
  children:
    gpu_host:
      hosts:
        there:
          ansible_host: 127.0.0.1
          ansible_port: {port}
          ansible_user: {user}
          ansible_ssh_private_key_file: {folder}/user
          ansible_python_interpreter: {python}
    ducks:
      children:
        domain1:
          vars: {{domain_subnet: 127.21.1.0/24, domain_host_address: 127.21.1.1}}
          hosts: {{d01: {{duck_address: 127.21.1.11}}}}
"""
PLAYBOOK = """\
- hosts: gpu_host
  gather_facts: false
  tasks:
    - name: it is reached
      ansible.builtin.command: "true"
      changed_when: false
"""


def make_keys(folder: Path) -> None:
    for name in ("user", "first", "second"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True)


@contextmanager
def sshd(folder: Path, port: int, key: str) -> Iterator[None]:
    """An sshd of this user, with one host key."""
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {
        "HostKey": folder / key,
        "AuthorizedKeysFile": folder / "user.pub",
        "ListenAddress": f"127.0.0.1:{port}",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
    }
    words = [SSHD, "-D", "-e", "-f", "/dev/null"]
    words += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    process = subprocess.Popen(words, stderr=(folder / "sshd.log").open("ab"))
    try:
        wait_for_port(port)
        yield
    finally:
        process.terminate()
        process.wait()


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("sshd does not listen")


def masters(base: Path) -> list[str]:
    """Control masters of ssh that are left of runs below a folder; they name their socket."""
    lines = [
        " ".join(command_line(int(entry.name)))
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
    ]
    return [line for line in lines if f"{base}/" in line and "[mux]" in line]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Keys, and a playbook that only reaches its host."""
    make_keys(tmp_path)
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks/host.yml").write_text(PLAYBOOK)
    monkeypatch.setattr(run, "playbooks_folder", lambda: tmp_path / "playbooks")
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        yield tmp_path


def reach(folder: Path, port: int) -> PlaybookResult:
    fleet = folder / "fleet.yml"
    values = {"user": getpass.getuser(), "folder": folder, "python": sys.executable}
    fleet.write_text(INVENTORY.format(port=port, **values))
    return run_playbook("host", fleet, "gpu_host")


class Shy(threading.Thread):
    """A port that hangs up on its first connections, as an sshd that still starts does; from then
    on it leads to another port."""

    def __init__(self, leads_to: int, refusals: int) -> None:
        super().__init__(daemon=True)
        self.leads_to, self.refusals = leads_to, refusals
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.refusals > 0:
                self.refusals -= 1
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.leads_to))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=(source, target), daemon=True).start()

    @staticmethod
    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_t44_connection_that_is_dropped_at_first(folder: Path) -> None:
    """T44: an sshd that hangs up before its banner (it starts, or has too many) is tried again."""
    port = free_port()
    with sshd(folder, port, "first"):
        shy = Shy(port, 1)
        shy.start()
        done = reach(folder, shy.port)
        shy.listener.close()
    assert (shy.refusals, done.exit_code, done.bad) == (0, 0, ())


def test_t43_changed_host_key(folder: Path) -> None:
    """T43: a host installed anew is refused with ssh's own words, as unreachable, and no ssh master
    outlives a run."""
    port = free_port()
    with sshd(folder, port, "first"):
        assert [reach(folder, port).exit_code for _ in range(2)] == [0, 0]
    assert len((folder / "known_hosts").read_text().splitlines()) == 1
    with sshd(folder, port, "second"):
        refused = reach(folder, port)
    (host,) = refused.bad
    assert (host.status, refused.exit_code) == ("unreachable", 4)
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in host.problem
    assert masters(Path(tempfile.gettempdir())) == []
