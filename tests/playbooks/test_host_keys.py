"""Host keys, with a real sshd on loopback: pinned at first contact, a changed one is refused."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import sys
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


def masters() -> list[str]:
    """Control masters of ssh that are left; they name their socket's folder."""
    lines = [
        " ".join(command_line(int(entry.name)))
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
    ]
    return [line for line in lines if "duckctl-play-" in line and "[mux]" in line]


def test_t43_changed_host_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T43: a host installed anew is refused with ssh's own words, as unreachable, and no ssh master
    outlives a run."""
    make_keys(tmp_path)
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks/host.yml").write_text(PLAYBOOK)
    monkeypatch.setattr(run, "playbooks_folder", lambda: tmp_path / "playbooks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fleet = tmp_path / "fleet.yml"
    text = INVENTORY.format(
        port=port, user=getpass.getuser(), folder=tmp_path, python=sys.executable
    )
    fleet.write_text(text)

    def reach() -> PlaybookResult:
        return run_playbook("host", fleet, "gpu_host")

    with sshd(tmp_path, port, "first"):
        assert [reach().exit_code for _ in range(2)] == [0, 0]
    assert len((tmp_path / "known_hosts").read_text().splitlines()) == 1
    with sshd(tmp_path, port, "second"):
        refused = reach()
    (host,) = refused.bad
    assert (host.status, refused.exit_code) == ("unreachable", 4)
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in host.problem
    assert masters() == []
