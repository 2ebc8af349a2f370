"""``duckctl shard-weights`` and ``duckctl cache`` do, print and refuse what their help says."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from shard_helpers import MakeCheckpoint, child_environment, digests_below
from synthetic_checkpoint import CheckpointSpec

from duckctl import cli
from duckctl.shards.checkpoint import open_checkpoint
from duckctl.shards.convert import MANIFEST_BYTES_MAX
from duckctl.shards.errors import CheckpointError
from duckctl.shards.manifest import JOURNAL_NAME
from duckctl.shards.progress import SilentReporter
from duckctl.shards.source_list import check_source_list
from duckctl.shards.store import file_sha256, hashing_pool, locked

INVENTORY = """
all:
  vars:
    fleet_name: four
  children:
    gpu_host:
      hosts:
        host: {ansible_connection: local}
    ducks:
      children:
        domain1:
          vars: {domain_subnet: 10.21.1.0/24, domain_host_address: 10.21.1.1}
          hosts:
            d01: {duck_address: 10.21.1.11, duck_mac: "02:00:00:00:01:01", duck_memory_gib: 16}
            d02: {duck_address: 10.21.1.12, duck_mac: "02:00:00:00:01:02", duck_memory_gib: 16}
"""


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        assert self.returncode == 0, self.stderr
        return json.loads(self.stdout)


class Duckctl:
    """Runs commands in this process: the same code as the console script, without its start."""

    def __init__(self, capsys: pytest.CaptureFixture[str], cache_dir: Path) -> None:
        self.capsys = capsys
        self.cache_dir = cache_dir

    def run(self, *arguments: str) -> Answer:
        self.capsys.readouterr()
        returncode = cli.run(list(arguments))
        return Answer(returncode, *self.capsys.readouterr())

    def shard(self, *arguments: str) -> Answer:
        return self.run("shard-weights", "--cache-dir", str(self.cache_dir), *arguments)

    def cache(self, command: str, *arguments: str) -> Answer:
        return self.run("cache", command, "--cache-dir", str(self.cache_dir), *arguments)


@pytest.fixture
def duckctl(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Duckctl:
    return Duckctl(capsys, tmp_path / "cache")


@pytest.mark.parametrize("fmt", ["fp8", "fp9"])
def test_dry_run_tells_the_real_file_sizes(duckctl: Duckctl, fmt: str) -> None:
    common = ("ducklet", "--ducks", "4", "--format", fmt, "--json")
    plan = duckctl.shard(*common, "--dry-run").json
    assert not duckctl.cache_dir.exists()
    directory = Path(duckctl.shard(*common).json["cache_file"]).parent
    told = {piece["file"]: piece["bytes"] for piece in plan["files"]}
    files = {path.relative_to(directory).as_posix(): path for path in directory.glob("slice-*/*")}
    assert told == {name: path.stat().st_size for name, path in files.items()}
    assert len(plan["ducks"]) == 4
    assert plan["cache_bytes"] == sum(piece["bytes"] for piece in plan["files"])
    assert plan["cache_bytes"] == sum(duck["bytes"] for duck in plan["ducks"])
    assert plan["estimated_seconds"] >= 0
    for index, duck in enumerate(plan["ducks"]):
        slice_files = (directory / f"slice-{index:02d}").iterdir()
        assert duck["bytes"] == sum(file.stat().st_size for file in slice_files)


def test_dry_run_counts_what_is_left_to_do(
    duckctl: Duckctl, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Space for the missing piece only, as the real run needs; nothing of the cache is touched."""
    model = str(make_checkpoint(CheckpointSpec(experts=2, layers=3, moe=64)))
    common = (model, "--ducks", "2", "--format", "fp8", "--json")
    fresh = duckctl.shard(*common, "--dry-run").json
    directory = Path(duckctl.shard(*common).json["cache_file"]).parent
    done = duckctl.shard(*common, "--dry-run").json
    assert (done["need_bytes"], done["estimated_seconds"]) == (0, 0)
    assert fresh["need_bytes"] == done["kept_bytes"] + MANIFEST_BYTES_MAX
    piece = directory / "slice-01" / "layer-002.bin"
    size = piece.stat().st_size
    piece.unlink()
    before = digests_below(duckctl.cache_dir), (directory / JOURNAL_NAME).read_bytes()
    monkeypatch.setattr(
        "duckctl.shards.estimate.free_bytes", lambda _folder: size + MANIFEST_BYTES_MAX
    )
    left = duckctl.shard(*common, "--dry-run").json
    assert left["need_bytes"] == size + MANIFEST_BYTES_MAX
    assert left["kept_bytes"] == done["kept_bytes"] - size
    assert before == (digests_below(duckctl.cache_dir), (directory / JOURNAL_NAME).read_bytes())
    assert "of finished pieces" in duckctl.shard(*common[:-1], "--dry-run").stderr
    assert duckctl.shard(*common).json["written_bytes"] == size


