"""The fleet's public key, as images carry it. The private key never comes near an image."""

from __future__ import annotations

import hashlib
from pathlib import Path

from duckctl.keys import PUBLIC_LABEL, public_path, read_public_key

__all__ = ["PUBLIC_LABEL", "public_id", "public_path", "read_public"]


def read_public(path: Path) -> str:
    """130 hex digits, 04 X Y, of a ``.pub`` file. Raises UsageError with what to do."""
    return read_public_key(path).hex()


def public_id(public: str) -> str:
    """A short name of a key for people and manifests."""
    return hashlib.sha256(bytes.fromhex(public)).hexdigest()[:16]
