"""run_playbook on this machine: real Ansible runs, interrupted, mistyped, broken and recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duckctl.errors import UsageError
from duckctl.playbook import Event, HostEvent, PlaybookError, PlaybookResult, run, run_playbook
from duckctl.playbook.private import PREFIX, StopRequest, ansible_environment, scrub
from duckctl.playbook.record import Record, rotate

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
          hosts: {d01: {duck_address: 127.21.1.11, ansible_connection: local}}
"""
PLAYBOOKS = {
    "host": "- hosts: gpu_host\n  gather_facts: false\n  tasks:\n"
    "    - name: a file is there\n"
    "      ansible.builtin.copy: {content: '{{ text }}', dest: '{{ dest }}', mode: '0600'}\n"
    "    - name: what is known\n"
    "      ansible.builtin.debug:\n"
    "        msg: \"secret=<{{ lookup('env', 'SECRET_OF_CALLER') }}>\"\n",
    "fails": "- hosts: gpu_host\n  gather_facts: false\n  tasks:\n"
    "    - name: it cannot be\n      ansible.builtin.fail: {msg: no reason}\n",
    "broken": "- hosts: gpu_host\n  no_such_keyword: true\n",
    "sleeps": "- hosts: gpu_host\n  gather_facts: false\n  tasks:\n"
    "    - name: a long task\n      ansible.builtin.command: sleep 61.75\n"
    "      changed_when: false\n",
}


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An inventory, and playbooks of the test's own in the place of the shipped ones."""
    folder = tmp_path / "playbooks"
    folder.mkdir()
    for name, text in PLAYBOOKS.items():
        (folder / f"{name}.yml").write_text(text)
    monkeypatch.setattr(run, "playbooks_folder", lambda: folder)
    path = tmp_path / "fleet.yml"
    path.write_text(INVENTORY.replace("PYTHON", sys.executable))
    return path


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test the folder for temporary files, which is the test's own, is empty."""
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        monkeypatch.setenv("TMPDIR", base)
        yield
        assert private_folders() == set()


def private_folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))


def run_host(
    inventory: Path, dest: Path, check: bool = False
) -> tuple[PlaybookResult, list[Event]]:
    events: list[Event] = []
    extra = {"text": "quack\n", "dest": str(dest)}
    done = run_playbook("host", inventory, "gpu_host", extra, check, True, events.append)
    return done, events


@pytest.mark.slow
def test_check_then_apply_twice(inventory: Path, tmp_path: Path) -> None:
    """Check mode says what would change and does nothing; the second real run changes nothing."""
    dest = tmp_path / "made"
    done, events = run_host(inventory, dest, check=True)
    assert (done.check, done.changed, dest.exists()) == (True, 1, False)
    (change,) = [e for e in events if isinstance(e, HostEvent) and e.outcome == "changed"]
    assert "+quack" in change.diff
    assert [run_host(inventory, dest)[0].changed for _ in range(2)] == [1, 0]
    assert dest.read_text() == "quack\n"


