"""The protocol's own REBOOT request: cheap and clean, for a duck whose image still obeys."""

from __future__ import annotations

from typing import Any

from duckctl.health import ProbeError, probe
from duckctl.power.backend import Action, PowerError, PowerState, PowerTarget

ANSWER_TIMEOUT_S = 2.0


class RebootPower:
    """``reboot``: no options."""

    name = "reboot"
    actions = frozenset({Action.CYCLE})

    def __init__(self, target: PowerTarget) -> None:
        self._target = target

    def describe(self) -> str:
        return f"reboot {self._target.duck.address}:{self._target.duck.port}"

    def state(self) -> PowerState:
        (answer,) = self._probe()
        return PowerState.ON if answer["reachable"] else PowerState.UNKNOWN

    def act(self, action: Action) -> None:
        if action is not Action.CYCLE:
            raise PowerError(f"{self._target.name}: REBOOT can only restart")
        (answer,) = self._probe("--reboot", self._target.name)
        if not answer.get("rebooted"):
            raise PowerError(
                str(answer["error"] or "") or f"{self._target.name} did not confirm REBOOT"
            )

    def _probe(self, *extra: str) -> list[dict[str, Any]]:
        try:
            document = probe(self._target.fleet, [self._target.duck], ANSWER_TIMEOUT_S, extra)
        except ProbeError as error:
            raise PowerError(f"{self._target.name}: {error.message}", error.hint) from error
        ducks: list[dict[str, Any]] = document["ducks"]
        return ducks