def test_dry_run_as_a_table_names_every_duck(duckctl: Duckctl) -> None:
    run = duckctl.shard("ducklet", "--ducks", "4", "--dry-run")
    assert run.returncode == 0
    for word in ("duck 0", "duck 3", "192..255", "4591616"):
        assert word in run.stdout
    assert "480 sharded, 181 on the host" in run.stderr


def test_shipped_model_converts_lists_verifies_and_prunes(duckctl: Duckctl) -> None:
    made = duckctl.shard("ducklet", "--ducks", "4", "--json").json
    assert (made["pieces_made"], made["slices"], made["format"]) == (20, 4, "fp9")
    manifest = json.loads(Path(made["cache_file"]).read_text())
    assert manifest["model"]["name"] == "ducklet"
    assert manifest["report"] == {"lossless": True, "relative_error": {}}
    (entry,) = duckctl.cache("ls", "--json").json["caches"]
    assert (entry["state"], entry["cache_key"]) == ("complete", made["cache_key"])
    assert entry["name"] in duckctl.cache("ls").stdout
    assert duckctl.cache("verify", "--json").json["ok"] is True
    assert duckctl.cache("verify", entry["name"][:12]).returncode == 0
    assert duckctl.cache("prune", "--json").json["removed"] == []
    gone = duckctl.cache("prune", "--all", "--json").json
    assert [item["name"] for item in gone["removed"]] == [entry["name"]]
    assert not list(duckctl.cache_dir.iterdir())


def test_prune_removes_what_cannot_be_used_and_the_oldest(duckctl: Duckctl) -> None:
    first, second, third = (
        Path(duckctl.shard("ducklet", "--ducks", count, "--json").json["cache_file"])
        for count in ("1", "2", "4")
    )
    third.unlink()
    (duckctl.cache_dir / "not-a-cache").mkdir()
    for path in first.parent.rglob("*"):
        os.utime(path, (1, 1))
    listed = duckctl.cache("ls", "--json").json["caches"]
    assert [entry["state"] for entry in listed] == ["complete", "complete", "incomplete"]
    assert f"would remove {third.parent}" in duckctl.cache("prune", "--dry-run").stderr
    assert third.parent.exists()
    duckctl.cache("prune")
    assert sorted(path.name for path in duckctl.cache_dir.iterdir()) == sorted(
        ["not-a-cache", first.parent.name, second.parent.name]
    )
    duckctl.cache("prune", "--max-size", "20M")
    assert not first.parent.exists()
    assert second.exists()
    unknown = duckctl.cache("prune", "nothing-like-it")
    assert (unknown.returncode, second.exists()) == (2, True)