@pytest.mark.slow
def test_t51_nothing_of_the_caller_is_passed_on(
    inventory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T51: Ansible does not see the caller's environment, so ansible-runner cannot write it down;
    the folder is private, and gone afterwards (checked for every test of this file)."""
    monkeypatch.setenv("SECRET_OF_CALLER", "hunter2")
    seen: list[str] = []
    modes: set[int] = set()

    def look(event: Event) -> None:
        for folder in private_folders():
            modes.add(folder.stat().st_mode & 0o777)
            seen.extend(
                path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
            )

    extra = {"text": "x", "dest": str(tmp_path / "made")}
    records = tmp_path / "records"
    done = run_playbook(
        *("host", inventory, "gpu_host", extra),
        on_event=look,
        record_in=records,
        become_password="hunter2-sudo",
    )
    assert done.bad == ()
    commands = [text for text in seen if '"command"' in text]
    assert commands and modes == {0o700}
    assert not any("SECRET_OF_CALLER" in text or "hunter2" in text for text in commands)
    recorded = "".join(p.read_text() for p in records.rglob("*") if p.is_file())
    assert "secret=<>" in recorded and "hunter2" not in recorded


def test_t48_limits_are_checked_before(inventory: Path) -> None:
    """T48: an unknown host, duck or playbook is an error before anything starts; a playbook that is
    for none of the chosen hosts is one too."""
    with pytest.raises(UsageError, match="there is no duck or group 'd02'"):
        run_playbook("host", inventory, "d02")
    with pytest.raises(UsageError, match="there is no playbook 'hots'"):
        run_playbook("hots", inventory)
    with pytest.raises(UsageError, match="for none of the chosen hosts"):
        run_playbook("host", inventory, "ducks", {"text": "", "dest": ""})


def test_t48_no_statistics_is_a_failure(inventory: Path) -> None:
    """T48: a run without its final statistics fails, with Ansible's last words."""
    with pytest.raises(PlaybookError, match="no_such_keyword") as caught:
        run_playbook("broken", inventory, "gpu_host")
    assert "gave no result" in caught.value.message


def test_t48_missing_ansible(inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T48: without ansible-runner the error says what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PlaybookError) as caught:
        run_playbook("host", inventory)
    assert "duckctl[ansible]" in caught.value.hint


def test_a_failed_host_is_in_the_result(inventory: Path) -> None:
    """A failed task is no exception: the host's result has task and reason, and the code is 1."""
    done = run_playbook("fails", inventory, "gpu_host")
    (host,) = done.bad
    assert (host.host, host.status, host.problem) == ("here", "failed", "it cannot be: no reason")
    assert done.exit_code == 1


@pytest.mark.slow
def test_t45_a_run_has_a_deadline(inventory: Path) -> None:
    """T45: a task that hangs ends with the run's own deadline, not with that of a connection."""
    started = time.monotonic()
    with pytest.raises(PlaybookError, match="did not end in time"):
        run_playbook("sleeps", inventory, "gpu_host", timeout_s=2)
    assert time.monotonic() - started < 30
    assert sleepers() == []


def sleepers() -> list[int]:
    """Live processes of the long task."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sleep" in words and b"61.75" in words:
            found.append(int(entry.name))
    return found


CHILD = """\
import signal, sys
from pathlib import Path
from duckctl.playbook import run, run_playbook
run.playbooks_folder = lambda: Path(sys.argv[1]).parent / "playbooks"
before = signal.getsignal(signal.SIGINT)
try:
    tell = lambda event: print(type(event).__name__, flush=True)
    run_playbook("sleeps", Path(sys.argv[1]), "gpu_host", on_event=tell)
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is before, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_t50_ctrl_c_ends_everything(inventory: Path, number: signal.Signals) -> None:
    """T50: a signal ends the run, its workers and their children; the handlers are as before."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(inventory)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    lines = iter(child.stdout.readline, "")
    assert "TaskStarted\n" in lines  # stops reading at that line
    deadline = time.monotonic() + 20
    while not sleepers() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(sleepers()) == 1
    child.send_signal(number)
    out, _ = child.communicate(timeout=30)
    assert out.splitlines()[-1] == "interrupted True"
    assert sleepers() == []


@pytest.mark.slow
def test_cancelling_from_elsewhere(inventory: Path) -> None:
    """A caller's own wish to stop works as Ctrl-C does."""
    with pytest.raises(KeyboardInterrupt):
        run_playbook("sleeps", inventory, "gpu_host", cancelled=lambda: bool(sleepers()))
    assert sleepers() == []


def test_second_signal_stops_at_once() -> None:
    """The first signal asks, the second interrupts; afterwards signals are the program's again."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_t49_rotation_leaves_running_records_alone(tmp_path: Path) -> None:
    """T49: the oldest records go, but never one that a run still holds."""
    with Record.open(tmp_path, "20260101-000000-held"):
        for number in range(5):
            folder = tmp_path / f"20260102-00000{number}-done"
            folder.mkdir()
            (folder / "events.jsonl").touch()
        removed = rotate(tmp_path, 2)
    assert [path.name[-6:] for path in removed] == ["0-done", "1-done", "2-done"]
    assert (tmp_path / "20260101-000000-held").is_dir()


def test_records(inventory: Path, tmp_path: Path) -> None:
    """A record has the events, one JSON object a line, and the result, for its owner only."""
    records = tmp_path / "records"
    done = run_playbook("fails", inventory, "gpu_host", record_in=records)
    assert done.record == records / done.run_id
    lines = (done.record / "events.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["event"] for line in lines]
    assert kinds == ["PlayStarted", "TaskStarted", "HostEvent"]
    assert json.loads((done.record / "result.json").read_text()) == done.document()
    assert done.record.stat().st_mode & 0o077 == 0


def test_t43_host_keys_are_checked(tmp_path: Path) -> None:
    """T43: keys are pinned in the fleet's own file; ansible-runner by itself checks none."""
    environment = ansible_environment(tmp_path, tmp_path, tmp_path / "known hosts")
    assert environment["ANSIBLE_HOST_KEY_CHECKING"] == "True"
    options = environment["ANSIBLE_SSH_COMMON_ARGS"]
    assert f"UserKnownHostsFile='{tmp_path}/known hosts'" in options
    assert "StrictHostKeyChecking=accept-new" in options


def test_scrub_keeps_what_was_set_on_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the caller go; those that ansible-runner or we have set stay."""
    monkeypatch.setenv("API_TOKEN", "t")
    monkeypatch.setenv("ANSIBLE_STDOUT_CALLBACK", "yaml")
    environment = {"API_TOKEN": "t", "ANSIBLE_STDOUT_CALLBACK": "awx_display", "LC_ALL": "C.UTF-8"}
    scrub(environment, {"LC_ALL": "C.UTF-8"})
    assert environment == {"ANSIBLE_STDOUT_CALLBACK": "awx_display", "LC_ALL": "C.UTF-8"}
