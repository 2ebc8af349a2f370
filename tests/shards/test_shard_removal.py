"""A cache that is removed is gone as a whole before anybody else may write to it."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from shard_helpers import MakeCheckpoint, convert_equal, digests_below
from synthetic_checkpoint import CheckpointSpec

from duckctl.shards.catalogue import list_caches, remove_cache
from duckctl.shards.errors import CacheBusyError, CacheError
from duckctl.shards.manifest import JOURNAL_NAME, LOCK_NAME
from duckctl.shards.store import locked

SPEC = CheckpointSpec(experts=2, layers=3, moe=64)


@pytest.fixture
def model_dir(make_checkpoint: MakeCheckpoint) -> Path:
    return make_checkpoint(SPEC)


def test_nobody_gets_the_lock_of_a_cache_that_is_being_removed(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = convert_equal(model_dir, "fp8", 2, tmp_path).cache_file.parent
    before = digests_below(tmp_path)
    busy: list[str] = []
    remove_tree, unlink = shutil.rmtree, Path.unlink

    def try_to_convert(path: Path) -> None:
        if (directory / LOCK_NAME).exists() and path.name != LOCK_NAME:
            with pytest.raises(CacheBusyError):
                convert_equal(model_dir, "fp8", 2, tmp_path)
            busy.append(path.name)

    def tree(path: Path, *rest: Any) -> None:
        try_to_convert(path)
        remove_tree(path, *rest)

    def single(path: Path, *, missing_ok: bool = False) -> None:
        try_to_convert(path)
        unlink(path, missing_ok=missing_ok)

    (entry,) = list_caches(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", tree)
        patch.setattr(Path, "unlink", single)
        remove_cache(entry)
    assert JOURNAL_NAME in busy
    assert {"slice-00", "slice-01"} < set(busy)
    assert not directory.exists()
    convert_equal(model_dir, "fp8", 2, tmp_path)
    assert digests_below(tmp_path) == before


def test_a_removal_that_was_cut_off_is_listed_and_goes_on(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = convert_equal(model_dir, "fp8", 2, tmp_path).cache_file.parent
    (entry,) = list_caches(tmp_path)

    def fail(path: Path) -> None:
        raise OSError("the machine stops here")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        with pytest.raises(OSError, match="stops here"):
            remove_cache(entry)
    (entry,) = list_caches(tmp_path)
    assert entry.state == "incomplete"
    remove_cache(entry)
    assert not directory.exists()


def test_a_lock_file_that_was_removed_before_it_was_locked_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened while a removal was at its end: the new file of that name is locked, or none is."""
    flock: list[int] = []
    lock = fcntl.flock

    def after_removal(descriptor: int, how: int) -> None:
        if not flock:
            (tmp_path / LOCK_NAME).unlink()
        flock.append(os.fstat(descriptor).st_ino)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", after_removal)
    with locked(tmp_path):
        assert len(flock) == 2
        assert (tmp_path / LOCK_NAME).stat().st_ino == flock[1]
        with pytest.raises(CacheBusyError), locked(tmp_path):
            pass
    gone = tmp_path / "gone"
    with pytest.raises(CacheError, match="has been removed"), locked(gone):
        pass