def test_prune_keeps_what_a_conversion_writes_to_and_goes_on(
    duckctl: Duckctl, make_checkpoint: MakeCheckpoint
) -> None:
    """The busy one is told, also by a dry run; the others go, and the document says which."""
    model = str(make_checkpoint(CheckpointSpec(experts=2, layers=3, moe=64)))
    for fmt in ("fp8", "fp9", "q4"):
        duckctl.shard(model, "--ducks", "1", "--format", fmt)
    caches = {path.name: path for path in duckctl.cache_dir.iterdir()}
    first, busy, last = sorted(caches)
    with locked(caches[busy]):
        for dry_run in (["--dry-run"], []):
            run = duckctl.cache("prune", "--all", "--json", *dry_run)
            assert [entry["name"] for entry in run.json["removed"]] == [first, last]
            assert run.json["busy"] == [busy]
            assert f"is writing to the cache {caches[busy]}; it is kept" in run.stderr
            assert caches[first].exists() == bool(dry_run)
        named = duckctl.cache("prune", busy, "--json")
        assert (named.returncode, json.loads(named.stdout)["removed"]) == (1, [])
    assert [path.name for path in duckctl.cache_dir.iterdir()] == [busy]
    assert duckctl.cache("prune", busy, "--json").json["busy"] == []


def test_a_cache_that_is_named_twice_is_removed_once(duckctl: Duckctl) -> None:
    made = Path(duckctl.shard("ducklet", "--ducks", "1", "--json").json["cache_file"]).parent
    other = Path(duckctl.shard("ducklet", "--ducks", "2", "--json").json["cache_file"]).parent
    verified = duckctl.cache("verify", made.name, made.name, "--json").json
    assert [cache["name"] for cache in verified["caches"]] == [made.name]
    gone = duckctl.cache("prune", made.name, other.name, made.name, "--json").json
    assert [entry["name"] for entry in gone["removed"]] == [made.name, other.name]
    assert not list(duckctl.cache_dir.iterdir())
    nothing = duckctl.cache("verify")
    assert (nothing.returncode, "nothing was verified" in nothing.stderr) == (0, True)


def test_a_complete_cache_is_removed_by_its_full_name_only(duckctl: Duckctl) -> None:
    """An empty name, as an unset variable leaves one, and a beginning leave the cache; a beginning
    is enough for one that cannot be used."""
    made = Path(duckctl.shard("ducklet", "--ducks", "1", "--json").json["cache_file"])
    for command in ("prune", "verify"):
        empty = duckctl.cache(command, "")
        assert (empty.returncode, "an empty name is no cache" in empty.stderr) == (2, True)
    beginning = duckctl.cache("prune", "duck")
    assert (beginning.returncode, "by its full name only" in beginning.stderr) == (2, True)
    assert made.exists()
    made.unlink()
    assert duckctl.cache("prune", "duck").returncode == 0
    assert not made.parent.exists()


@pytest.mark.parametrize("command", ["ls", "verify", "prune"])
def test_a_cache_folder_that_is_not_there_is_named(duckctl: Duckctl, command: str) -> None:
    run = duckctl.cache(command, "--json")
    assert (run.returncode, run.stdout) == (2, "")
    assert f"there is no folder {duckctl.cache_dir}" in run.stderr


@pytest.mark.parametrize("command", ["cache verify", "shard-weights --verify"])
def test_damaged_pieces_are_named(duckctl: Duckctl, command: str) -> None:
    made = duckctl.shard("ducklet", "--ducks", "2", "--json").json
    directory = Path(made["cache_file"]).parent
    cut = directory / "slice-00" / "layer-003.bin"
    flipped = directory / "slice-01" / "layer-005.bin"
    os.truncate(cut, 5000)
    with flipped.open("r+b") as file:
        file.seek(100_000)
        byte = file.read(1)[0]
        file.seek(100_000)
        file.write(bytes([byte ^ 4]))
    verify = ("ducklet", "--ducks", "2", "--verify")
    run = duckctl.cache("verify") if command == "cache verify" else duckctl.shard(*verify)
    assert run.returncode == 1
    assert f"{cut} has 5000 bytes" in run.stderr
    assert f"{flipped} does not have the digest" in run.stderr
    assert "slice-00/layer-001" not in run.stderr


