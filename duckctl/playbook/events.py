"""Events of ansible-runner -> typed events. Pure; nothing is ever read from Ansible's output.

Field T52: lines of verbose output are attributed to the wrong task or miss, but the callback's own
events (``playbook_on_*``, ``runner_on_*``) carry play, task, role, host and the module's result.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["ok", "changed", "skipped", "failed", "unreachable"]

MESSAGE_CHARACTERS_MAX = 2000
DIFF_LINES_MAX = 400


@dataclass(frozen=True)
class PlayStarted:
    """A play began."""

    play: str


@dataclass(frozen=True)
class TaskStarted:
    """A task began, on all hosts of the play."""

    task: str
    role: str


@dataclass(frozen=True)
class HostEvent:
    """A task ended on one host. ``tolerated``: it failed where a failure is part of the plan."""

    host: str
    task: str
    role: str
    outcome: Outcome
    message: str = ""
    diff: str = ""
    seconds: float = 0.0
    tolerated: bool = False


@dataclass(frozen=True)
class Stats:
    """The last event of a run that came to its end: hosts -> counts, by kind."""

    counts: Mapping[str, Mapping[str, int]]

    def hosts(self) -> list[str]:
        return sorted({host for kind in self.counts.values() for host in kind})

    def count(self, kind: str, host: str) -> int:
        return int(self.counts.get(kind, {}).get(host, 0))


Event = PlayStarted | TaskStarted | HostEvent
STATS_KINDS = ("ok", "changed", "failures", "dark", "skipped", "rescued", "ignored", "processed")


def read_event(raw: Mapping[str, Any]) -> Event | Stats | None:
    """The typed event of a raw one; None for those that say nothing about progress."""
    name = raw.get("event", "")
    data: Mapping[str, Any] = raw.get("event_data") or {}
    if name == "playbook_on_play_start":
        return PlayStarted(str(data.get("name") or data.get("play") or ""))
    if name in ("playbook_on_task_start", "playbook_on_handler_task_start"):
        return TaskStarted(str(data.get("task", "")), str(data.get("role", "")))
    if name == "playbook_on_stats":
        return Stats({kind: dict(data.get(kind) or {}) for kind in STATS_KINDS})
    if name in ("runner_on_ok", "runner_on_failed", "runner_on_unreachable", "runner_on_skipped"):
        return _host_event(name.removeprefix("runner_on_"), data)
    return None


def _host_event(kind: str, data: Mapping[str, Any]) -> HostEvent:
    result: Mapping[str, Any] = data.get("res") or {}
    outcome: Outcome = "ok"
    if kind == "failed":
        outcome = "failed"
    elif kind == "unreachable":
        outcome = "unreachable"
    elif kind == "skipped":
        outcome = "skipped"
    elif result.get("changed"):
        outcome = "changed"
    return HostEvent(
        host=str(data.get("host", "")),
        task=str(data.get("task", "")),
        role=str(data.get("role", "")),
        outcome=outcome,
        message=_message(outcome, data, result),
        diff=diff_text(result),
        seconds=float(data.get("duration") or 0.0),
        tolerated=bool(data.get("ignore_errors")),
    )


def _message(outcome: Outcome, data: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Why a task failed, or what a ``debug`` task says."""
    if outcome in ("failed", "unreachable"):
        return failure_message(result)
    if outcome == "ok" and str(data.get("task_action", "")).endswith("debug"):
        return str(result.get("msg", ""))[:MESSAGE_CHARACTERS_MAX]
    return ""


def failure_message(result: Mapping[str, Any]) -> str:
    """Why a module failed: its message, and what its command or its loop's items said."""
    if result.get("censored"):
        return "(hidden, because the task handles secrets)"
    parts = [str(result["msg"])] if result.get("msg") else []
    for item in result.get("results") or ():
        if isinstance(item, Mapping) and (item.get("failed") or item.get("unreachable")):
            parts.append(f"{item.get('item')}: {failure_message(item)}")
    for key in ("stderr", "module_stderr"):
        text = str(result.get(key) or "").strip()
        if text and text not in " ".join(parts):
            parts.append(text)
    if not parts and result.get("stdout"):
        parts.append(str(result["stdout"]).strip())
    return "\n".join(parts)[:MESSAGE_CHARACTERS_MAX] or "failed without a message"


def diff_text(result: Mapping[str, Any]) -> str:
    """The unified diff of what a task changed or would change; empty if it gave none."""
    lines: list[str] = []
    found = [result.get("diff")]
    found += [item.get("diff") for item in result.get("results") or () if isinstance(item, Mapping)]
    for entry in found:
        for one in entry if isinstance(entry, list) else [entry]:
            if isinstance(one, Mapping):
                lines += _one_diff(one)
    if len(lines) > DIFF_LINES_MAX:
        lines = [*lines[:DIFF_LINES_MAX], f"… {len(lines) - DIFF_LINES_MAX} more lines"]
    return "\n".join(lines)


def _one_diff(entry: Mapping[str, Any]) -> list[str]:
    if "prepared" in entry:
        return str(entry["prepared"]).splitlines()
    before, after = (_as_lines(entry.get(side)) for side in ("before", "after"))
    return list(
        difflib.unified_diff(
            before,
            after,
            str(entry.get("before_header") or "before"),
            str(entry.get("after_header") or "after"),
            lineterm="",
            n=1,
        )
    )


def _as_lines(side: Any) -> list[str]:
    if side is None:
        return []
    text = side if isinstance(side, str) else json.dumps(side, indent=1, sort_keys=True)
    return text.splitlines()
