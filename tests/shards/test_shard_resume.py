"""A conversion that is killed, runs out of disk or meets damage ends with the undisturbed bytes."""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shard_helpers import (
    MakeCheckpoint,
    child_command,
    child_environment,
    convert_equal,
    digests_below,
    equal_plan_of,
    run_child,
)
from synthetic_checkpoint import CheckpointSpec

from duckctl.shards import manifest
from duckctl.shards.checkpoint import open_checkpoint
from duckctl.shards.convert import ConvertOptions, convert, find_cache
from duckctl.shards.errors import CacheBusyError, DiskFullError
from duckctl.shards.progress import SilentReporter
from duckctl.shards.store import TEMPORARY_SUFFIX, locked

SPEC = CheckpointSpec(experts=12, layers=5, moe=256, hidden=256)
SLICES = 4
PIECES = SLICES * 5  # four MoE layers and the MTP layer
KILLS = 20
FILL_POINTS = 6


@pytest.fixture(scope="module")
def model_dir(make_checkpoint: MakeCheckpoint) -> Path:
    return make_checkpoint(SPEC)


@pytest.fixture(scope="module")
def undisturbed(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    cache_dir = tmp_path_factory.mktemp("undisturbed")
    convert_equal(model_dir, "fp9", SLICES, cache_dir)
    return digests_below(cache_dir)


def end_after(model_dir: Path, cache_dir: Path, delay_s: float, number: signal.Signals) -> bool:
    """Starts a conversion and sends it a signal; False when it was done before."""
    process = subprocess.Popen(
        child_command(model_dir, "fp9", SLICES, cache_dir),
        env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begin\n"
    try:
        process.wait(timeout=delay_s)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    process.communicate(timeout=120)
    return process.returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_end_at_random_moments_then_resume(
    model_dir: Path, tmp_path: Path, undisturbed: dict[str, str], number: signal.Signals
) -> None:
    """Each moment is drawn from the time that a conversion takes; those that come too late, which
    on a busy machine some do, don't count."""
    random_source = random.Random(20261130)
    started = time.monotonic()
    assert not end_after(model_dir, tmp_path / "timing", 120.0, number)
    duration_s = time.monotonic() - started
    ended = 0
    for attempt in range(3 * KILLS):
        cache_dir = tmp_path / f"cache-{attempt}"
        delay_s = random_source.uniform(0.0, duration_s)
        if not end_after(model_dir, cache_dir, delay_s, number):
            duration_s *= 0.9
            continue
        convert_equal(model_dir, "fp9", SLICES, cache_dir)
        assert digests_below(cache_dir) == undisturbed
        ended += 1
        if ended == KILLS:
            break
    assert ended == KILLS


@pytest.mark.slow
def test_kill_at_every_durability_step_then_resume(
    model_dir: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    """One cache, killed at its 1st, 3rd, 6th, .. fsync or rename, continued every time."""
    kept = 0
    for step in range(1, 200):
        run = run_child(model_dir, "fp9", SLICES, tmp_path, "--die-at", str(3 * step))
        if run.returncode == 0:
            kept = int(run.stdout.split()[2])
            break
        assert run.returncode == -9
    assert kept > 0
    assert digests_below(tmp_path) == undisturbed


@pytest.mark.parametrize("step", [1, 2, 5, 9, 14, 20, 27, 35, 44, 54, 65, 77])
def test_kill_at_one_durability_step(
    model_dir: Path, tmp_path: Path, undisturbed: dict[str, str], step: int
) -> None:
    assert run_child(model_dir, "fp9", SLICES, tmp_path, "--die-at", str(step)).returncode == -9
    assert not list(tmp_path.rglob("cache.json"))
    convert_equal(model_dir, "fp9", SLICES, tmp_path)
    assert digests_below(tmp_path) == undisturbed


def flip_a_bit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def remove(path: Path) -> None:
    path.unlink()


def replace_by_garbage(path: Path) -> None:
    path.write_bytes(b"garbage")


@pytest.mark.parametrize("damage", [flip_a_bit, cut, remove, replace_by_garbage])
@pytest.mark.parametrize(
    "name",
    [
        "slice-02/layer-003.bin",
        "slice-00/directory.bin",
        "cache.json",
        "source.json",
        "plan.json",
        "source/layer-002.json",
    ],
)
def test_a_damaged_file_is_made_again(
    model_dir: Path,
    tmp_path: Path,
    undisturbed: dict[str, str],
    damage: Callable[[Path], None],
    name: str,
) -> None:
    first = convert_equal(model_dir, "fp9", SLICES, tmp_path)
    damage(first.cache_file.parent / name)
    second = convert_equal(model_dir, "fp9", SLICES, tmp_path)
    redone = {"slice-02/layer-003.bin": 1, "source/layer-002.json": SLICES}.get(name, 0)
    assert (second.pieces_made, second.pieces_kept) == (redone, PIECES - redone)
    assert len(second.damaged) == redone
    assert redone != 1 or second.damaged == (name,)
    assert digests_below(tmp_path) == undisturbed


@pytest.mark.parametrize("damage", [flip_a_bit, cut, remove, replace_by_garbage])
def test_a_damaged_journal_costs_work_and_nothing_else(
    model_dir: Path,
    tmp_path: Path,
    undisturbed: dict[str, str],
    damage: Callable[[Path], None],
) -> None:
    first = convert_equal(model_dir, "fp9", SLICES, tmp_path)
    damage(first.cache_file.parent / manifest.JOURNAL_NAME)
    convert_equal(model_dir, "fp9", SLICES, tmp_path)
    assert digests_below(tmp_path) == undisturbed


def test_a_finished_cache_is_kept(model_dir: Path, tmp_path: Path) -> None:
    first = convert_equal(model_dir, "fp9", SLICES, tmp_path)
    second = convert_equal(model_dir, "fp9", SLICES, tmp_path)
    assert (first.pieces_made, first.pieces_kept) == (PIECES, 0)
    assert (second.pieces_made, second.pieces_kept) == (0, PIECES)
    assert first.cache_key == second.cache_key


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a tmpfs of a given size; needs root."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted: list[Path] = []

    def mount(size_bytes: int) -> Path:
        path = tmp_path / "disk"
        path.mkdir()
        options = f"size={size_bytes}".encode()
        if libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, options) != 0:
            pytest.skip(f"cannot mount a tmpfs here: {os.strerror(ctypes.get_errno())}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        assert libc.umount2(os.fsencode(path), 0) == 0


def test_too_small_a_disk_is_refused_before_the_first_byte(
    model_dir: Path, small_disk: Callable[[int], Path]
) -> None:
    total = equal_plan_of(model_dir, "fp9", SLICES).total_bytes
    disk = small_disk(total)
    with pytest.raises(DiskFullError) as caught:
        convert_equal(model_dir, "fp9", SLICES, disk)
    assert "bytes are missing" in caught.value.message
    assert not list(disk.rglob("layer-*"))


class FillingReporter(SilentReporter):
    """Fills the disk when a part of the conversion is done."""

    def __init__(self, disk: Path, after_bytes: int) -> None:
        self.filler = disk / "filler"
        self.left = after_bytes

    def advance(self, count: int) -> None:
        self.left -= count
        if self.left > 0 or self.filler.exists():
            return
        with self.filler.open("wb", buffering=0) as file:
            for block in (1 << 20, 4096):
                try:
                    while True:
                        file.write(bytes(block))
                except OSError:
                    continue


@pytest.mark.parametrize("seed", range(FILL_POINTS))
def test_a_disk_that_fills_up_names_the_missing_bytes_and_resumes(
    model_dir: Path,
    small_disk: Callable[[int], Path],
    undisturbed: dict[str, str],
    seed: int,
) -> None:
    checkpoint = open_checkpoint(model_dir)
    plan = equal_plan_of(model_dir, "fp9", SLICES)
    disk = small_disk(plan.total_bytes + (48 << 20))
    after = random.Random(seed).randrange(checkpoint.expert_bytes * 3 // 4)
    reporter = FillingReporter(disk, after)
    with pytest.raises(DiskFullError) as caught:
        convert(checkpoint, plan, disk / "cache", ConvertOptions(2), reporter)
    assert "bytes of free space are missing" in caught.value.message
    assert not list(disk.rglob("*" + TEMPORARY_SUFFIX))
    reporter.filler.unlink()
    convert_equal(model_dir, "fp9", SLICES, disk / "cache")
    assert digests_below(disk / "cache") == undisturbed


def test_a_file_size_limit_is_an_error_and_resumes(
    model_dir: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    limit = equal_plan_of(model_dir, "fp9", SLICES).layout(0).segment_bytes // 2
    run = subprocess.run(
        child_command(model_dir, "fp9", SLICES, tmp_path),
        env=child_environment(), capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert run.returncode == 1
    assert "File too large" in run.stderr
    assert "bytes remain to be written" in run.stderr
    convert_equal(model_dir, "fp9", SLICES, tmp_path)
    assert digests_below(tmp_path) == undisturbed


def test_a_piece_whose_error_is_no_number_is_made_again(
    model_dir: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    """As an earlier version wrote it for a block with the scale 0 in fp7."""
    directory = convert_equal(model_dir, "fp9", SLICES, tmp_path).cache_file.parent
    journal = directory / manifest.JOURNAL_NAME
    header, *lines = journal.read_text().splitlines()
    fields = json.loads(lines[3].split(" ", 1)[1])
    fields[5][0] = math.nan
    text = json.dumps(fields)
    lines[3] = f"{zlib.crc32(text.encode()):08x} {text}"
    journal.write_text("\n".join([header, *lines, ""]))
    (directory / manifest.CACHE_NAME).unlink()
    again = convert_equal(model_dir, "fp9", SLICES, tmp_path)
    assert (again.pieces_made, again.pieces_kept) == (1, PIECES - 1)
    assert digests_below(tmp_path) == undisturbed


def test_a_second_run_on_the_same_cache_is_told_who_holds_it(
    model_dir: Path, tmp_path: Path
) -> None:
    first = convert_equal(model_dir, "fp9", SLICES, tmp_path)
    with locked(first.cache_file.parent):
        run = run_child(model_dir, "fp9", SLICES, tmp_path)
    assert run.returncode == 1
    assert f"process {os.getpid()} is writing to the cache" in run.stderr
    with locked(first.cache_file.parent), pytest.raises(CacheBusyError):
        convert_equal(model_dir, "fp9", SLICES, tmp_path)


def test_concurrent_runs_leave_one_right_cache(
    model_dir: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    runs = [
        subprocess.Popen(
            child_command(model_dir, "fp9", SLICES, tmp_path),
            env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    errors = [run.communicate(timeout=120)[1] for run in runs]
    codes = [run.returncode for run in runs]
    assert 0 in codes
    busy = ["is writing to the cache" in error for error in errors]
    assert busy == [code != 0 for code in codes] == [bool(error) for error in errors], errors
    assert digests_below(tmp_path) == undisturbed


def change_one_byte(model_dir: Path, layer: int) -> None:
    """Flips a mantissa bit of an expert weight in the source."""
    source = open_checkpoint(model_dir).experts(layer)[3].down
    with source.path.open("r+b") as file:
        file.seek(source.offset + 1000)
        byte = file.read(1)[0]
        file.seek(source.offset + 1000)
        file.write(bytes([byte ^ 0x80]))


def test_a_changed_source_gets_another_key(model_dir: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(model_dir, tmp_path / "model"))
    first = convert_equal(copy, "fp9", SLICES, tmp_path / "cache")
    change_one_byte(copy, 2)
    assert find_cache(copy, "fp9", SLICES, tmp_path / "cache") is None
    second = convert_equal(copy, "fp9", SLICES, tmp_path / "cache")
    assert second.cache_key != first.cache_key
    assert second.cache_file != first.cache_file
    assert second.pieces_kept == 0


def test_a_large_changed_source_is_read_again_by_its_date(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the size that is fingerprinted whole, a new date makes every finished piece suspect."""
    monkeypatch.setattr(manifest, "FULL_DIGEST_BYTES_MAX", 0)
    monkeypatch.setattr(manifest, "SAMPLES_PER_FILE", 2)
    copy = Path(shutil.copytree(model_dir, tmp_path / "model"))
    cache_dir = tmp_path / "cache"
    first = convert_equal(copy, "fp9", SLICES, cache_dir)
    assert find_cache(copy, "fp9", SLICES, cache_dir) == first.cache_file

    for file in copy.glob("*.safetensors"):
        os.utime(file)
    assert find_cache(copy, "fp9", SLICES, cache_dir) is None
    touched = convert_equal(copy, "fp9", SLICES, cache_dir)
    assert (touched.pieces_made, touched.cache_key) == (0, first.cache_key)
    assert find_cache(copy, "fp9", SLICES, cache_dir) == first.cache_file

    change_one_byte(copy, 2)
    changed = convert_equal(copy, "fp9", SLICES, cache_dir)
    assert changed.cache_file == first.cache_file
    assert changed.cache_key != first.cache_key
    assert (changed.pieces_made, changed.pieces_kept) == (SLICES, PIECES - SLICES)
    fresh = convert_equal(copy, "fp9", SLICES, tmp_path / "fresh")
    assert digests_below(cache_dir) == digests_below(tmp_path / "fresh")
    assert fresh.cache_key == changed.cache_key


def test_find_cache_wants_whole_files_of_this_plan(model_dir: Path, tmp_path: Path) -> None:
    assert find_cache(model_dir, "fp9", SLICES, tmp_path) is None
    made = convert_equal(model_dir, "fp9", SLICES, tmp_path)
    assert find_cache(model_dir, "fp9", SLICES, tmp_path) == made.cache_file
    rows = [(64 * index, 64) for index in range(4)]
    assert find_cache(model_dir, "fp9", rows, tmp_path) == made.cache_file
    assert find_cache(model_dir, "fp8", SLICES, tmp_path) is None
    assert find_cache(model_dir, "fp9", 2, tmp_path) is None
    cut(made.cache_file.parent / "slice-01/layer-004.bin")
    assert find_cache(model_dir, "fp9", SLICES, tmp_path) is None
