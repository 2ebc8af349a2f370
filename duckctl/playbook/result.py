"""What a playbook run came to, per host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from duckctl.errors import DuckError, ExitCode

Status = Literal["ok", "changed", "failed", "unreachable"]


class PlaybookError(DuckError):
    """A playbook did not run to its end, so nothing is known about its hosts."""


@dataclass(frozen=True)
class HostResult:
    """One host's tasks, counted. ``problem`` says why it failed; empty if it did not."""

    host: str
    ok: int
    changed: int
    failed: int
    unreachable: int
    skipped: int
    problem: str = ""

    @property
    def status(self) -> Status:
        if self.unreachable:
            return "unreachable"
        if self.failed:
            return "failed"
        return "changed" if self.changed else "ok"


@dataclass(frozen=True)
class PlaybookResult:
    """A finished run. ``record`` is the folder with its events, None when none was asked for."""

    playbook: str
    run_id: str
    check: bool
    seconds: float
    hosts: tuple[HostResult, ...]
    record: Path | None = None

    @property
    def changed(self) -> int:
        """Tasks that changed something (in check mode: that would have), over all hosts."""
        return sum(host.changed for host in self.hosts)

    @property
    def bad(self) -> tuple[HostResult, ...]:
        return tuple(host for host in self.hosts if host.status in ("failed", "unreachable"))

    @property
    def exit_code(self) -> ExitCode:
        """0: all well; 4: no host reached; 3: some are well; 1: none is."""
        if not self.bad:
            return ExitCode.OK
        if all(host.status == "unreachable" for host in self.hosts):
            return ExitCode.UNREACHABLE
        return ExitCode.PARTIAL if len(self.bad) < len(self.hosts) else ExitCode.FAILURE

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "playbook": self.playbook,
            "run_id": self.run_id,
            "check": self.check,
            "seconds": round(self.seconds, 1),
            "changed": self.changed,
            "hosts": [
                {
                    "host": host.host,
                    "status": host.status,
                    "ok": host.ok,
                    "changed": host.changed,
                    "failed": host.failed,
                    "unreachable": host.unreachable,
                    "skipped": host.skipped,
                    "problem": host.problem or None,
                }
                for host in self.hosts
            ],
        }
