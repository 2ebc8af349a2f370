"""The private folder of a run: what is written there, and that nothing of the run outlives it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from duckctl.process import (
    INTERRUPTS,
    ProcessIdentity,
    command_line,
    descendants,
    end,
    heeded,
    identify,
)

PREFIX = "duckctl-play-"
END_S = 3.0
LAST_WORDS_LINES = 12
# How often ansible-runner asks whether to go on.
CANCEL_POLL_S = 1
# A control socket's path holds 40 + 18 characters behind its folder, and 107 is the kernel's limit.
FOLDER_CHARACTERS_MAX = 45
# What Ansible may know of the caller's environment; everything else, secrets too, stays here.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "TERM", "TZ", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR")


def ansible_environment(folder: Path, playbooks: Path, known_hosts: Path) -> dict[str, str]:
    """Ansible's settings. Host keys are pinned at the first contact, in the fleet's own file."""
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    beside_python = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join([beside_python, environment.get("PATH", os.defpath)])
    return environment | {
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),  # empty: no file of the user decides
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_PIPELINING": "True",
        # Where Debian and Ubuntu have it, with python3-apt; Ansible's search finds pyenv's shims.
        "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
        "ANSIBLE_ROLES_PATH": str(playbooks / "roles"),
        "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=60s",
        "ANSIBLE_SSH_COMMON_ARGS": f"-o UserKnownHostsFile={shlex.quote(str(known_hosts))} "
        "-o StrictHostKeyChecking=accept-new -o ConnectTimeout=20",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"),
        "ANSIBLE_SSH_RETRIES": "2",
    }


def scrub(environment: dict[str, str], wanted: Mapping[str, str]) -> None:
    """Takes out what was copied from this process (T51: it would be written to disk)."""
    for name, value in os.environ.items():
        if name not in wanted and environment.get(name) == value:
            del environment[name]


class PrivateFolder:
    """A folder of mode 0700 that exists during one run; processes that name it end with it."""

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        if len(base) + len(PREFIX) > FOLDER_CHARACTERS_MAX - 10:
            base = "/tmp"  # mkdtemp makes it private
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))

    def __enter__(self) -> PrivateFolder:
        _remove_orphans(self.path)
        (self.path / "owner").write_text(json.dumps(_owner(os.getpid())))
        (self.path / "ansible.cfg").touch()
        for name in ("tmp", "cp", "env"):
            (self.path / name).mkdir(mode=0o700)
        # Settings given as an argument are dropped when this file is missing (ansible-runner 2.4).
        self._write("env/settings", json.dumps({"pexpect_timeout": CANCEL_POLL_S}))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end_processes()
        shutil.rmtree(self.path, ignore_errors=True)

    def write_inputs(
        self,
        hosts: Sequence[str],
        extra_vars: Mapping[str, Any],
        check: bool,
        diff: bool,
        become_password: str | None,
    ) -> str:
        """Limit, variables and password as files; gives the options that name them."""
        words = ["--limit", "@" + self._write("hosts", "".join(f"{name}\n" for name in hosts))]
        words += ["--extra-vars", "@" + self._write("variables.json", json.dumps(extra_vars))]
        if become_password is not None:
            words += ["--become-password-file", self._write("become", become_password)]
        words += ["--check"] if check else []
        words += ["--diff"] if diff else []
        return shlex.join(words)

    def _write(self, name: str, text: str) -> str:
        path = self.path / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return str(path)

    def end_processes(self) -> None:
        """Ends everything that the run started: workers and ssh masters have left its group."""
        ours = list(_processes_naming(str(self.path)))
        below = [child for identity in ours for child in descendants(identity.pid)]
        end([*ours, *below], END_S)

    def last_words(self) -> str:
        """The end of what Ansible wrote: for a person, when there is no event to read."""
        text = ""
        for name in ("stderr", "stdout"):
            path = self.path / "artifacts" / "run" / name
            text += path.read_text(errors="replace") if path.exists() else ""
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        return "\n".join(lines[-LAST_WORDS_LINES:])


def _processes_naming(word: str) -> Iterator[ProcessIdentity]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        if any(word in argument for argument in command_line(int(entry.name))):
            identity = identify(int(entry.name))
            if identity is not None:
                yield identity


def _owner(pid: int) -> list[Any]:
    identity = identify(pid)
    assert identity is not None, "this process lives"
    return [identity.pid, identity.start_ticks, identity.boot_id]


def _remove_orphans(own: Path) -> None:
    """Folders of this user's runs that were killed: their owner is gone."""
    for folder in own.parent.glob(f"{PREFIX}*"):
        owner = folder / "owner"
        try:
            if folder == own or folder.stat().st_uid != os.getuid() or not owner.is_file():
                continue
            pid, ticks, boot = json.loads(owner.read_text())
        except (OSError, ValueError):
            continue
        if identify(pid) != ProcessIdentity(pid, ticks, boot):
            shutil.rmtree(folder, ignore_errors=True)


class StopRequest:
    """Takes SIGINT, SIGTERM and SIGHUP during a run and gives them back after it (T50).

    In another thread than the main one signals are not ours to take, and nothing is changed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in heeded(INTERRUPTS)}
            for number in self._before:
                signal.signal(number, self._stop)
        return self

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt  # the second time: now
        self.requested = True
        os.write(2, b"stopping the playbook ...\n")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
