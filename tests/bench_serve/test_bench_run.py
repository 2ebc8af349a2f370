"""`bench serve` archives what a server said, and `bench compare` finds what changed."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from bench_kit import PROMPT_IDS, Script, fake_server

from duckctl.cli import run
from duckctl.errors import ExitCode

CASE = "schema_version: 1\nname: one\nendpoint: completion\nprompt: Is 143 prime? <b>\n"


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    path = tmp_path / "one.yaml"
    path.write_text(CASE)
    return path


def bench(case_file: Path, archive: Path, script: Script, *more: str) -> int:
    with fake_server(script) as url:
        return run(
            ["bench", "serve", str(case_file), "--archive", str(archive), "--url", url, *more]
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--note", "\udcff"], "--note is not valid UTF-8 text"),
        (["--model", "\udcff"], "--model is not valid UTF-8 text"),
        (["--api-key-file", "key"], "key is no file of an API key"),
    ],
)
def test_what_is_no_text_is_named_before_anything_runs(
    words: list[str],
    message: str,
    case_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_bytes(b"\xff\xfe0123456789abcdef")
    command = ["bench", "serve", str(case_file), "--archive", "archive", *words]
    assert run(command) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert not (tmp_path / "archive").exists()


def load(archive: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((archive / "run.json").read_text())
    return document


def test_archive_is_complete(
    case_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "serve.log"
    log.write_text("before\n")
    script = Script()
    archive = tmp_path / "a"
    arguments = ("--repeats", "2", "--trace", "--server-log", str(log), "--note", "a <note>")
    assert bench(case_file, archive, script, *arguments) == 0
    assert script.calls == 3  # one warm-up
    assert all(body["ignore_eos"] is False for body in script.bodies)
    assert "one" in capsys.readouterr().out
    names = {str(path.relative_to(archive)) for path in archive.rglob("*") if path.is_file()}
    case = {"case.json", "prompt.txt", "output.txt", "tokens.csv", "tpot.png", "tpot.svg"}
    own = {"run.json", "index.html", "log.txt", "server.log"}
    assert names == own | {f"one/{name}" for name in {*case, "trace.json"}}
    page = (archive / "index.html").read_text()
    assert "Is 143 prime? &lt;b&gt;" in page
    assert "a &lt;note&gt;" in page
    assert "<script" not in page
    assert (archive / "one/output.txt").read_text() == "t11 t12 t13 t14 t15 "
    assert (archive / "server.log").read_text() == ""


def test_numbers_are_those_that_the_server_told(case_file: Path, tmp_path: Path) -> None:
    assert bench(case_file, tmp_path / "a", Script(), "--repeats", "2", "--no-plots") == 0
    document = load(tmp_path / "a")["cases"][0]
    assert document["token_ids"] == [11, 12, 13, 14, 15]
    assert document["prompt_tokens"] == len(PROMPT_IDS)
    assert document["tokens_repeat"] is True
    assert document["summary"]["tpot_ms"]["median"] == pytest.approx(10.0)
    assert document["summary"]["acceptance"] == 0.5
    assert document["stages"][0]["kernel_ms"] == pytest.approx(10)
    assert document["stages"][0]["wire_and_wait_ms"] == pytest.approx(10)
    with (tmp_path / "a/one/tokens.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["lane"] for row in rows[:5]] == ["0", "1", "0", "1", "0"]
    assert [row["repeat"] for row in rows] == ["1"] * 5 + ["2"] * 5
    assert rows[4]["engine_s"] == "0.040000"


def test_compare_finds_other_tokens_and_settings(
    case_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(case_file, tmp_path / "a", Script(), "--no-plots") == 0
    assert bench(case_file, tmp_path / "b", Script(), "--no-plots", "--note", "same again") == 0
    other = Script(tokens=(11, 12, 99, 14, 15))
    assert bench(case_file, tmp_path / "c", other, "--no-plots") == 0
    capsys.readouterr()
    compare = ["bench", "compare", str(tmp_path / "a")]
    assert run([*compare, str(tmp_path / "b"), "--json"]) in (0, 3)
    document = json.loads(capsys.readouterr().out)
    assert document["tokens"] == []
    assert "note:  -> same again" in document["settings"]
    decode = next(c for c in document["changes"] if c["metric"] == "decode_tokens_per_s")
    assert decode["verdict"] == "noise"
    assert run([*compare, str(tmp_path / "c")]) == 3
    assert "one: tokens differ from number 2 on" in capsys.readouterr().err


def test_repeats_with_other_tokens_are_told(
    case_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unsteady(Script):
        def documents(self) -> list[dict[str, Any]]:
            self.tokens = (11, 12, 13, 14, self.calls)
            return super().documents()

    assert bench(case_file, tmp_path / "a", Unsteady(), "--no-plots") == 3
    assert "repeats gave different tokens: one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (Script(ready=False), "is not ready: d01 is lost"),
        (Script(error="d01 does not answer"), "d01 does not answer"),
        (Script(cached=3), "3 prompt tokens came from a cache"),
        (Script(tokens=(), accepted=()), "sent no token ids"),
    ],
)
def test_failing_servers(
    script: Script,
    message: str,
    case_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench(case_file, tmp_path / "a", script, "--no-plots") == 1
    assert message in capsys.readouterr().err


def test_server_down_and_full_folder(
    case_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server(Script()) as url:
        pass  # gone now, its port is free
    down = ["bench", "serve", str(case_file), "--archive", str(tmp_path / "a"), "--url", url]
    assert run(down) == 4
    assert f"no server answers at {url}" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
    assert bench(case_file, tmp_path, Script()) == 2
    assert "exists already" in capsys.readouterr().err


def test_compare_refuses_what_is_no_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "compare", str(tmp_path), str(tmp_path)]) == 2
    assert "can't read" in capsys.readouterr().err
    for text, message in (("{", "is no JSON"), ("{}", "is no run of schema version 1")):
        (tmp_path / "run.json").write_text(text)
        assert run(["bench", "compare", str(tmp_path), str(tmp_path)]) == 2
        assert message in capsys.readouterr().err
