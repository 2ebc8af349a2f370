"""SSH against a real sshd on loopback: commands, host keys, refusals, machines that boot."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from power_kit import free_port, ladder_with

from duckctl.power import ssh
from duckctl.power.backend import Action, PowerBackend, PowerError, PowerState
from duckctl.process import wait_until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
pytestmark = pytest.mark.skipif(
    not Path(SSHD).exists() or os.geteuid() != 0,
    reason="needs root and sshd (Debian: openssh-server)",
)
CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
UsePAM no
StrictModes no
UseDNS no
PidFile none
PasswordAuthentication no
PermitRootLogin yes
"""


def make_key(path: Path) -> None:
    path.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)


@dataclass
class SshServer:
    """An sshd that can be restarted with another host key."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        make_key(self.folder / "host_key")
        config = self.folder / "sshd_config"
        config.write_text(CONFIG.format(port=self.port, folder=self.folder))
        Path("/run/sshd").mkdir(exist_ok=True)
        self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=subprocess.DEVNULL)
        assert wait_until(self.listens, 10)

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshServer]:
    server = SshServer(tmp_path, free_port())
    make_key(tmp_path / "user_key")
    server.start()
    yield server
    server.stop()


def duck(server: SshServer) -> PowerBackend:
    (backend,) = ladder_with(
        server.folder,
        f"{{backend: ssh, user: root, port: '{server.port}', key_file: user_key}}",
    )
    return backend


def test_commands_run_and_the_first_key_is_kept(
    server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart's command really runs on the machine; known_hosts of the fleet has its key."""
    mark = server.folder / "restarted"
    monkeypatch.setitem(ssh.COMMANDS, Action.CYCLE, f"touch {mark}")
    backend = duck(server)
    assert backend.state() is PowerState.ON
    backend.act(Action.CYCLE)
    assert mark.exists()
    known = (server.folder / "known_hosts").read_text()
    assert known.startswith(f"[127.0.0.1]:{server.port} ssh-ed25519 ")
    assert known.count("\n") == 1


def test_a_first_key_is_shown_and_added_to_the_others(
    server: SshServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Logging in alone leaves the shared file as it is: it is replaced whole, under its lock."""
    from paramiko import ECDSAKey

    other = ECDSAKey.generate()
    known = server.folder / "known_hosts"
    line = f"10.0.0.7 {other.get_name()} {other.get_base64()}\n"
    known.write_text(line)
    backend = duck(server)
    with monkeypatch.context() as patch:
        patch.setattr(ssh.SshPower, "_remember", lambda *_: None)
        assert backend.state() is PowerState.ON
        assert known.read_text() == line
    with caplog.at_level("INFO"):
        assert backend.state() is PowerState.ON
    assert "duck01: first host key ssh-ed25519 " in caplog.text
    assert known.read_text().startswith(f"{line}[127.0.0.1]:{server.port} ssh-ed25519 ")


def test_t43_a_changed_host_key_is_refused(server: SshServer) -> None:
    """The fleet's own known_hosts is checked; the message says which line to remove."""
    backend = duck(server)
    assert backend.state() is PowerState.ON
    server.stop()
    server.start()  # with a new key, as another machine would have
    with pytest.raises(PowerError, match="its host key changed") as caught:
        backend.act(Action.CYCLE)
    assert str(server.folder / "known_hosts") in caught.value.hint
    assert backend.state() is PowerState.UNKNOWN


def test_a_refused_user_is_named(server: SshServer) -> None:
    """Another key than the authorised one."""
    backend = duck(server)
    make_key(server.folder / "other_key")
    (server.folder / "other_key").replace(server.folder / "user_key")
    with pytest.raises(PowerError, match="it refuses the key or user"):
        backend.act(Action.CYCLE)


def test_a_command_that_fails_is_named(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code and the machine's own words."""
    monkeypatch.setitem(ssh.COMMANDS, Action.CYCLE, "echo not permitted >&2; exit 7")
    with pytest.raises(PowerError, match="exit code 7: not permitted"):
        duck(server).act(Action.CYCLE)


@pytest.mark.slow
def test_t44_a_booting_machine_gets_retries(tmp_path: Path) -> None:
    """Port open, banner missing: a few tries, then an error with the reason; never a hang."""
    make_key(tmp_path / "user_key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[socket.socket] = []

        def accept() -> None:
            for _ in range(ssh.CONNECT_TRIES):
                connection, _ = listener.accept()
                accepted.append(connection)
                connection.close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        (backend,) = ladder_with(
            tmp_path,
            f"{{backend: ssh, user: root, port: '{listener.getsockname()[1]}', "
            "key_file: user_key}",
        )
        with pytest.raises(PowerError, match="duck01: ssh root@127"):
            backend.act(Action.CYCLE)
        thread.join(10)
        assert len(accepted) == ssh.CONNECT_TRIES


def test_t45_every_wait_has_a_limit(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that never ends is given up."""
    monkeypatch.setattr(ssh, "COMMAND_TIMEOUT_S", 0.5)
    monkeypatch.setitem(ssh.COMMANDS, Action.OFF, "sleep 20")
    with pytest.raises(PowerError, match="no answer within"):
        duck(server).act(Action.OFF)


def test_a_wait_that_ends_slowly_is_told_as_what_it_is(
    server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The closed channel is seen while the timer that closed it still runs."""
    from fabric.runners import Remote

    close = Remote.kill

    def close_slowly(runner: Remote) -> None:
        close(runner)
        time.sleep(0.3)

    monkeypatch.setattr(Remote, "kill", close_slowly)
    test_t45_every_wait_has_a_limit(server, monkeypatch)


def test_a_connection_that_ends_first_is_told(
    server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ssh.COMMANDS, Action.OFF, "kill -9 $PPID")
    with pytest.raises(PowerError, match="the connection ended before the command did"):
        duck(server).act(Action.OFF)


def test_t06_the_card_is_armed_before_a_restart() -> None:
    """Restart and power-off both begin with `wol g`: RTL8168 and I226 need it."""
    assert set(ssh.COMMANDS) == {Action.CYCLE, Action.OFF}
    assert all(command.startswith(ssh.ARM) for command in ssh.COMMANDS.values())
    assert "wol g" in ssh.ARM


def test_ssh_cannot_switch_on(server: SshServer) -> None:
    """There is nobody to talk to."""
    with pytest.raises(PowerError, match="cannot switch a machine on"):
        duck(server).act(Action.ON)
