"""Files and folders that this user may not write: who, where, and what to do about it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duckctl.errors import DuckError


class RightsError(DuckError):
    """The system does not let this user write there."""


def user_name(number: int) -> str:
    """The name of a user, or its number where the system knows no name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def may_write(path: Path) -> bool:
    """True if this process may write a file, or make files in a folder."""
    wanted = os.W_OK | (os.X_OK if path.is_dir() else 0)
    return os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids)


def refusal(path: Path) -> tuple[str, str] | None:
    """Why ``path`` (a file that may not exist, or a folder) cannot be written, and what to do.

    None: by its rights it could be.
    """
    place = path
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    folder = place if place.is_dir() else place.parent
    blocked = next((entry for entry in (folder, place) if not may_write(entry)), None)
    if blocked is None:
        return None
    me, owner = user_name(os.geteuid()), user_name(blocked.lstat().st_uid)
    kind = "folder" if blocked.is_dir() else "file"
    owned = f"it belongs to {owner}" if owner != me else "its mode, or its disk, is read-only"
    way = f"run this as {owner}, or let" if owner != me else "let"
    return (
        f"{me} may not write in the {kind} {blocked} ({owned})",
        f"{way} {me} write there (chown, chmod), or keep the inventory in a folder of your own",
    )


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turns what the system says of ``path`` into an error that names folder and user."""
    try:
        yield
    except OSError as error:
        message, hint = refusal(path) or (f"cannot write {path}: {error.strerror}", "")
        raise RightsError(message, hint) from error
