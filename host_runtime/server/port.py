"""Taking the port before the slow part of the start-up, and naming who has it when it is taken."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from host_runtime.server.errors import StartupError

_TCP_LISTEN = "0A"  # state column of /proc/net/tcp


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that doesn't listen yet: clients are refused until the model is loaded."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, ValueError) as error:  # ValueError: no host name at all, as a label too long
        raise StartupError(
            f'can\'t resolve the address "{host}": {error}', "give an address of this machine"
        ) from None
    family, kind, protocol, _, address = found[0]
    server = socket.socket(family, kind, protocol)
    # Lets a restarted server have its port at once (connections of the old one in TIME_WAIT); a
    # port that somebody listens on is still refused.
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(address)
    except OSError as error:
        server.close()
        raise _explain(error, host, port) from None
    return server


def drop_unread(server: socket.socket, after_s: float) -> None:
    """Let the kernel drop connections of ``server`` whose client hasn't read for this long, also
    those that have been closed here and still hold bytes to send."""
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(after_s * 1000))


def bound_url(server: socket.socket) -> str:
    """http://HOST:PORT of a bound socket."""
    host, port = server.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _explain(error: OSError, host: str, port: int) -> StartupError:
    if error.errno == errno.EADDRINUSE:
        owner = port_owner(port)
        by = f" by {owner}" if owner else ""
        return StartupError(
            f"port {port} on {host} is in use{by}",
            "stop that process, or choose another port (0 = any free port)",
        )
    if error.errno == errno.EACCES:
        return StartupError(f"no permission to use port {port}", "choose a port above 1023")
    return StartupError(
        f"can't bind {host}:{port}: {error.strerror}", "give an address of this machine"
    )


def port_owner(port: int, proc: Path = Path("/proc")) -> str:
    """ "NAME (process PID)" of the process that listens on a TCP port; "" when it can't be seen."""
    inodes = _listening_inodes(port, proc)
    if not inodes:
        return ""
    for folder in proc.iterdir():
        if folder.name.isdecimal() and not inodes.isdisjoint(_open_files(folder)):
            with suppress(OSError):  # gone meanwhile
                return f"{(folder / 'comm').read_text().strip()} (process {folder.name})"
    return ""


def _open_files(process: Path) -> Iterator[str]:
    """What a process has open; nothing for processes of other users."""
    with suppress(OSError):
        for link in (process / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                yield str(link.readlink())


def _listening_inodes(port: int, proc: Path) -> set[str]:
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == _TCP_LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{columns[9]}]")
    return inodes
