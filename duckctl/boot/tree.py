"""The files that are served: TFTP's folder, and the HTTP server's table of paths.

Nothing is served by walking folders: what is not in the table does not exist.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from duckctl.boot.plan import BootPlan
from duckctl.errors import DuckError
from duckctl.image.manifest import ImageManifest

# TFTP is for first stages and the hybrid image; a UKI goes this way only when nothing else can.
DUCKOS_NAMES = ("duckos.img", "duckos.efi")


class BootTreeError(DuckError):
    """The folder of boot files cannot be made."""


def image_paths(plan: BootPlan, image: ImageManifest) -> dict[str, Path]:
    """What an image serves: name below ``<image name>/`` -> file."""
    folder = plan.folder_of(image)
    if image.kind == "duckos":
        return dict.fromkeys(DUCKOS_NAMES, folder / image.files["boot"].path)
    return {file.path: folder / file.path for file in image.files.values()}


def web_paths(plan: BootPlan) -> dict[str, Path]:
    """HTTP path -> file, for all images and boot loaders."""
    paths = {f"/ipxe/{name}": path for name, path in plan.ipxe_files.items()}
    for image in plan.images.values():
        for name, path in image_paths(plan, image).items():
            paths[f"/images/{image.name}/{name}"] = path
    return paths


def tftp_paths(plan: BootPlan) -> dict[str, Path]:
    """Name below the TFTP root -> file."""
    paths = dict(plan.ipxe_files)
    for image in plan.images.values():
        for name, path in image_paths(plan, image).items():
            if image.kind == "duckos" or (name.endswith(".efi") and not plan.ipxe_files):
                paths[f"{image.name}/{name}"] = path
    return paths


def sync_tftp(plan: BootPlan) -> list[str]:
    """Makes the TFTP folder hold exactly ``tftp_paths``; gives the names that changed.

    A file is replaced by a rename, so a transfer that runs ends with the old bytes.
    """
    root = plan.paths.tftp
    wanted = tftp_paths(plan)
    changed = []
    try:
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o755)
        for name, source in wanted.items():
            if _place(source, root / name):
                changed.append(name)
        for path in sorted(root.rglob("*"), reverse=True):
            name = path.relative_to(root).as_posix()
            if path.is_dir():
                if not any(path.iterdir()):
                    path.rmdir()
            elif name not in wanted:
                path.unlink()
                changed.append(name)
    except OSError as error:
        raise BootTreeError(f"cannot make the boot files in {root}: {error}") from error
    return sorted(changed)


def _place(source: Path, place: Path) -> bool:
    """Puts a copy of a file in its place; False if it is there already."""
    found = source.stat()
    if place.exists():
        now = place.stat()
        same_file = (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino)
        same_copy = (now.st_size, now.st_mtime_ns) == (found.st_size, found.st_mtime_ns)
        if same_file or same_copy:
            return False
    place.parent.mkdir(parents=True, exist_ok=True)
    place.parent.chmod(0o755)
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    shutil.copy2(source, temporary)
    temporary.chmod(0o644)
    temporary.replace(place)
    return True
