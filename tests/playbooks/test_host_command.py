"""`duckctl host`: settings, what a person sees, JSON, exit codes; with real, small playbooks."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from duckctl.commands import host
from duckctl.errors import UsageError
from duckctl.playbook import run

pytest.importorskip("ansible_runner", reason="ansible-runner is not installed")

INVENTORY = """\
all:
  vars: {fleet_name: test}
  children:
    gpu_host: {hosts: {here: {ansible_connection: local, ansible_python_interpreter: PYTHON}}}
    ducks:
      children:
        domain1:
          vars: {domain_subnet: 127.21.1.0/24, domain_host_address: 127.21.1.1}
          hosts: {d01: {duck_address: 127.21.1.11}}
"""
SETUP = """\
- name: Host
  hosts: gpu_host
  gather_facts: false
  tasks:
    - name: A file is there
      ansible.builtin.copy:
        content: "{{ words | join(' ') }}\\n"
        dest: "{{ dest }}"
        mode: "0600"
    - name: A restart is due
      ansible.builtin.debug: {msg: Restart the host.}
"""
VERIFY = """\
- hosts: gpu_host
  gather_facts: false
  tasks:
    - name: It is as it should be
      ansible.builtin.assert: {that: 1 == 2, fail_msg: one is not two}
"""


def test_settings() -> None:
    """Values are YAML; a name that is none, and a value that is no YAML, are refused."""
    assert host.read_settings(["a=true", "b=2-6", "c=[x, 1]", "d=", "e=a=b"]) == {
        **{"a": True, "b": "2-6", "c": ["x", 1], "d": None, "e": "a=b"},
    }
    for wrong in ("a", "a-b=1", "=1", "a=[1", "a=!!bool foo"):
        with pytest.raises(UsageError):
            host.read_settings([wrong])


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An inventory of this machine, and playbooks in place of the shipped ones."""
    folder = tmp_path / "playbooks"
    folder.mkdir()
    (folder / "host.yml").write_text(SETUP)
    (folder / "verify.yml").write_text(VERIFY)
    monkeypatch.setattr(run, "playbooks_folder", lambda: folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "fleet.yml"
    path.write_text(INVENTORY.replace("PYTHON", sys.executable))
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        yield path


def invoke(fleet: Path, *words: str) -> Result:
    return CliRunner().invoke(host.app, [words[0], "-i", str(fleet), *words[1:]])


@pytest.mark.slow
def test_setup(fleet: Path, tmp_path: Path) -> None:
    """Check mode shows the difference and leaves nothing; JSON lists the changes with theirs."""
    dest = tmp_path / "made"
    settings = ("--set", f"dest={dest}", "--set", "words=[two, ducks]")
    shown = invoke(fleet, "setup", *settings, "--check", "--diff")
    assert (shown.exit_code, dest.exists()) == (0, False)
    assert "+two ducks" in shown.stdout and "here" in shown.stdout
    done = invoke(fleet, "setup", *settings, "--json")
    document = json.loads(done.stdout)
    assert (done.exit_code, dest.read_text(), document["changed"]) == (0, "two ducks\n", 1)
    (change,) = document["changes"]
    assert change["task"] == "A file is there" and "+two ducks" in change["diff"]
    assert len(list((tmp_path / "state/duckctl/playbooks").iterdir())) == 2


def test_check(fleet: Path) -> None:
    """A host that is not as it should be: exit code 1, and the reason in the table."""
    done = invoke(fleet, "check")
    assert done.exit_code == 1
    assert "It is as it should be: one is not two" in done.stdout


def test_a_private_key_gets_to_no_duck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """linux-ducks takes a public key only: the private one and other files are refused before a
    playbook runs, and the words of a key are not shown."""
    monkeypatch.setattr(host, "run_playbook", lambda *_: pytest.fail("a playbook ran"))
    key = tmp_path / "fleet.key"
    words = ["linux-ducks", "-i", "fleet.yml", "--duckd", "/bin/true", "--fleet-public", str(key)]
    for content, problem in (
        (f"duck-p256-private:{'ab' * 32}\n", "the private one, which never leaves the host"),
        ("something else\n", "does not hold 'duck-p256-public:'"),
    ):
        key.write_text(content)
        error = CliRunner().invoke(host.app, words).exception
        assert isinstance(error, UsageError)
        assert problem in error.message and "abab" not in error.message + error.hint
