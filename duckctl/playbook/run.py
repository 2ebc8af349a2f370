"""Runs one playbook of ``playbooks/`` against an inventory, through ansible-runner.

What ansible-runner does by itself and what is done about it (docs/decisions/0180): it takes SIGINT
and does not give it back; it writes environment and extra variables to disk; its rotation removes
folders of runs that still run; Ansible's workers leave its process group; a mistyped limit gives no
event and no error. Here every run has a private folder that is gone afterwards, a limit is checked
before, and a run without the final statistics is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from duckctl.playbook.events import Event
from duckctl.playbook.result import PlaybookResult

RUN_TIMEOUT_S = 3600.0


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
    raise NotImplementedError
