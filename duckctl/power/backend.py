"""What every power backend can be asked for, and what it needs to know of a duck."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from duckctl.errors import DuckError
from duckctl.inventory import Duck, Fleet


class PowerState(StrEnum):
    """State of a duck's supply as its backend sees it."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"  # the backend cannot tell, e.g. Wake-on-LAN


class Action(StrEnum):
    """What can be asked of a backend."""

    ON = "on"
    OFF = "off"
    CYCLE = "cycle"  # off and on again, or a hard reset


class PowerError(DuckError):
    """A backend could not do what it was asked for."""


def what_went_wrong(error: Exception) -> str:
    """Why a backend failed. An error that nobody expected is told with its kind."""
    return error.message if isinstance(error, DuckError) else f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class PowerTarget:
    """One duck of a fleet, as its power switch needs to know it."""

    duck: Duck
    fleet: Fleet

    @property
    def name(self) -> str:
        return self.duck.name

    @property
    def fleet_dir(self) -> Path:
        """The folder of the inventory; relative file names of options start there."""
        return self.fleet.path.resolve().parent

    def file(self, option: str, name: str) -> Path:
        """A file that an option names. Raises PowerError when it cannot be read."""
        path = self.fleet_dir / Path(name).expanduser()
        if not path.is_file():
            raise PowerError(
                f"{self.name}: {option} {path} is no file",
                "a relative name starts at the inventory's folder",
            )
        return path

    def secret(self, option: str, name: str) -> str:
        """The first line of a password file, which nobody but its owner may read."""
        path = self.file(option, name)
        if path.stat().st_mode & 0o077:
            raise PowerError(
                f"{self.name}: {option} {path} can be read by others", f"chmod 600 {path}"
            )
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            raise PowerError(f"{self.name}: {option} {path} is not UTF-8") from None
        if not lines or not lines[0]:
            raise PowerError(f"{self.name}: {option} {path} is empty")
        return lines[0]


class PowerBackend(Protocol):
    """One way to switch one duck. Every call has a deadline and raises PowerError, never hangs.

    A call that returns has been accepted by the switch; whether the duck really went away and came
    back is for the caller to see (``duckctl.power.ladder``).
    """

    @property
    def name(self) -> str:
        """The backend's name in the inventory."""

    @property
    def actions(self) -> frozenset[Action]:
        """What this backend can do: Wake-on-LAN cannot switch off."""

    def describe(self) -> str:
        """Where the switch is, without secrets: ``ipmi 10.0.0.7``."""

    def state(self) -> PowerState:
        """ON, OFF, or UNKNOWN when this backend has no way to tell."""

    def act(self, action: Action) -> None:
        """Does one of ``actions``; asking for another one is an error of the caller."""
