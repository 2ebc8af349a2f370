"""A folder in which an image is made before it takes its place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duckctl.errors import UsageError
from duckctl.image.manifest import OWN_DISK, ImageError, image_dir, images_dir
from duckctl.native import native_path


def build_hash_in(*programs: Path) -> str:
    """The build hash of this installation, which every one of the programs must carry.

    Raises ImageError for one that was built from other sources: its ducks would refuse the host.
    """
    found = native_path("build-hash").read_text(encoding="ascii").strip()
    for program in programs:
        if found.encode("ascii") not in program.read_bytes():
            raise ImageError(
                f"{program} was not built from the sources of this installation (build {found})",
                "build and install all native parts together",
            )
    return found


@contextmanager
def staged_folder(fleet_dir: Path, name: str) -> Iterator[Path]:
    """An empty folder beside the images; what is left of it at the end is removed."""
    image_dir(fleet_dir, name)  # refuses bad names
    if name == OWN_DISK:
        raise UsageError(
            f"an image cannot have the name '{name}': `duckctl boot set DUCKS {name}` means the "
            "duck's own disk",
            "choose another one",
        )
    folder = images_dir(fleet_dir) / f".{name}.new.{os.getpid()}"
    try:
        folder.parent.mkdir(exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    except OSError as error:
        raise ImageError(f"cannot write to {folder.parent}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
