"""The fleet's public key, as images carry it. The private key never comes near an image."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from duckctl.errors import UsageError

PREFIX = "duck-p256-public:"
POINT = re.compile(r"04[0-9a-f]{128}")  # uncompressed P-256 point, SEC 1 2.3.3
FILE_BYTES_MAX = 4096


def public_path(key_file: Path) -> Path:
    """The public key lies beside the private one: ``fleet.key`` -> ``fleet.pub``."""
    return key_file.with_suffix(".pub")


def read_public(path: Path) -> str:
    """130 hex digits: 04 X Y. Raises UsageError with what to do."""
    try:
        with path.open(encoding="ascii") as file:
            text = file.read(FILE_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the fleet's public key {path}: {error}",
            f"make a key: duckctl init --fleet-dir {path.parent}",
        ) from error
    digits = text.removeprefix(PREFIX).lower()
    if not text.startswith(PREFIX) or not POINT.fullmatch(digits):
        raise UsageError(
            f"{path} holds no fleet key (one line: {PREFIX}<130 hex digits>)",
            f"make a key: duckctl init --fleet-dir {path.parent}",
        )
    return digits


def public_id(public: str) -> str:
    """A short name of a key for people and manifests."""
    return hashlib.sha256(bytes.fromhex(public)).hexdigest()[:16]
