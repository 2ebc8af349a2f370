"""The fleet key: 32 random bytes as 64 hex digits in a file that only its owner may read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from duckctl.errors import UsageError

KEY_BYTES = 32  # DUCK_WIRE_KEY_BYTES
KEY_FILE_BYTES_MAX = 4096


def make_key(path: Path) -> None:
    """Writes a new key, mode 0600. A file that is already there is never touched."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        raise UsageError(
            f"there is already a file {path}",
            "ducks that run with that key would no longer obey a new one; to replace it, move it "
            "away first",
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write key file {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(descriptor, 0o600)
        file.write(secrets.token_hex(KEY_BYTES) + "\n")
        file.flush()
        os.fsync(descriptor)


def check_key(path: Path) -> None:
    """Refuses a key file that is missing, readable by others, or no key; never shows a key."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"key file {path} is not a regular file", "make one: duckctl init")
        if stat.S_IMODE(status.st_mode) & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise UsageError(
                f"key file {path} has mode {mode:04o}: others than its owner may read it",
                f"if nobody else has read it: chmod 600 {path}",
            )
        with path.open(encoding="ascii") as file:
            text = file.read(KEY_FILE_BYTES_MAX).strip()
    except OSError as error:
        raise UsageError(
            f"cannot read key file {path}: {error.strerror}",
            f"make one: duckctl init --fleet-dir {path.parent}",
        ) from error
    except UnicodeDecodeError:
        text = ""
    if len(text) != 2 * KEY_BYTES or any(c not in "0123456789abcdefABCDEF" for c in text):
        raise UsageError(
            f"key file {path} does not hold {2 * KEY_BYTES} hex digits",
            f"make one: duckctl init --fleet-dir {path.parent} (after moving this file away)",
        )
