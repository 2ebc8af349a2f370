"""Ansible playbooks, run through ansible-runner with typed progress and one result per host."""

from duckctl.playbook.events import Event, HostEvent, Outcome, PlayStarted, TaskStarted
from duckctl.playbook.result import HostResult, PlaybookError, PlaybookResult
from duckctl.playbook.run import run_playbook

__all__ = [
    "Event",
    "HostEvent",
    "HostResult",
    "Outcome",
    "PlayStarted",
    "PlaybookError",
    "PlaybookResult",
    "TaskStarted",
    "run_playbook",
]
