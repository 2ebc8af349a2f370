"""`duckctl plan` prints, draws and traces, and refuses bad input with what to do instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from duckctl.cli import run
from duckctl.plan.catalogue import CatalogueError, load_catalogue

SMALL = ["plan", "--model", "ducklet", "--ducks", "4", "--prompt", "32"]


def test_table_names_limit_and_levers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SMALL) == 0
    out = capsys.readouterr().out
    assert "ducklet" in out
    assert "limit" in out
    assert "what would help most" in out


def test_json_repeats_itself(capsys: pytest.CaptureFixture[str]) -> None:
    documents = []
    for _ in range(2):
        assert run([*SMALL, "--json"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0] == documents[1]
    assert documents[0]["schema_version"] == 1
    assert documents[0]["decode_band"][0] < documents[0]["decode_tokens_per_s"]


def test_sweep_writes_both_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tmp_path / "sweep"
    arguments = ["plan", "--model", "ducklet", "--ducks", "1..8", "--plot", str(base), "--json"]
    assert run(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert [point["ducks"] for point in document["points"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert base.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in base.with_suffix(".svg").read_text()


def test_sweep_says_where_the_model_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--ducks", "8..32", "--format", "fp8", "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert points[0]["limit"].startswith("does not fit")
    assert points[-1]["decode_tokens_per_s"] > 20


def test_trace_opens_as_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    assert run([*SMALL, "--trace", str(path)]) == 0
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"gpu", "d01", "d04", "domain1 out"} <= names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--duck", "n1000"], "there is no duck 'n1000' in the catalogue. Did you mean 'n100'?"),
        (["--gpu", "rtx-5090"], "Did you mean 'rtx5090'?"),
        (["--model", "deepseek-v3"], "Did you mean 'deepseek-v3.2'?"),
        (["--nic", "3g"], "there is no link speed '3g'"),
        (["--format", "fp6"], "unknown format 'fp6'"),
        (["--ducks", "65"], "cannot be spread over 65 ducks"),
        (["--ducks", "0"], "cannot be spread over 0 ducks"),
        (["--ducks", "some"], "--ducks is 'some'"),
        (["--ducks", "9..2"], "is no range"),
        (["--domains", "40"], "32 ducks cannot form 40 domains"),
        (["--ducks", "16"], "does not fit"),
        (["--gpu", "rtx3090", "--context", "163840"], "the GPU needs"),
        (["--mtp", "1.5"], "--mtp is 1.5"),
        (["--mtu", "4000"], "--mtu is 4000"),
        (["--context", "999999"], "more than DeepSeek-V3.2"),
        (["--nic", "100g"], "faster than the host's"),
        (["--model", "qwen3-30b-a3b", "--ducks", "24", "--mtp", "0.5"], "has no MTP layer"),
        (["--plot", "x"], "--plot draws a sweep"),
        (["--hardware", "no-such-file.yaml"], "can't read no-such-file.yaml"),
        (["--from-fleet", "no-such-file.json"], "can't read no-such-file.json"),
        (["--validate", "/no/such/folder/page.md", "--archive", "/no/such"], "can't read"),
    ],
)
def test_bad_input(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "--validate" in arguments:  # the fit comes first and takes seconds; it is tested elsewhere
        monkeypatch.setattr("duckctl.plan.validate.validate", lambda _catalogue: None)
    assert run(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "hint:" in error


def health(tmp_path: Path, **changes: object) -> str:
    duck = {
        "name": "d01",
        "reachable": True,
        "memory_bytes": 32 << 30,
        "core_count": 4,
        "link_mbps": 2500,
        **changes,
    }
    path = tmp_path / "health.json"
    path.write_text(json.dumps({"ducks": [{**duck, "name": f"d{n:02d}"} for n in range(1, 5)]}))
    return str(path)


def test_from_fleet_takes_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["plan", "--model", "ducklet", "--prompt", "8", "--json", "--from-fleet"]
    kernels = []
    for rate in (10e9, 20e9):
        file = health(tmp_path, calibration={"read_bytes_per_s": rate})
        assert run([*base, file]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["ducks"] == 4
        kernels.append(document["layer"]["kernel_us"])
    assert kernels[0] == pytest.approx(2 * kernels[1], rel=0.01)


def test_from_fleet_says_what_ducks_did_not_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = health(tmp_path, link_mbps=None)
    assert run(["plan", "--model", "ducklet", "--prompt", "8", "--from-fleet", file]) == 0
    error = capsys.readouterr().err
    assert "no calibration figures" in error
    assert "did not tell their link speed" in error


def test_from_fleet_refuses_silent_ducks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--from-fleet", health(tmp_path, reachable=False)]) == 2
    assert "d01, d02, d03, d04 did not answer" in capsys.readouterr().err


def test_hardware_file_extends_and_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "gpus:\n  mine: {title: Mine, memory_gib: 48, memory_gb_s: 960, tflops: 90, load_w: 300}\n"
    )
    catalogue = load_catalogue(path)
    assert catalogue.gpu("mine").memory_gib == 48
    assert catalogue.gpu("rtx5090").memory_gib == 32
    for text, message in (
        ("gpus: [1]", "'gpus' must be a mapping"),
        ("cpus: {}", "unknown group 'cpus'"),
        ("gpus:\n  mine: {title: Mine}\n", "'mine' lacks 'memory_gib'"),
        ("links:\n  x: {mbps: -1}\n", "'mbps' is -1"),
        ("links:\n  x: {mbps: 1, colour: red}\n", "unknown key 'colour'"),
        ("links: {", "is no YAML"),
        ("- 1", "must be a mapping"),
    ):
        path.write_text(text)
        with pytest.raises(CatalogueError, match=message):
            load_catalogue(path)
