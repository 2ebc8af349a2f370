"""`duckctl bench kernels` measures every field it documents, and refuses what it cannot measure."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from duckctl import cli
from duckctl.errors import ExitCode


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "duckctl", "bench", "kernels", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_json_has_the_documented_fields() -> None:
    done = run_bench(
        "--format", "fp8", "--format", "q4", "--shape", "256x32", "--tokens", "1",
        "--tokens", "16", "--threads", "1", "--gigabytes", "0.02", "--slices", "3", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert document["mode"] == "forced-cold"
    assert document["cycles_per_second"] > 1e8
    bodies = [(row["fmt"], row["body"], row["tokens"]) for row in document["in_cache"]]
    assert bodies == [
        *[("fp8", body, tokens) for body in ("int", "cvt") for tokens in (1, 16)],
        *[("q4", "madd", tokens) for tokens in (1, 16)],
    ]
    for row in document["in_cache"]:
        assert row["params_per_cycle"] > 0 and row["gb_s"] > 0 and row["share_of_fma_peak"] > 0
    for row in document["memory"]:  # on a busy machine a row may be given up
        assert (row["hidden"], row["rows"], row["threads"]) == (256, 32, 1)
        assert row["slices"] >= 3
        for name in ("gb_s", "gparam_s", "roofline_gb_s", "share_of_roofline", "share_of_bound"):
            assert row[name] > 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--format", "fp5"), "--format 'fp5' is unknown"),
        (("--shape", "7168"), "--shape '7168' is no slice"),
        (("--shape", "100x32"), "--shape '100x32' is no slice"),
        (("--shape", "128x0"), "--shape '128x0' is no slice"),
        (("--shape", "0x32"), "--shape '0x32' is no slice"),
    ],
)
def test_bad_arguments_are_named(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["bench", "kernels", *arguments]) == ExitCode.USAGE
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("--tokens", value) for value in ("0", "-1", "513")],
        *[("--threads", value) for value in ("0", "65", "100000")],
    ],
)
def test_bounds_of_the_kernel(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the kernel would refuse is wrong input, not a failure of the benchmark."""
    assert cli.run(["bench", "kernels", option, "1", option, value]) == ExitCode.USAGE
    assert f"Invalid value for '{option}'" in capsys.readouterr().err