def test_inventory_gives_ducks_and_memory(duckctl: Duckctl, tmp_path: Path) -> None:
    inventory = tmp_path / "fleet.yml"
    inventory.write_text(INVENTORY)
    plan = duckctl.shard("ducklet", "--inventory", str(inventory), "--dry-run", "--json").json
    ducks = [(duck["name"], duck["memory_gib"]) for duck in plan["ducks"]]
    assert ducks == [("d01", 16), ("d02", 16)]
    assert [part["holders"] for part in plan["plan"]["slices"]] == [["d01"], ["d02"]]


def test_uneven_weights_make_uneven_slices(duckctl: Duckctl) -> None:
    made = duckctl.shard("ducklet", "--ducks", "3", "--weights", "2,1,1", "--json").json
    slices = json.loads(Path(made["cache_file"]).read_text())["slices"]
    rows = [(part["first_row"], part["rows"]) for part in slices]
    assert rows == [(0, 128), (128, 64), (192, 64)]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ducklet", "--ducks", "3"], 2, ["3 ducks cannot share 256 rows", "1, 2, 4, 8"]),
        (["ducklet", "--ducks", "9"], 2, ["9 ducks cannot share 256 rows", "at most 8 ducks"]),
        (["ducklet", "--ducks", "9", "--weights", "1"], 2, ["at most 8 ducks for this model"]),
        (["ducklet"], 2, ["needs either --inventory or --ducks"]),
        (["nowhere", "--ducks", "4"], 2, ["nowhere"]),
        (["ducklet", "--ducks", "4", "--format", "fp4"], 2, ["--format 'fp4' is unknown"]),
        (["ducklet", "--ducks", "4", "--memory-limit", "lots"], 2, ["'lots' is not a size"]),
        (["ducklet", "--ducks", "4", "--memory-limit", "100M"], 2, ["is too small", "at least"]),
        (["ducklet", "--ducks", "4", "--memory-limit", "9" * 400], 2, ["more than there is"]),
        (["ducklet", "--ducks", "4", "--memory-limit", "9999999T"], 2, ["more than there is"]),
        (["ducklet", "--ducks", "4", "--verify"], 1, ["there is no finished cache"]),
        (["ducklet", "--ducks", "4", "--verify", "--dry-run"], 2, ["exclude each other"]),
        (
            ["ducklet", "--ducks", "4", "--verify", "--host-weights", "host"],
            *(2, ["--verify re-reads a cache only", "leave out --host-weights"]),
        ),
        (
            ["ducklet", "--ducks", "4", "--dry-run", "--source-sha256", "nosuch"],
            *(2, ["--dry-run converts nothing", "leave out --source-sha256"]),
        ),
        (["ducklet", "--ducks", "4", "--weights", "1,2"], 2, ["has 2 numbers for 4 ducks"]),
    ],
)
def test_mistakes_are_explained(
    duckctl: Duckctl, arguments: list[str], code: int, words: list[str]
) -> None:
    run = duckctl.shard(*arguments)
    assert run.returncode == code
    for word in words:
        assert word in run.stderr
    assert "hint:" in run.stderr
    assert not run.stdout


