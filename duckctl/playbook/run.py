"""Runs one playbook of ``playbooks/`` against an inventory, through ansible-runner.

What ansible-runner does by itself and what is done about it (docs/decisions/0180): it takes SIGINT
and does not give it back; it writes environment and extra variables to disk; its rotation removes
folders of runs that still run; Ansible's workers leave its process group; host keys are not
checked; a mistyped limit gives no event and no error. Here every run has a private folder that is
gone afterwards, a limit is checked before, and a run without the final statistics is a failure.
"""

from __future__ import annotations

import importlib.util
import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckctl
from duckctl.errors import UsageError
from duckctl.inventory import Fleet, load_inventory
from duckctl.patterns import select_names
from duckctl.playbook.events import Event, HostEvent, Stats, read_event
from duckctl.playbook.private import PrivateFolder, StopRequest, ansible_environment, scrub
from duckctl.playbook.record import Record
from duckctl.playbook.result import HostResult, PlaybookError, PlaybookResult

RUN_TIMEOUT_S = 3600.0
FORKS_MAX = 64


def run_playbook(
    name: str,
    inventory_path: Path,
    limit: str | None = None,
    extra_vars: Mapping[str, Any] | None = None,
    check: bool = False,
    diff: bool = False,
    on_event: Callable[[Event], None] | None = None,
    *,
    timeout_s: float = RUN_TIMEOUT_S,
    cancelled: Callable[[], bool] | None = None,
    record_in: Path | None = None,
    become_password: str | None = None,
) -> PlaybookResult:
    """Runs ``playbooks/NAME.yml``; ``limit`` is a pattern as ``--limit`` has it, or None for all.

    Blocks until the playbook has ended; ``on_event`` is called from the same thread. Failed hosts
    are in the result. Raises UsageError (unknown playbook, limit), InventoryError, PlaybookError
    (the run gave no statistics, ran out of time, or ansible is missing), KeyboardInterrupt after
    Ctrl-C or when ``cancelled`` says so; then nothing of the run is left.
    """
    playbook = playbook_path(name)
    fleet = load_inventory(inventory_path)
    hosts = chosen_hosts(fleet, limit)
    if importlib.util.find_spec("ansible_runner") is None:
        raise PlaybookError("ansible is not installed", "pip install 'duckctl[ansible]'")
    started, run_id = time.monotonic(), new_run_id(datetime.now(UTC))
    with Record.open(record_in, run_id) as record, PrivateFolder() as folder, StopRequest() as stop:
        progress = _Progress(on_event, record)
        command = folder.write_inputs(hosts, extra_vars or {}, check, diff, become_password)
        known_hosts = inventory_path.resolve().parent / "known_hosts"
        ended = _run_in(
            folder,
            playbook,
            inventory_path.resolve(),
            command,
            ansible_environment(folder.path, playbook.parent, known_hosts),
            progress,
            _Limits(timeout_s, lambda: stop.requested or (cancelled is not None and cancelled())),
        )
        if ended.status == "canceled":
            raise KeyboardInterrupt
        results = progress.results(name, ended, folder)
        result = PlaybookResult(
            name, run_id, check, time.monotonic() - started, results, record.folder
        )
        record.finish(result)
    return result


@dataclass(frozen=True)
class _Limits:
    timeout_s: float
    cancelled: Callable[[], bool]


@dataclass(frozen=True)
class _Ended:
    """How ansible-playbook ended: ansible-runner's status and the exit code."""

    status: str
    code: int | None


def _run_in(
    folder: PrivateFolder,
    playbook: Path,
    inventory: Path,
    command: str,
    environment: Mapping[str, str],
    progress: _Progress,
    limits: _Limits,
) -> _Ended:
    import ansible_runner

    is_cancelled = False

    def cancel() -> bool:
        """Asked again and again, also after the processes have ended: once true, always true."""
        nonlocal is_cancelled
        if not is_cancelled and limits.cancelled():
            is_cancelled = True
            folder.end_processes()
        return is_cancelled

    def on_status(status: Mapping[str, Any], runner_config: Any) -> None:
        if status["status"] == "starting":
            scrub(runner_config.env, environment)

    runner = ansible_runner.run(
        private_data_dir=str(folder.path),
        ident="run",
        playbook=str(playbook),
        project_dir=str(playbook.parent),
        inventory=str(inventory),
        cmdline=command,
        envvars=dict(environment),
        forks=FORKS_MAX,
        timeout=math.ceil(limits.timeout_s),
        suppress_env_files=True,
        quiet=True,
        event_handler=progress.take,
        status_handler=on_status,
        cancel_callback=cancel,
    )
    return _Ended(runner.status, runner.rc)


