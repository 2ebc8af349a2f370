"""The optional API key of the server."""

from __future__ import annotations

from pathlib import Path

from host_runtime.server.errors import StartupError
from host_runtime.server.port import is_loopback
from host_runtime.server.progress import say

CHARACTERS_MIN = 16


def read_api_key(path: Path | None, host: str) -> str | None:
    """The key that clients must send; a server that others can reach should have one."""
    if path is None:
        if not is_loopback(host):
            say(
                f"warning: {host} can be reached from other machines and there is no API key: "
                'anybody can use this server (set "api_key_file")'
            )
        return None
    try:
        readable_by_others = path.stat().st_mode & 0o077
        content = path.read_bytes()
    except OSError as error:
        raise StartupError(
            f"can't read the API key {path}: {error.strerror}",
            "the user that runs the server must be able to read it",
        ) from None
    if readable_by_others:
        raise StartupError(
            f"{path}: other users can read the API key", f"make it yours: chmod 600 {path}"
        )
    # Bytes that are no UTF-8 become something that is no ASCII either.
    key = content.decode("utf-8", errors="replace").strip()
    if len(key) < CHARACTERS_MIN or not key.isascii() or not key.isprintable():
        raise StartupError(
            f"{path}: expected one line of at least {CHARACTERS_MIN} ASCII characters",
            "make one with: openssl rand -hex 24",
        )
    return key
