"""Redfish (DMTF DSP0266): the computer system's PowerState and its Reset action.

Certificates are always checked; BMCs with one of their own need its ``ca_file``.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from duckctl.power.backend import Action, PowerError, PowerState, PowerTarget

if TYPE_CHECKING:
    import httpx

REQUEST_TIMEOUT_S = 15.0
SYSTEMS = "/redfish/v1/Systems"
# Reset types by preference (DSP2046, ComputerSystem); a BMC lists those that it has.
RESET_TYPES = {
    Action.ON: ("On", "ForceOn"),
    Action.OFF: ("ForceOff",),
    Action.CYCLE: ("PowerCycle", "ForceRestart"),
}
STATES = {
    "On": PowerState.ON,
    "PoweringOff": PowerState.ON,
    "PoweringOn": PowerState.OFF,
    "Off": PowerState.OFF,
}


class RedfishPower:
    """``redfish``: options ``url``, ``user``, ``password_file``, ``system``, ``ca_file``."""

    name = "redfish"
    actions = frozenset(Action)

    def __init__(self, target: PowerTarget, options: Mapping[str, str]) -> None:
        self._target = target
        self._options = options

    def describe(self) -> str:
        return f"redfish {urlsplit(self._options['url']).hostname}"

    def state(self) -> PowerState:
        with self._client() as client:
            told = self._system(client).get("PowerState")
        if not isinstance(told, str) or told not in STATES:
            raise self._error(f"power state '{told}' is none of {', '.join(STATES)}")
        return STATES[told]

    def act(self, action: Action) -> None:
        with self._client() as client:
            system = self._system(client)
            if action is Action.CYCLE and STATES.get(str(system.get("PowerState"))) is (
                PowerState.OFF
            ):
                action = Action.ON  # what is off cannot be restarted
            reset = _mapping(_mapping(system.get("Actions")).get("#ComputerSystem.Reset"))
            path = reset.get("target")
            if not path:
                raise self._error("its system has no action #ComputerSystem.Reset")
            allowed = _list(reset.get("ResetType@Redfish.AllowableValues"))
            wanted = RESET_TYPES[action]
            chosen = next((kind for kind in wanted if not allowed or kind in allowed), None)
            if chosen is None:
                raise self._error(
                    f"it can reset by {', '.join(map(str, allowed))}, not by {wanted}"
                )
            self._ask(client, "POST", path, {"ResetType": chosen})

    def _error(self, text: str, hint: str = "") -> PowerError:
        return PowerError(f"{self._target.name}: {self.describe()}: {text}", hint)

    def _client(self) -> httpx.Client:
        import httpx  # takes a quarter of a second to import

        options = self._options
        password = self._target.secret("password_file", options["password_file"])
        verify: ssl.SSLContext | bool = True
        if "ca_file" in options:
            ca_file = self._target.file("ca_file", options["ca_file"])
            try:
                verify = ssl.create_default_context(cafile=str(ca_file))
            except ssl.SSLError as error:
                raise self._error(f"ca_file {ca_file} holds no certificate") from error
        return httpx.Client(
            base_url=options["url"].rstrip("/"),
            auth=(options["user"], password),
            timeout=REQUEST_TIMEOUT_S,
            verify=verify,
            headers={"OData-Version": "4.0"},
            trust_env=False,  # a proxy would get the BMC's password, and may not reach it
        )

    def _system(self, client: httpx.Client) -> dict[str, Any]:
        """The computer system: the one that is named, or the only one."""
        if "system" in self._options:
            return self._ask(client, "GET", f"{SYSTEMS}/{self._options['system']}")
        members = map(_mapping, _list(self._ask(client, "GET", SYSTEMS).get("Members")))
        paths = [str(member["@odata.id"]) for member in members if "@odata.id" in member]
        if len(paths) != 1:
            names = ", ".join(path.rsplit("/", 1)[-1] for path in paths) or "none"
            raise self._error(f"it has {len(paths)} systems ({names})", "name one: system: ...")
        return self._ask(client, "GET", paths[0])

    def _ask(
        self, client: httpx.Client, method: str, path: str, body: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        import httpx

        try:
            answer = client.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._error(f"{type(error).__name__}: {error}") from error
        if answer.status_code in (401, 403):
            raise self._error(f"it refuses user '{self._options['user']}'")
        if not answer.is_success:
            raise self._error(f"{method} {path}: HTTP {answer.status_code}")
        if not answer.content:
            return {}
        try:
            document = answer.json()
        except ValueError as error:
            raise self._error(f"{method} {path} answered no JSON") from error
        return _mapping(document)


def _mapping(value: Any) -> dict[str, Any]:
    """What a BMC should have told as an object; an empty one where it told something else."""
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
