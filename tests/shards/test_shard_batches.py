"""Many batches on their way at once: order, bytes and ends are those of one after the other."""

from __future__ import annotations

import errno
import itertools
import random
import threading
import time
from pathlib import Path

import pytest
from shard_helpers import MakeCheckpoint, convert_equal, digests_below
from synthetic_checkpoint import CheckpointSpec

from duckctl.shards import pipeline
from duckctl.shards.errors import DiskFullError
from duckctl.shards.store import TEMPORARY_SUFFIX, PieceWriter

SPEC = CheckpointSpec(experts=12, layers=3, moe=256, hidden=256)
SLICES = 4
SEED = 20261201


@pytest.fixture(scope="module")
def model_dir(make_checkpoint: MakeCheckpoint) -> Path:
    return make_checkpoint(SPEC)


@pytest.fixture(scope="module")
def undisturbed(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The cache made with whole layers as batches."""
    cache_dir = tmp_path_factory.mktemp("undisturbed")
    convert_equal(model_dir, "fp9", SLICES, cache_dir)
    return digests_below(cache_dir)


@pytest.fixture
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "BUFFER_BYTES_MAX", 1)  # one expert each


@pytest.mark.usefixtures("_small_batches")
def test_slow_writes_keep_their_order(
    model_dir: Path, tmp_path: Path, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes that take random times overlap with those of other slices, never with their own's."""
    write, random_source = PieceWriter.write, random.Random(SEED)
    lock, busy, most = threading.Lock(), set[Path](), 0

    def slow_write(self: PieceWriter, data: memoryview) -> None:
        nonlocal most
        with lock:
            assert self.path not in busy, "two writes to one piece at once"
            busy.add(self.path)
            most = max(most, len(busy))
            pause_s = random_source.uniform(0, 0.02)
        time.sleep(pause_s)
        write(self, data)
        with lock:
            busy.remove(self.path)

    monkeypatch.setattr(PieceWriter, "write", slow_write)
    convert_equal(model_dir, "fp9", SLICES, tmp_path)
    assert most > 1
    assert digests_below(tmp_path) == undisturbed


@pytest.mark.usefixtures("_small_batches")
@pytest.mark.parametrize("failing", [1, 2, 7, 30, 95])
def test_a_full_disk_among_batches(
    model_dir: Path,
    tmp_path: Path,
    undisturbed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    failing: int,
) -> None:
    """The N-th write fails while others are under way: named, nothing half-done, then resumed."""
    write, number = PieceWriter.write, itertools.count(1)

    def failing_write(self: PieceWriter, data: memoryview) -> None:
        if next(number) == failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(PieceWriter, "write", failing_write)
        with pytest.raises(DiskFullError, match=r"No space left on device; .* remain to be"):
            convert_equal(model_dir, "fp9", SLICES, tmp_path)
    assert not list(tmp_path.rglob("*" + TEMPORARY_SUFFIX))
    assert not list(tmp_path.rglob("cache.json"))
    convert_equal(model_dir, "fp9", SLICES, tmp_path)
    assert digests_below(tmp_path) == undisturbed
