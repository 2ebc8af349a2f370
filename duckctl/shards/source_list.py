"""Checks a model's files against a publisher's list of sha256 digests."""

from __future__ import annotations

import re
from pathlib import Path

from duckctl.shards.checkpoint import Checkpoint
from duckctl.shards.errors import CheckpointError
from duckctl.shards.progress import Reporter
from duckctl.shards.safetensors import DOWNLOAD_AGAIN
from duckctl.shards.store import file_sha256, hashing_pool


def read_source_list(path: Path) -> dict[str, str]:
    """Lines 'sha256  name' (sha256sum's form); folders in names are dropped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"the list {path} cannot be read: {error}", "make one with: sha256sum *.safetensors"
        ) from error
    digests: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"([0-9a-fA-F]{64})\s+\*?(\S.*)", line.strip())
        if match is None:
            raise CheckpointError(
                f"{path} line {number} is not 'sha256  name'", "sha256sum writes such lines"
            )
        digests[Path(match[2]).name] = match[1].lower()
    return digests


def check_source_list(checkpoint: Checkpoint, path: Path, threads: int, reporter: Reporter) -> None:
    """Every weight file must be in the list and have its digest."""
    expected = read_source_list(path)
    files = checkpoint.files
    unlisted = [file.path.name for file in files if file.path.name not in expected]
    if unlisted:
        raise CheckpointError(
            f"{path} does not list {unlisted[0]}", "the list must cover every weight file"
        )
    reporter.start("checking the model's files", sum(file.size_bytes for file in files))
    with hashing_pool(threads) as (pool, stop):
        found = pool.map(lambda file: file_sha256(file.path, stop), files)
        for file, digest in zip(files, found, strict=True):
            if digest != expected[file.path.name]:
                raise CheckpointError(
                    f"{file.path} has sha256 {digest}, {path} says {expected[file.path.name]}",
                    DOWNLOAD_AGAIN,
                )
            reporter.advance(file.size_bytes)
    reporter.finish()
