"""Proves `duckctl run` on a process duck and on duckos: output, verdicts, limits, exit codes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from duckos_guest import DuckosGuest, need_qemu

from duckctl import cli
from duckctl.errors import ExitCode, UsageError
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabFolder, LabShape
from duckctl.run_once.limits import OUTPUT_BYTES_MAX, size_bytes, time_ms

Kernel = Callable[..., bytes]
INVENTORY = """\
all:
  vars: {{fleet_name: guest, fleet_key_file: fleet.key}}
  children:
    ducks:
      vars: {{duck_cores: 2, duck_identity: per_boot}}
      children:
        domain1:
          vars: {{domain_subnet: 127.0.0.0/24, domain_host_address: 127.0.0.1}}
          hosts:
            d01: {{duck_slot: 0, duck_address: 127.0.0.11, duck_port: {port}}}
"""


@pytest.fixture(scope="module")
def process_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = LabFolder(tmp_path_factory.mktemp("process") / "lab")
    lab.up(folder, LabShape(1, 1, 1, 1500, "block"))
    yield folder.inventory
    lab.down(folder)


@pytest.fixture(scope="module")
def guest_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    need_qemu()
    folder = tmp_path_factory.mktemp("guest")
    assert cli.run(["init", "--fleet-dir", str(folder)]) == ExitCode.OK
    public = (folder / "fleet.pub").read_text().strip().removeprefix("duck-p256-public:")
    with DuckosGuest(folder, cores=2, address="127.0.0.11", public=public) as guest:
        inventory = folder / "inventory.yml"
        inventory.write_text(INVENTORY.format(port=guest.port))
        yield inventory


@pytest.fixture(params=["process_fleet", "guest_fleet"])
def fleet(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


class Runner:
    """`duckctl run --json` with files in a folder of its own."""

    def __init__(
        self, folder: Path, fleet: Path, kernel: Kernel, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.fleet, self.kernel, self.capsys = folder, fleet, kernel, capsys
        self.output = folder / "output"

    def __call__(self, name: str, data: bytes, *options: str) -> dict[str, Any]:
        elf = self.folder / "kernel.elf"
        elf.write_bytes(self.kernel(*name.split()))
        (self.folder / "input").write_bytes(data)
        words = ["run", str(elf), "--duck", "d01", "--inventory", str(self.fleet), "--json"]
        words += ["--input", str(self.folder / "input"), "--output", str(self.output), *options]
        self.code = cli.run(words)
        said = self.capsys.readouterr()
        assert said.out, said.err
        return dict(json.loads(said.out))


@pytest.fixture
def run(tmp_path: Path, fleet: Path, kernel: Kernel, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(tmp_path, fleet, kernel, capsys)


def test_finished(run: Runner) -> None:
    """The output is the kernel's, and time, cycles and memory are told."""
    data = b"quack" * 10_000
    told = run("echo", data)
    assert run.code == ExitCode.OK
    assert run.output.read_bytes() == data
    assert (told["verdict"], told["output_bytes"], told["duck"]) == ("finished", 50_000, "d01")
    assert told["time_ns"] > 0
    assert told["cycles"] > 0
    assert told["memory_peak_bytes"] > 50_000
    assert told["fault_kind"] is None


@pytest.mark.parametrize(
    ("attack", "verdict", "kind"),
    [
        (1, "fault", "memory"),
        (4, "fault", "stack"),
        (10, "fault", "illegal_instruction"),
        (11, "fault", "arithmetic"),
        (30, "fault", "forbidden_call"),
        (3, "time-limit", "killed"),
        (55, "memory-limit", "memory"),
    ],
)
def test_other_verdicts(run: Runner, attack: int, verdict: str, kind: str) -> None:
    """Faults and limits are named with kind and place; there is no output."""
    told = run("hostile", struct.pack("<II", attack, 0) * 4, "--time-limit", "300ms")
    assert run.code == ExitCode.FAILURE
    assert (told["verdict"], told["fault_kind"]) == (verdict, kind)
    assert told["text"]
    assert not run.output.exists()
    if attack == 1:
        assert (told["address"], told["core"]) == (0x10, 0)
        assert told["instruction"] is not None


