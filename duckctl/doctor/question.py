"""What every check is asked about."""

from __future__ import annotations

from dataclasses import dataclass

from duckctl.doctor.environment import Environment
from duckctl.doctor.finding import Level
from duckctl.doctor.machine import DomainPort
from duckctl.inventory import Fleet


@dataclass(frozen=True)
class Question:
    """A machine, the fleet that it shall be the host of (None: not known), and whether by DPDK."""

    environment: Environment
    fleet: Fleet | None
    ports: tuple[DomainPort, ...]
    dpdk: bool

    @property
    def dpdk_level(self) -> Level:
        """How bad it is that something is missing which only DPDK needs."""
        return "fail" if self.dpdk else "note"
