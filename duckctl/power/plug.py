"""Smart plugs and switched PDUs that listen to plain HTTP requests (``backend: http``)."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from duckctl.power.backend import Action, PowerError, PowerState, PowerTarget
from duckctl.power.commands import ON_PATTERN, state_from
from duckctl.power_options import METHODS

REQUEST_TIMEOUT_S = 10.0


class PlugPower:
    """``http``: options ``on_url``, ``off_url``, ``status_url``, ``on_pattern``, ``method``."""

    name = "http"
    actions = frozenset({Action.ON, Action.OFF})

    def __init__(self, target: PowerTarget, options: Mapping[str, str]) -> None:
        self._target = target
        self._options = options

    def describe(self) -> str:
        # Plugs carry passwords in user info and queries: only the host is shown.
        return f"http {urlsplit(self._options['on_url']).hostname}"

    def state(self) -> PowerState:
        if "status_url" not in self._options:
            return PowerState.UNKNOWN
        said = self._request("GET", "status_url")
        return state_from(said, self._options.get("on_pattern", ON_PATTERN), self._target)

    def act(self, action: Action) -> None:
        method = self._options.get("method", "GET").upper()
        if method not in METHODS:
            raise PowerError(f"{self._target.name}: method '{method}' is not one of {METHODS}")
        self._request(method, f"{action}_url")

    def _request(self, method: str, option: str) -> str:
        import httpx  # takes a quarter of a second to import

        try:
            answer = httpx.request(
                method,
                self._options[option],
                timeout=REQUEST_TIMEOUT_S,
                follow_redirects=False,
                trust_env=False,  # a proxy would get the plug's password, and may not reach it
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PowerError(
                f"{self._target.name}: {self.describe()} {option}: {type(error).__name__}"
            ) from error
        if not answer.is_success:
            raise PowerError(
                f"{self._target.name}: {self.describe()} {option}: HTTP {answer.status_code}"
            )
        return answer.text