def test_refusals(run: Runner) -> None:
    """The kernel's own words, and the loader's."""
    told = run("echo", b"BAD!" + bytes(4))
    assert (told["verdict"], "bad call" in told["text"]) == ("refused", True)
    told = run("echo REFUSE_START", b"")
    assert (told["verdict"], told["text"]) == ("refused", "weights have the wrong colour")
    told = run("echo TEST_ABI_VERSION=2", b"")
    assert (told["verdict"], "ABI" in told["text"]) == ("bad-kernel", True)


def test_weights_and_limits(run: Runner) -> None:
    """Weights are loaded on request, a memory limit bounds scratch."""
    weights = run.folder / "weights"
    weights.write_bytes(bytes(range(100)))
    told = run("echo", b"WGHT" + bytes(4), "--weights", str(weights))
    assert told["verdict"] == "finished"
    assert run.output.read_bytes() == bytes(range(64)) + bytes(64)
    told = run("hostile", struct.pack("<II", 56, 0) * 4, "--no-weights", "--memory-limit", "16M")
    assert told["verdict"] == "finished"
    assert told["memory_limit_bytes"] == 16 << 20
    assert told["memory_peak_bytes"] < 16 << 20


def test_what_can_not_be_run(
    process_fleet: Path, tmp_path: Path, kernel: Kernel, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong names, files and limits are told before anything runs."""
    elf = tmp_path / "kernel.elf"
    elf.write_bytes(kernel("echo"))
    base = ["run", str(elf), "--inventory", str(process_fleet)]
    assert cli.run([*base, "--duck", "d99"]) == ExitCode.USAGE
    assert "its ducks: d01" in capsys.readouterr().err
    assert cli.run([*base, "--duck", "d01", "--input", "/no/where"]) == ExitCode.USAGE
    assert "/no/where: no such file" in capsys.readouterr().err
    assert cli.run([*base, "--duck", "d01", "--memory-limit", "1M"]) == ExitCode.FAILURE
    assert "too small" in capsys.readouterr().err
    for words, problem in (
        (["--output-limit", "0"], "--output-limit 0: expected 1 to 33554432 bytes"),
        (["--time-limit", "11m"], "--time-limit 11m: at most 10 minutes"),
        (["--weights", str(elf), "--no-weights"], "exclude each other"),
    ):
        assert cli.run([*base, "--duck", "d01", *words]) == ExitCode.USAGE
        assert problem in capsys.readouterr().err
    elf.write_bytes(b"no ELF at all")
    assert cli.run([*base, "--duck", "d01"]) == ExitCode.FAILURE
    assert "is not a kernel" in capsys.readouterr().err


def test_limits_as_people_write_them() -> None:
    """Sizes and times with units; nonsense is refused by name."""
    assert size_bytes("64M", "--memory-limit") == 64 << 20
    assert size_bytes("1.5GiB", "--memory-limit") == 3 << 29
    assert size_bytes("4096", "--memory-limit") == 4096
    assert time_ms("1.5s", "--time-limit") == 1500
    assert time_ms("2", "--time-limit") == 2000
    assert time_ms("250ms", "--time-limit") == 250
    assert time_ms("10m", "--time-limit") == 600_000
    assert size_bytes("32M", "--output-limit", 1, OUTPUT_BYTES_MAX) == 32 << 20
    for wrong in ("", "much", "-1", "3 days", "601", "99999999999999", "9" * 400 + "s"):
        with pytest.raises(UsageError, match="--x"):
            time_ms(wrong, "--x")
    for wrong in ("", "much", "-1", "3 days", "1025G", "9" * 400):
        with pytest.raises(UsageError, match="--x"):
            size_bytes(wrong, "--x")
    for wrong in ("0", "0.5", "33M", "9" * 400):
        with pytest.raises(UsageError, match=f"--x {wrong[:40]}: expected 1 to 33554432 bytes"):
            size_bytes(wrong, "--x", 1, OUTPUT_BYTES_MAX)
