"""Smart plugs by HTTP and switches by command: real requests, real programs, named errors."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from power_kit import fleet_with, ladder_with

from duckctl.inventory import InventoryError, Power
from duckctl.power.backend import Action, PowerError, PowerState, PowerTarget
from duckctl.power.registry import make_backend

REQUESTS: list[tuple[str, str]] = []


class Plug(BaseHTTPRequestHandler):
    """A plug with a relay: /on, /off, /status; everything else is unknown to it."""

    relay = "off"

    def answer(self) -> None:
        REQUESTS.append((self.command, self.path))
        word = self.path.strip("/").split("?")[0]
        if word in ("on", "off"):
            Plug.relay = word
        elif word != "status":
            self.send_error(404)
            return
        body = f'{{"relay": "{Plug.relay}"}}'.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = answer  # noqa: N815 - names that the base class looks for

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def plug() -> Iterator[str]:
    REQUESTS.clear()
    Plug.relay = "off"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Plug)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_plug_switches_and_tells(tmp_path: Path, plug: str) -> None:
    """On, off and status by the URLs of the inventory, with its method."""
    (switch,) = ladder_with(
        tmp_path,
        f"{{backend: http, on_url: '{plug}/on', off_url: '{plug}/off', "
        f"status_url: '{plug}/status', on_pattern: '\"relay\": \"on\"', method: POST}}",
    )
    assert switch.state() is PowerState.OFF
    switch.act(Action.ON)
    assert switch.state() is PowerState.ON
    switch.act(Action.OFF)
    assert switch.state() is PowerState.OFF
    assert [r for r in REQUESTS if r[1] != "/status"] == [("POST", "/on"), ("POST", "/off")]


def test_a_plugs_command_may_have_spaces(tmp_path: Path, plug: str) -> None:
    """As people write them for Tasmota: on the wire they are %20."""
    (switch,) = ladder_with(
        tmp_path,
        f"{{backend: http, on_url: '{plug}/on?cmnd=Power On', off_url: '{plug}/off'}}",
    )
    switch.act(Action.ON)
    assert REQUESTS == [("GET", "/on?cmnd=Power%20On")]


def test_no_proxy_is_asked(tmp_path: Path, plug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug is on this network, and its URL may hold a password: the proxy of the environment
    hears nothing of it."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # nobody listens there
    (switch,) = ladder_with(
        tmp_path, f"{{backend: http, on_url: '{plug}/on', off_url: '{plug}/off'}}"
    )
    switch.act(Action.ON)
    assert REQUESTS == [("GET", "/on")]


def test_a_plug_without_status_is_unknown(tmp_path: Path, plug: str) -> None:
    """Without a status URL nobody pretends to know."""
    (switch,) = ladder_with(
        tmp_path, f"{{backend: http, on_url: '{plug}/on', off_url: '{plug}/off'}}"
    )
    assert switch.state() is PowerState.UNKNOWN


@pytest.mark.parametrize(
    ("path", "expected"), [("/nothing", "HTTP 404"), (":1/on", "ConnectError")]
)
def test_a_plug_that_fails_is_named_without_its_secrets(
    tmp_path: Path, plug: str, path: str, expected: str
) -> None:
    """The message has the host and the fault, never the user info or the query."""
    base = plug if path.startswith("/") else "http://127.0.0.1"
    url = f"{base}{path}".replace("http://", "http://admin:topsecret@") + "?token=topsecret"
    (switch,) = ladder_with(tmp_path, f"{{backend: http, on_url: '{url}', off_url: '{url}'}}")
    with pytest.raises(PowerError) as caught:
        switch.act(Action.ON)
    assert expected in caught.value.message
    assert "duck01: http 127.0.0.1" in caught.value.message
    assert "topsecret" not in caught.value.message + caught.value.hint


def script(folder: Path, text: str) -> Path:
    path = folder / "switch.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_command_gets_the_ducks_facts_and_no_shell(tmp_path: Path) -> None:
    """{duck}, {address} and {mac} are filled in; quotes hold, and ; or $() stay text."""
    log = tmp_path / "log"
    program = script(tmp_path, f'for w in "$@"; do echo "<$w>" >> {log}; done; echo state: on')
    (switch,) = ladder_with(
        tmp_path,
        f"{{backend: command, on: \"{program} {{duck}} '{{address}} x' $(reboot);ls\", "
        f"off: '{program} off {{mac}}', status: '{program}'}}",
    )
    switch.act(Action.ON)
    switch.act(Action.OFF)
    assert log.read_text().splitlines() == [
        *("<duck01>", "<127.0.0.1 x>", "<$(reboot);ls>"),
        *("<off>", "<a8:b8:e0:21:01:0b>"),
    ]
    assert switch.state() is PowerState.ON


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ("/no/such/program", "'/no/such/program' is not installed"),
        ("sh -c 'echo fuse blown >&2; exit 3'", "ended with exit code 3: fuse blown"),
    ],
)
def test_a_command_that_fails_is_named(tmp_path: Path, on: str, expected: str) -> None:
    """What went wrong and the program's own words."""
    (switch,) = ladder_with(tmp_path, f'{{backend: command, on: "{on}", off: "true"}}')
    with pytest.raises(PowerError) as caught:
        switch.act(Action.ON)
    assert caught.value.message.startswith("duck01: ")
    assert expected in caught.value.message


def test_a_command_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that hangs is ended."""
    monkeypatch.setattr("duckctl.power.commands.COMMAND_TIMEOUT_S", 0.2)
    (switch,) = ladder_with(tmp_path, "{backend: command, on: 'sleep 60', off: 'true'}")
    with pytest.raises(PowerError, match="did not end within"):
        switch.act(Action.ON)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [("on_pattern", "(on", "regular expression"), ("on", 'switch "open', "No closing quotation")],
)
def test_an_unusable_option_is_named_when_it_is_read(
    tmp_path: Path, option: str, value: str, expected: str
) -> None:
    """Not first when a duck has to be restarted; a backend that got it all the same says so."""
    options = {"on": "true", "off": "true", "status": "echo on", option: value}
    text = ", ".join(f"{name}: '{word}'" for name, word in options.items())
    with pytest.raises(InventoryError, match=f"option '{option}' .*{expected}"):
        ladder_with(tmp_path, f"{{backend: command, {text}}}")
    fleet = fleet_with(tmp_path, "{backend: none}")
    switch = make_backend(Power("command", options), PowerTarget(fleet.ducks[0], fleet))
    assert switch is not None
    with pytest.raises(PowerError, match=f"{option}'"):
        switch.act(Action.ON) if option == "on" else switch.state()


def test_none_gives_no_backend(tmp_path: Path) -> None:
    """``none`` says on purpose that nothing can switch this duck."""
    assert ladder_with(tmp_path, "{backend: none}") == []
