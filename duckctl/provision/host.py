"""The host's part of a run: the playbook ``host``, for a fleet whose inventory names a host."""

from __future__ import annotations

from duckctl.console import detail, talk
from duckctl.errors import DuckError
from duckctl.inventory import Fleet
from duckctl.playbook.events import Event, HostEvent
from duckctl.playbook.run import run_playbook

PLAYBOOK = "host"
HOST_GROUP = "gpu_host"


def host_step(fleet: Fleet, skip: bool) -> str:
    """What happens with the host, in words."""
    if skip:
        return "left as it is (--skip-host)"
    if fleet.host is None:
        return "left as it is (the inventory has no group gpu_host)"
    return f"playbook '{PLAYBOOK}' on {fleet.host.name}; preview: duckctl host setup --check --diff"


def configure_host(fleet: Fleet) -> None:
    """Runs the playbook. Raises DuckError when the host is not as it should be afterwards."""
    if fleet.host is None:
        return

    def on_event(event: Event) -> None:
        if not isinstance(event, HostEvent):
            return
        line = f"{event.host}: {event.task}: {event.outcome}"
        (talk if event.outcome in ("changed", "failed", "unreachable") else detail)(line)

    result = run_playbook(PLAYBOOK, fleet.path, limit=HOST_GROUP, on_event=on_event)
    for host in result.bad:
        raise DuckError(
            f"the playbook '{PLAYBOOK}' failed on {host.host}: {host.problem}",
            f"look closer: duckctl host setup --check -i {fleet.path}; without it: --skip-host",
        )
    talk(f"host: {result.changed} changed")
