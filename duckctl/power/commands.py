"""Any switch that has a program: command templates, run without a shell.

``{duck}``, ``{address}`` and ``{mac}`` are replaced in each word of the command; other braces are
kept. The words are split as a shell would (quotes), but no shell runs them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from duckctl.power.backend import Action, PowerError, PowerState, PowerTarget
from duckctl.power.run_tool import run_tool

COMMAND_TIMEOUT_S = 30.0
ON_PATTERN = r"(?i)\bon\b"


def expand(template: str, target: PowerTarget, option: str) -> list[str]:
    """The words of a command template with the duck's facts in them."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise PowerError(f"{target.name}: power option '{option}': {error}") from error
    if not words:
        raise PowerError(f"{target.name}: power option '{option}' is empty")
    facts = {
        "{duck}": target.name,
        "{address}": str(target.duck.address),
        "{mac}": target.duck.mac or "",
    }
    for fact, value in facts.items():
        words = [word.replace(fact, value) for word in words]
    return words


def state_from(text: str, on_pattern: str, target: PowerTarget) -> PowerState:
    """ON when the pattern is found in what a switch says of itself, else OFF."""
    try:
        found = re.search(on_pattern, text)
    except re.error as error:
        raise PowerError(f"{target.name}: power option 'on_pattern': {error}") from error
    return PowerState.ON if found else PowerState.OFF


class CommandPower:
    """``command``: options ``on``, ``off``, ``status``, ``on_pattern``."""

    name = "command"
    actions = frozenset({Action.ON, Action.OFF})

    def __init__(self, target: PowerTarget, options: Mapping[str, str]) -> None:
        self._target = target
        self._options = options

    def describe(self) -> str:
        return f"command {shlex.split(self._options['on'])[:1]}"

    def state(self) -> PowerState:
        if "status" not in self._options:
            return PowerState.UNKNOWN
        said = self._run("status")
        return state_from(said, self._options.get("on_pattern", ON_PATTERN), self._target)

    def act(self, action: Action) -> None:
        self._run(action.value)

    def _run(self, option: str) -> str:
        words = expand(self._options[option], self._target, option)
        return run_tool(self._target.name, words, COMMAND_TIMEOUT_S)
