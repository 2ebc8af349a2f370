"""A real server gives the same tokens in every archive, and those of the model's reference."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duckctl.cli import run
from duckctl.process import die_with_parent, read_ready_line

ROOT = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S = 120.0
CASE = """
schema_version: 1
name: zh
endpoint: chat
thinking: true
prompt: 104857601是质数吗
max_tokens: 64
ignore_eos: true
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """`duckctl serve` with experts in the server: no ducks needed to check tokens and times."""
    arguments = [sys.executable, "-m", "duckctl", "--quiet", "serve", "ducklet"]
    process = subprocess.Popen(
        [*arguments, "--experts", "local", "--port", "0", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        preexec_fn=die_with_parent,
    )
    assert process.stdout is not None
    try:
        line = read_ready_line(process.stdout, READY_TIMEOUT_S)
        assert line is not None
        yield line.removeprefix("ready ")
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.mark.slow
def test_tokens_repeat_and_are_the_references(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = tmp_path / "zh.yaml"
    case.write_text(CASE, encoding="utf-8")
    for name in ("a", "b"):
        archive = str(tmp_path / name)
        arguments = ["bench", "serve", str(case), "--archive", archive, "--url", server]
        assert run([*arguments, "--repeats", "2", "--no-plots"]) == 0
    runs = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("a", "b")]
    tokens = [entry["cases"][0]["token_ids"] for entry in runs]
    assert tokens[0] == tokens[1]
    reference = json.loads((ROOT / "duckctl/models/ducklet/reference.json").read_text())
    expected = next(p for p in reference["prompts"] if p["name"] == "zh-prime-104857601")
    assert tokens[0] == expected["greedy_ids"][:64]
    assert runs[0]["cases"][0]["stages"] == []  # no ducks
    capsys.readouterr()
    assert run(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) in (0, 3)
    assert json.loads(capsys.readouterr().out)["tokens"] == []
