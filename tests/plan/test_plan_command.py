"""`duckctl plan` prints, draws and traces, and refuses bad input with what to do instead."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from duckctl.cli import run
from duckctl.console import print_json
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
        (["--prompt", "163841"], "--prompt 163841 is more than DeepSeek-V3.2"),
        (["--nic", "100g"], "faster than the host's"),
        (["--model", "qwen3-30b-a3b", "--ducks", "24", "--mtp", "0.5"], "has no MTP layer"),
        (["--plot", "x"], "--plot draws a sweep"),
        (["--hardware", "no-such-file.yaml"], "can't read no-such-file.yaml"),
        (["--from-fleet", "no-such-file.json"], "can't read no-such-file.json"),
        (["--validate", "/no/such/folder/page.md", "--archive", "/no/such"], "can't read"),
        (["--archive", "/no/such"], "--archive belongs to --validate"),
        (["--validate", "page.md", "--trace", "x.json"], "--validate writes a page only"),
        (["--ducks", "8..64", "--trace", "x.json"], "--trace shows one fleet"),
        (["--trace", "/no/such/x.json"], "--trace: there is no folder /no/such"),
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


def test_a_folder_that_is_not_there_is_named_before_anything_is_computed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duckctl.plan.predict.sweep", lambda *_: pytest.fail("computed"))
    assert run(["plan", "--ducks", "8..64", "--plot", "/no/such/x"]) == 2
    assert "--plot: there is no folder /no/such" in capsys.readouterr().err


def test_a_plot_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.png").mkdir()
    arguments = ["plan", "--model", "ducklet", "--ducks", "1..2", "--plot", str(tmp_path / "x")]
    assert run(arguments) == 2
    assert f"can't write {tmp_path}/x.png: Is a directory" in capsys.readouterr().err


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


def test_from_fleet_has_a_number_of_ducks_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One more is a contradiction; a range asks what others would give."""
    base = ["plan", "--model", "ducklet", "--from-fleet", health(tmp_path), "--ducks"]
    assert run([*base, "8"]) == 2
    error = capsys.readouterr().err
    assert "--from-fleet tells the number of ducks, and --ducks 8 another" in error
    assert "hint:" in error
    assert run([*base, "4..6"]) == 0


def test_from_fleet_refuses_silent_ducks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--from-fleet", health(tmp_path, reachable=False)]) == 2
    assert "d01, d02, d03, d04 did not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_bytes": float("nan")}, "'memory_bytes' is nan"),
        ({"memory_bytes": 0}, "'memory_bytes' is 0"),
        ({"memory_bytes": True}, "'memory_bytes' is True"),
        ({"core_count": -4}, "'core_count' is -4"),
        ({"core_count": 0}, "'core_count' is 0"),
        ({"core_count": 2.5}, "expected a whole number"),
        ({"core_count": float("inf")}, "'core_count' is inf"),
        ({"core_count": None}, "lacks 'core_count'"),
        ({"link_mbps": -1}, "'link_mbps' is -1"),
        ({"link_mbps": "abc"}, "'link_mbps' is 'abc'"),
        ({"calibration": "x"}, "'calibration' must be a mapping or null"),
        ({"calibration": {"read_bytes_per_s": float("nan")}}, "'read_bytes_per_s' is nan"),
        ({"calibration": {"read_bytes_per_s": -1e9}}, "'read_bytes_per_s' is -1000000000.0"),
    ],
)
def test_from_fleet_refuses_figures_that_no_duck_has(
    changes: dict[str, object],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = health(tmp_path, **changes)
    assert run(["plan", "--model", "ducklet", "--json", "--from-fleet", file]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{file}: duck d01" in captured.err
    assert message in captured.err


def test_from_fleet_ducks_without_room_are_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = health(tmp_path, memory_bytes=1 << 30)  # exactly what the duck's own program takes
    assert run(["plan", "--model", "ducklet", "--from-fleet", file]) == 2
    assert "hint: a duck must have more than 1 GiB" in capsys.readouterr().err


@pytest.mark.slow
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
        ("links:\n  x: {mbps: 0}\n", "'mbps' is 0, expected a number above 0"),
        ("links:\n  x: {mbps: .nan}\n", "'mbps' is nan"),
        ("links:\n  x: {mbps: .inf}\n", "'mbps' is inf"),
        (f"links:\n  x: {{mbps: 0x{'f' * 5000}}}\n", "'mbps' is a huge number"),
        ("links:\n  x: {mbps: [1]}\n", "'mbps' is a list"),
        ("links:\n  100: {mbps: 1}\n", "the name 100 is no text"),
        ("links: !!bool foo\n", "is no YAML"),
        ("links: 2026-13-45\n", "is no YAML"),
        ("[" * 20_000, "is nested too deeply"),
    ):
        path.write_text(text)
        with pytest.raises(CatalogueError, match=message):
            load_catalogue(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("cores", "0", "'cores' is 0, expected a number above 0"),
        ("cores", ".inf", "'cores' is inf"),
        ("cores", ".nan", "'cores' is nan"),
        ("cores", "-4", "'cores' is -4"),
        ("cores", "2.5", "expected a whole number"),
        ("memory_gb_s", "0", "'memory_gb_s' is 0"),
        ("memory_gb_s", ".nan", "'memory_gb_s' is nan"),
        ("all_core_ghz", "0", "'all_core_ghz' is 0"),
        ("load_w", "-1", "'load_w' is -1, expected a number that is not negative"),
        ("params_per_cycle", "{fp9: [1, 1]}", "must have exactly the formats"),
        (
            "params_per_cycle",
            "{fp9: [1, .inf], fp8: [1, 1], fp7: [1, 1], q6: [1, 1], q4: [1, 1]}",
            "'fp9' is inf",
        ),
    ],
)
def test_hardware_figures_that_nothing_can_have(
    key: str, value: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = "{fp9: [3, 2], fp8: [3, 2], fp7: [3, 2], q6: [6, 3], q4: [11, 6]}"
    entry = {
        **{"title": "Mine", "cores": "4", "all_core_ghz": "3", "flops_per_cycle_core": "16"},
        **{"params_per_cycle": rates, "memory_gib": "32", "memory_gb_s": "25.6"},
        **{"nic_mbps": "2500", "idle_w": "0", "load_w": "15"},
        key: value,
    }
    path = tmp_path / "mine.yaml"
    lines = "".join(f"    {name}: {text}\n" for name, text in entry.items())
    path.write_text(f"ducks:\n  mine:\n{lines}")
    assert run([*SMALL, "--duck", "mine", "--hardware", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": "17"}, "'top_k' is 17, of 16 experts"),
        ({"dense_layers": "5"}, "'dense_layers' is 5, of 5 layers"),
        ({"acceptance": "1.5"}, "'acceptance' is 1.5"),
        ({"kv_bytes_per_token_layer": "0"}, "'kv_bytes_per_token_layer' is 0"),
    ],
)
def test_model_figures_that_cannot_go_together(
    change: dict[str, str], message: str, tmp_path: Path
) -> None:
    entry = {**asdict(load_catalogue().model("ducklet")), **change}
    path = tmp_path / "mine.yaml"
    lines = "".join(f"    {key}: {value}\n" for key, value in entry.items() if key != "name")
    path.write_text(f"models:\n  mine:\n{lines}")
    with pytest.raises(CatalogueError, match=message):
        load_catalogue(path)


def test_json_never_has_numbers_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"speed": float("nan")})
    assert capsys.readouterr().out == ""
