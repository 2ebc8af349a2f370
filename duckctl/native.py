"""Where the native parts (duckd, kernels, shared libraries) of this installation are."""

from __future__ import annotations

from pathlib import Path

import duckctl
from duckctl.errors import NativePartMissingError


def native_path(name: str) -> Path:
    """Path of an installed native file, e.g. ``native_path("duckd")``.

    The package may be spread over two folders (editable installs keep native files in
    site-packages), so every entry of the package's path is searched.
    """
    for root in duckctl.__path__:
        candidate = Path(root) / "_native" / name
        if candidate.exists():
            return candidate
    raise NativePartMissingError(name)
