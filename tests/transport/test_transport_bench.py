"""The transport's benchmarks run, say what they promise, and refuse nonsense."""

from __future__ import annotations

import json

import pytest

from duckctl import cli
from duckctl.errors import ExitCode


def test_gap_tells_calls_raw_sockets_and_stages(capsys: pytest.CaptureFixture[str]) -> None:
    """Every case has both medians from the same run, and stages that add up to the round trip."""
    words = ["--ducks", "1,2", "--bytes", "3000", "--mtu", "1500", "--calls", "40", "--json"]
    assert cli.run(["bench", "gap", *words]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert [case["ducks"] for case in document["cases"]] == [1, 2]
    for case in document["cases"]:
        assert case["packets"] == 3
        assert 0 < case["gap_us"]["p50"] <= case["gap_us"]["p99"] <= case["gap_us"]["max"]
        assert 0 < case["raw_us"]["p50"] <= case["raw_us"]["max"]
        ratio = case["gap_us"]["p50"] / case["raw_us"]["p50"]
        assert case["gap_over_raw_p50"] == pytest.approx(ratio, abs=0.006)
        # Medians of parts are not parts of the median, but not far from it either.
        assert sum(case["stages_us_p50"].values()) < 2 * case["round_trip_us"]["p50"]
        assert case["handshake_ms"] > 0
    assert document["seal_ns"]["1500"]["seal"] > 0


@pytest.mark.parametrize("loss", [0, 5])
@pytest.mark.slow
def test_wire_tells_bulk_calls_and_raw(loss: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Losses are dropped on purpose, and repaired: 5 % of 2 x 4 MiB is never nothing."""
    words = ["--ducks", "2", "--mtu", "9000", "--megabytes", "4", "--loss", str(loss), "--json"]
    assert cli.run(["bench", "wire", *words]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["loss_percent"] == loss
    (case,) = document["cases"]
    assert case["bulk"]["mb_per_s"] > 0 and case["bulk"]["first_mb_per_s"] > 0
    assert case["bulk"]["over_raw"] == pytest.approx(
        case["bulk"]["mb_per_s"] / case["raw"]["mb_per_s"], abs=0.001
    )
    if loss:
        assert case["bulk"]["resent_share"] > 0.01
    assert case["calls"]["mb_per_s_each_way"] > 0
    assert case["raw"]["mb_per_s"] > 0 and 0 <= case["raw"]["lost_share"] < 1


@pytest.mark.parametrize("words", [["--ducks", "0"], ["--mtu", "big"], ["--poll", "often"]])
def test_wrong_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", "gap", *words]) == ExitCode.USAGE
    lanes = ["--hidden" if word == "--mtu" else word for word in words]
    assert cli.run(["bench", "lanes", *lanes]) == ExitCode.USAGE
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("gap --mtu 10", "--mtu 10: expected a number from 1280 to 9000"),
        ("gap --mtu 1500,9001", "--mtu 9001: expected"),
        ("gap --ducks 1,65", "--ducks 65: expected a number from 1 to 64"),
        ("gap --bytes 30", "--bytes 30: expected a multiple of 4 from 4 to 90112"),
        ("gap --bytes 2048,90116", "--bytes 90116: expected"),
        ("gap --bytes " + "9" * 5000, "is no list of numbers"),
        ("wire --mtu 10", "--mtu 10: expected a number from 1280 to 9000"),
        ("wire --ducks 1000", "--ducks 1000: expected a number from 1 to 64"),
        ("lanes --hidden 7", "--hidden 7: expected a multiple of 128 from 128 to 32768"),
        ("lanes --ducks 1000", "--ducks 1000: expected a number from 1 to 64"),
    ],
)
def test_what_cannot_be_measured_is_named(
    words: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bounds of the transport, the kernels and the raw sockets: told before a duck is started."""
    assert cli.run(["bench", *words.split()]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert problem in captured.err
    assert captured.out == ""


@pytest.mark.slow
def test_lanes_tell_both_ways_and_the_bare_call(capsys: pytest.CaptureFixture[str]) -> None:
    """All from the same run; no way beats the transport that all of them use."""
    words = ["--ducks", "2", "--hidden", "512", "--calls", "240", "--json"]
    assert cli.run(["bench", "lanes", *words]) == ExitCode.OK
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert (case["ducks"], case["hidden"]) == (2, 512)
    for way in ("native", "python", "submit"):
        one = case[way]["one_lane_us"]
        assert 0 < one["p50"] <= one["p99"] <= one["max"]
    for way in ("native", "python"):
        assert case[way]["two_lanes_us"]["p50"] > 0
    assert 0 < case["transport_us"]["p50"] <= case["native"]["one_lane_us"]["max"]