def test_a_publishers_digest_list_is_checked_first(
    duckctl: Duckctl, make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    model = make_checkpoint(CheckpointSpec())
    files = sorted(model.glob("*.safetensors"))
    digests = {file.name: file_sha256(file) for file in files}
    whole = "".join(f"{digest}  ./{name}\n" for name, digest in digests.items())
    lists = {
        "odd": ("hello\n", "line 1 is not"),
        "short": (f"{digests[files[0].name]} *{files[0].name}\n", "does not list"),
        "bad": (whole.replace(digests[files[1].name], "0" * 64), f"{files[1]} has sha256"),
    }
    path = tmp_path / "list.txt"
    for text, message in lists.values():
        path.write_text(text)
        run = duckctl.shard(str(model), "--ducks", "2", "--source-sha256", str(path))
        assert run.returncode == 1
        assert message in run.stderr
        assert not list(duckctl.cache_dir.glob("**/*.bin"))
    path.write_text(whole)
    run = duckctl.shard(str(model), "--ducks", "2", "--source-sha256", str(path))
    assert run.returncode == 0


def test_hashing_ends_early_when_its_result_is_of_no_use(tmp_path: Path) -> None:
    """A file that grows for ever: only the stop can end the running digest; queued ones never
    begin."""
    endless = Path("/dev/zero")
    with pytest.raises(KeyboardInterrupt), hashing_pool(1) as (pool, stop):
        digests = [pool.submit(file_sha256, path, stop) for path in (endless, tmp_path / "no")]
        while not digests[0].running():
            time.sleep(0.001)
        raise KeyboardInterrupt
    assert isinstance(digests[0].exception(), CancelledError)
    assert digests[1].cancelled()


def test_a_wrong_digest_is_told_before_the_rest_is_read(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file is wrong: of the others only those under way are read, and they end."""
    checkpoint = open_checkpoint(make_checkpoint(CheckpointSpec(file_bytes_max=1 << 18)))
    names = [file.path.name for file in checkpoint.files]
    assert len(names) > 8
    path = tmp_path / "list.txt"
    path.write_text("".join(f"{'0' * 64}  {name}\n" for name in names))
    begun: list[str] = []
    second, ended = Event(), Event()

    def digest(path: Path, stop: Event) -> str:
        begun.append(path.name)
        if path.name == names[0]:
            second.wait(30)
        else:
            second.set()
            if stop.wait(30):
                ended.set()
        return "1" * 64

    monkeypatch.setattr("duckctl.shards.source_list.file_sha256", digest)
    with pytest.raises(CheckpointError, match=f"{names[0]} has sha256 1111"):
        check_source_list(checkpoint, path, 2, SilentReporter())
    assert ended.is_set()
    assert len(begun) <= 3


def wait_for_journal(cache_dir: Path, lines: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not any(
        len(path.read_bytes().splitlines()) >= lines for path in cache_dir.glob("*/journal.jsonl")
    ):
        assert process.poll() is None, "the conversion ended too early"
        assert time.monotonic() < deadline, "no finished layer within 60 s"
        time.sleep(0.002)


@pytest.mark.slow
def test_interrupt_keeps_finished_pieces_and_says_so(
    duckctl: Duckctl, make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    model = make_checkpoint(CheckpointSpec(experts=16, layers=9, hidden=512, moe=512, seed=3))
    common = (str(model), "--ducks", "8")
    command = [sys.executable, "-m", "duckctl", "shard-weights", *common, "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--cache-dir", str(duckctl.cache_dir)],
        env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for_journal(duckctl.cache_dir, 1 + 8, process)
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"of 72 pieces finished" in talk
    assert b"run the same command again" in talk
    assert not list(duckctl.cache_dir.rglob("*.part"))
    assert duckctl.shard(*common, "--json").json["pieces_kept"] >= 8
    fresh = Duckctl(duckctl.capsys, tmp_path / "fresh")
    assert fresh.shard(*common).returncode == 0
    assert digests_below(duckctl.cache_dir) == digests_below(fresh.cache_dir)


def test_a_pipe_sees_lines(duckctl: Duckctl) -> None:
    run = duckctl.shard("ducklet", "--ducks", "2")
    assert "converting: 15.0 MiB" in run.stderr
    assert "\x1b" not in run.stderr
    assert run.stdout.strip().endswith("cache.json")


def test_a_terminal_sees_a_bar(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "duckctl", "shard-weights", "ducklet", "--ducks", "2",
         "--cache-dir", str(tmp_path / "terminal")],
        env=child_environment() | {"TERM": "xterm"}, stdout=subprocess.DEVNULL, stderr=follower,
    ) as process:  # fmt: skip
        os.close(follower)
        shown = b""
        try:
            while block := os.read(leader, 65536):
                shown += block
        except OSError:  # Linux reports the closed terminal as an input/output error
            pass
        assert process.wait(timeout=30) == 0
    os.close(leader)
    assert b"converting" in shown
    assert b"\x1b" in shown
