"""A built image: a folder ``<fleet dir>/images/<name>/`` with its files and ``manifest.json``.

The digest is over the manifest's own content (kind, version, build hash, fleet key, and the size
and SHA-256 of every file), so two builds from the same input have the same digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from duckctl.errors import DuckError, UsageError
from duckctl.fleet_file import write_json

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 1 << 20
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,30}[a-z0-9])?")
OWN_DISK = "local"  # what `boot set` calls a duck's own disk; no image has that name
SHA256 = re.compile(r"[0-9a-f]{64}")
READ_BYTES = 1 << 20

Kind = Literal["duckos", "linux"]
Role = Literal["boot", "kernel", "initrd", "uki"]


class ImageError(DuckError):
    """An image that is missing, damaged, or could not be built."""


@dataclass(frozen=True)
class ImageFile:
    """One file of an image; ``path`` is its name inside the image's folder."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class ImageManifest:
    """What an image is. ``files``: by role.

    ``boot``: the one hybrid file of duckos (BIOS boot program, UEFI application, bzImage)
    ``kernel``, ``initrd``: of linux; ``uki``: both in one UEFI application, when it could be made.
    """

    name: str
    kind: Kind
    version: str
    digest: str  # SHA-256, hex
    build_hash: str  # of the duck core and protocol inside; what HELLO tells
    fleet_public_id: str  # first 16 hex digits of the SHA-256 of the fleet's public key
    command_line: str  # of the Linux kernel; empty for duckos
    inputs: Mapping[str, str]  # what it was made from: kernel release, package digests, ...
    files: Mapping[str, ImageFile]

    def sealed(self) -> ImageManifest:
        """The same manifest with the digest that its content has."""
        return replace(self, digest=content_digest(self))


def content_digest(manifest: ImageManifest) -> str:
    """SHA-256 over everything but the name (a copy under another name is the same image)."""
    document = _document(manifest)
    for key in ("schema_version", "name", "digest"):
        del document[key]
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def describe_file(path: Path) -> ImageFile:
    """Size and digest of a file as they are now."""
    hashed, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            hashed.update(block)
            size += len(block)
    return ImageFile(path.name, size, hashed.hexdigest())


def images_dir(fleet_dir: Path) -> Path:
    """The folder of a fleet's images; ``fleet_dir`` is that of its inventory."""
    return fleet_dir / "images"


def image_dir(fleet_dir: Path, name: str) -> Path:
    """The folder of one image. Refuses names that are no names."""
    if not NAME.fullmatch(name):
        raise UsageError(f"'{name}' is no image name: a-z, 0-9, '.' and '-', at most 32 characters")
    return images_dir(fleet_dir) / name


def build_command(name: str) -> str:
    """What makes an image of this name; the kind is for a person to choose when it is another."""
    if name in get_args(Kind):
        return f"duckctl image build {name}"
    return f"duckctl image build duckos|linux --name {name}"


def find_image(fleet_dir: Path, name: str) -> ImageManifest:
    """The manifest of an image. Raises ImageError when there is none, naming those that are."""
    path = image_dir(fleet_dir, name) / MANIFEST
    if not path.is_file():
        known = ", ".join(image.name for image in list_images(fleet_dir)) or "none"
        raise ImageError(
            f"there is no image '{name}' in {images_dir(fleet_dir)} (there are: {known})",
            f"make it: {build_command(name)}",
        )
    return read_manifest(path)


def list_images(fleet_dir: Path) -> list[ImageManifest]:
    """All images of a fleet by name; a damaged manifest is an error, not left out."""
    folder = images_dir(fleet_dir)
    if not folder.is_dir():
        return []
    paths = sorted(entry / MANIFEST for entry in folder.iterdir() if NAME.fullmatch(entry.name))
    return [read_manifest(path) for path in paths if path.is_file()]


def read_manifest(path: Path) -> ImageManifest:
    """Reads a manifest and checks its form and its digest (not the files: ``verify_files``)."""
    try:
        text = path.read_bytes()[: MANIFEST_BYTES_MAX + 1]
        document = json.loads(text)
    except (OSError, ValueError) as error:
        raise ImageError(f"cannot read {path}: {error}", "build the image again") from error
    try:
        manifest = _parse(document, path.parent.name)
    except (KeyError, TypeError, ValueError) as error:
        raise ImageError(f"{path} is no manifest: {error!r}", "build the image again") from error
    if manifest.digest != content_digest(manifest):
        raise ImageError(
            f"{path} was changed after it was written: its digest does not fit its content",
            "build the image again",
        )
    return manifest


def verify_files(fleet_dir: Path, manifest: ImageManifest) -> list[str]:
    """What is wrong with the image's files; empty when every byte is as the manifest says."""
    problems = []
    for role, wanted in manifest.files.items():
        path = image_dir(fleet_dir, manifest.name) / wanted.path
        if not path.is_file():
            problems.append(f"{role}: {path} is missing")
            continue
        found = describe_file(path)
        if found != wanted:
            problems.append(
                f"{role}: {path} has {found.size} bytes, sha256 {found.sha256[:12]}; the manifest "
                f"says {wanted.size} bytes, {wanted.sha256[:12]}"
            )
    return problems


def install_image(fleet_dir: Path, manifest: ImageManifest, staged: Path) -> ImageManifest:
    """Puts a built folder in its place, whole or not at all; an older image of the name goes.

    ``staged`` must lie in ``images_dir(fleet_dir)`` (renames do not cross file systems).
    """
    sealed = manifest.sealed()
    write_json(staged / MANIFEST, _document(sealed))
    (staged / MANIFEST).chmod(0o644)
    place = image_dir(fleet_dir, sealed.name)
    old = place.with_name(f".{sealed.name}.old.{os.getpid()}")
    if place.exists():
        place.rename(old)
    staged.rename(place)
    shutil.rmtree(old, ignore_errors=True)
    return sealed


def _document(manifest: ImageManifest) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "name": manifest.name,
        "kind": manifest.kind,
        "version": manifest.version,
        "digest": manifest.digest,
        "build_hash": manifest.build_hash,
        "fleet_public_id": manifest.fleet_public_id,
        "command_line": manifest.command_line,
        "inputs": dict(sorted(manifest.inputs.items())),
        "files": {
            role: {"path": file.path, "size": file.size, "sha256": file.sha256}
            for role, file in sorted(manifest.files.items())
        },
    }


def as_document(manifest: ImageManifest) -> dict[str, Any]:
    """The manifest as it stands in JSON."""
    return _document(manifest)


def _parse(document: dict[str, Any], folder: str) -> ImageManifest:
    if document["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema_version {document['schema_version']}, expected {SCHEMA_VERSION}")
    kind: Kind = document["kind"]
    if kind not in get_args(Kind):
        raise ValueError(f"kind '{kind}' is not one of {', '.join(get_args(Kind))}")
    files = {}
    for role, entry in document["files"].items():
        if role not in get_args(Role):
            raise ValueError(f"unknown role '{role}'")
        name, size, digest = str(entry["path"]), int(entry["size"]), str(entry["sha256"])
        if name != Path(name).name or name in ("", ".", "..") or not SHA256.fullmatch(digest):
            raise ValueError(f"bad file entry {entry}")
        files[role] = ImageFile(name, size, digest)
    return ImageManifest(
        name=folder,
        kind=kind,
        version=str(document["version"]),
        digest=str(document["digest"]),
        build_hash=str(document["build_hash"]),
        fleet_public_id=str(document["fleet_public_id"]),
        command_line=str(document["command_line"]),
        inputs={str(key): str(value) for key, value in document["inputs"].items()},
        files=files,
    )