@dataclass
class _Progress:
    """Collects the events of one run and passes them on."""

    on_event: Callable[[Event], None] | None
    record: Record
    stats: Stats | None = None
    problems: dict[str, str] = field(default_factory=dict)

    def take(self, raw: Mapping[str, Any]) -> bool:
        """True keeps ansible-runner's own file of the event, in the folder that goes away."""
        event = read_event(raw)
        if isinstance(event, Stats):
            self.stats = event
        elif event is not None:
            if isinstance(event, HostEvent):
                self.note_problem(event)
            self.record.write(event)
            if self.on_event is not None:
                self.on_event(event)
        return True

    def note_problem(self, event: HostEvent) -> None:
        """The first failure counts: what fails after it is the way back, not the reason."""
        if event.outcome in ("failed", "unreachable") and not event.tolerated:
            place = f"{event.role}: {event.task}" if event.role else event.task
            self.problems.setdefault(event.host, f"{place}: {event.message}")

    def results(self, name: str, ended: _Ended, folder: PrivateFolder) -> tuple[HostResult, ...]:
        if ended.status == "timeout":
            raise PlaybookError(
                f"playbook '{name}' did not end in time", "run it again; it goes on where it was"
            )
        if self.stats is None:
            said = folder.last_words()
            raise PlaybookError(
                f"playbook '{name}' gave no result (exit code {ended.code}); Ansible's last words:"
                f"\n{said or '(none)'}",
                "nothing is known about its hosts",
            )
        stats = self.stats
        if not stats.hosts():
            raise UsageError(f"playbook '{name}' is for none of the chosen hosts")
        return tuple(
            HostResult(
                host=host,
                ok=stats.count("ok", host),
                changed=stats.count("changed", host),
                failed=stats.count("failures", host),
                unreachable=stats.count("dark", host),
                skipped=stats.count("skipped", host),
                problem=self.problem_of(host),
            )
            for host in stats.hosts()
        )

    def problem_of(self, host: str) -> str:
        assert self.stats is not None
        if not self.stats.count("failures", host) and not self.stats.count("dark", host):
            return ""  # what failed was rescued
        return self.problems.get(host, "failed without a message")


def new_run_id(now: datetime) -> str:
    """Sorts by time; two runs of one second differ."""
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def playbooks_folder() -> Path:
    """Where ``playbooks/`` is: beside the package in a source tree, inside it when installed."""
    for root in duckctl.__path__:
        for candidate in (Path(root).parent / "playbooks", Path(root) / "_playbooks"):
            if (candidate / "host.yml").is_file():
                return candidate
    raise PlaybookError("the playbooks are not in this installation of duckctl")


def playbook_names() -> list[str]:
    return sorted(path.stem for path in playbooks_folder().glob("*.yml"))


def playbook_path(name: str) -> Path:
    if name not in playbook_names():
        raise UsageError(f"there is no playbook '{name}'", f"known: {', '.join(playbook_names())}")
    return playbooks_folder() / f"{name}.yml"


def chosen_hosts(fleet: Fleet, limit: str | None) -> list[str]:
    """Names that a pattern means, the host among them. Raises UsageError (T48: Ansible would not).

    >>> chosen_hosts(fleet, "gpu_host,duck[01-02]")     # ["rack32-host", "duck01", "duck02"]
    """
    names = [duck.name for duck in fleet.ducks]
    groups = dict(fleet.groups)
    if fleet.host is not None:
        names.insert(0, fleet.host.name)
        groups["gpu_host"] = (fleet.host.name,)
    return select_names(limit if limit is not None else "all", names, groups)
