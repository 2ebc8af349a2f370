"""SSH to ducks that keep an operating system: reboot, power off. It cannot switch on.

Host keys are checked against the fleet's own ``known_hosts`` (beside the inventory). A duck's first
key is written there; a key that changed later is refused, with the line to remove.
"""

from __future__ import annotations

import fcntl
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from duckctl.console import talk
from duckctl.power.backend import Action, PowerError, PowerState, PowerTarget

if TYPE_CHECKING:
    from fabric import Connection

CONNECT_TIMEOUT_S = 5
BANNER_TIMEOUT_S = 10  # a machine that boots accepts connections before sshd speaks
COMMAND_TIMEOUT_S = 15
NO_EXIT_STATUS = -1  # what paramiko returns for a channel that was closed without one
CONNECT_TRIES = 3
RETRY_PAUSE_S = 1.0
KNOWN_HOSTS = "known_hosts"
# The card is armed first: some get no address after a warm restart otherwise (RTL8168), and some
# forget to listen for the magic packet (I226). Both ways of the machine's own tools are tried.
ARM = (
    "for i in /sys/class/net/*; do [ -e $i/device ] && ethtool -s ${i##*/} wol g 2>/dev/null; done;"
)
# The answer must get out before the machine goes: the command returns at once.
COMMANDS = {
    Action.CYCLE: f"{ARM} nohup sh -c 'sleep 1; systemctl reboot || reboot' >/dev/null 2>&1 &",
    Action.OFF: f"{ARM} nohup sh -c 'sleep 1; systemctl poweroff || poweroff' >/dev/null 2>&1 &",
}


class SshPower:
    """``ssh``: options ``user`` (root, or one that may reboot), ``port``, ``key_file``."""

    name = "ssh"
    actions = frozenset(COMMANDS)

    def __init__(self, target: PowerTarget, options: Mapping[str, str]) -> None:
        self._target = target
        self._options = options

    @property
    def known_hosts(self) -> Path:
        return self._target.fleet_dir / KNOWN_HOSTS

    def describe(self) -> str:
        return f"ssh {self._options['user']}@{self._target.duck.address}"

    def state(self) -> PowerState:
        """ON when a login works; silence may have many reasons."""
        try:
            self._run("true")
        except PowerError:
            return PowerState.UNKNOWN
        return PowerState.ON

    def act(self, action: Action) -> None:
        if action not in COMMANDS:
            raise PowerError(f"{self._target.name}: SSH cannot switch a machine on")
        self._run(COMMANDS[action])

    def _run(self, command: str) -> None:
        from invoke.exceptions import CommandTimedOut, UnexpectedExit

        with self._connected() as connection:
            begin = time.monotonic()
            try:
                connection.run(command, hide=True, in_stream=False, timeout=COMMAND_TIMEOUT_S)
            except UnexpectedExit as error:
                if error.result.exited == NO_EXIT_STATUS:
                    # the timer's end of the channel may be seen before the timer's own end
                    if time.monotonic() - begin >= COMMAND_TIMEOUT_S:
                        raise self._no_answer() from error
                    raise self._error("the connection ended before the command did") from error
                said = error.result.stderr.strip()[-200:]
                raise self._error(f"exit code {error.result.exited}: {said}") from error
            except CommandTimedOut as error:
                raise self._no_answer() from error

    def _no_answer(self) -> PowerError:
        return self._error(f"no answer within {COMMAND_TIMEOUT_S} s")

    def _error(self, text: str, hint: str = "") -> PowerError:
        return PowerError(f"{self._target.name}: {self.describe()}: {text}", hint)

    def _connected(self) -> Connection:
        """An open connection. Booting machines get a few tries, at uneven times."""
        from paramiko.ssh_exception import (
            AuthenticationException,
            BadHostKeyException,
            SSHException,
        )

        problem = ""
        for attempt in range(CONNECT_TRIES):
            if attempt:
                time.sleep(RETRY_PAUSE_S * (1 + random.random()))
            connection = self._connection()
            try:
                connection.open()
            except BadHostKeyException as error:
                raise self._error(
                    f"its host key changed (now {error.key.get_fingerprint().hex()})",
                    f"if the machine was installed anew, remove its line from {self.known_hosts}",
                ) from error
            except AuthenticationException as error:
                raise self._error("it refuses the key or user") from error
            except (SSHException, OSError, EOFError) as error:
                problem = str(error) or type(error).__name__
                connection.close()
                continue
            self._remember(connection)
            return connection
        raise self._error(problem)

    def _connection(self) -> Connection:
        from fabric import Config, Connection
        from paramiko.client import AutoAddPolicy

        options: dict[str, object] = {
            "banner_timeout": BANNER_TIMEOUT_S,
            "auth_timeout": BANNER_TIMEOUT_S,
        }
        if "key_file" in self._options:
            key_file = self._target.file("key_file", self._options["key_file"])
            options |= {
                "key_filename": str(key_file),
                "look_for_keys": False,
                "allow_agent": False,
            }
        connection = Connection(
            str(self._target.duck.address),
            user=self._options["user"],
            port=int(self._options.get("port", "22")),
            connect_timeout=CONNECT_TIMEOUT_S,
            connect_kwargs=options,
            config=Config(lazy=True),  # not the user's own fabric and ssh settings
        )
        if self.known_hosts.exists():
            # Not client.load_host_keys: paramiko would then write the file too, and without a lock.
            connection.client.get_host_keys().load(str(self.known_hosts))
        connection.client.set_missing_host_key_policy(AutoAddPolicy())
        return connection

    def _remember(self, connection: Connection) -> None:
        """Keeps a first key. Keys of other ducks that came meanwhile are not lost."""
        from paramiko.hostkeys import HostKeys

        fresh = connection.client.get_host_keys()
        with self.known_hosts.with_name(f"{KNOWN_HOSTS}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other ducks' first keys come at the same time
            kept = HostKeys()
            if self.known_hosts.exists():
                kept.load(str(self.known_hosts))
            new = [host for host in fresh if host not in kept]
            for host in new:
                for kind, key in fresh[host].items():
                    kept.add(host, kind, key)
                    fingerprint = key.get_fingerprint().hex()
                    talk(f"{self._target.name}: first host key {kind} {fingerprint}")
            if new:
                part = self.known_hosts.with_name(f"{KNOWN_HOSTS}.part")
                kept.save(str(part))
                part.replace(self.known_hosts)
