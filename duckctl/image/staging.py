"""A folder in which an image is made before it takes its place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duckctl.image.manifest import ImageError, image_dir, images_dir


@contextmanager
def staged_folder(fleet_dir: Path, name: str) -> Iterator[Path]:
    """An empty folder beside the images; what is left of it at the end is removed."""
    image_dir(fleet_dir, name)  # refuses bad names
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
