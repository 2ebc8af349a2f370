"""The demo answers rightly with several duck counts and formats, and cleans up behind itself."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from duckctl import cli
from duckctl.demo.prompts import PROMPTS, Answer, WrongAnswerError, check, reference_tokens
from duckctl.demo.transcript import Transcript
from duckctl.errors import ExitCode
from duckctl.model_dir import resolve_model_dir
from duckctl.process import ProcessIdentity, descendants, is_same, wait_until

MODEL_DIR = resolve_model_dir("ducklet")
SEED = 20261130


def an_answer(text: str, finish_reason: str = "stop", token_ids: tuple[int, ...] = ()) -> Answer:
    return Answer(
        prompt="", thinking="", text=text, token_ids=token_ids, finish_reason=finish_reason,
        prompt_tokens=11, completion_tokens=20, ttft_s=0.1, tpot_s=0.02,
        drafts_proposed=10, drafts_accepted=9, wall_s=1.0,
    )  # fmt: skip


def test_a_right_answer_passes() -> None:
    check(PROMPTS[0], an_answer("No, 143 is not prime: 143 = 11 × 13."), MODEL_DIR)
    reference = reference_tokens(MODEL_DIR, "zh-prime-104857601")
    assert len(reference) == 64
    check(PROMPTS[1], an_answer("", "length", (*reference, 7, 8, 9)), MODEL_DIR)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (an_answer("Yes, 143 is prime."), "lacks not, 11, 13"),
        (an_answer("No, 143 is not prime: 143 = 7 × 21."), "lacks 11, 13"),
        (an_answer("No, 143 is not prime: 143 = 11 × 13.", "length"), "did not end"),
        (an_answer(""), "lacks 143, not, 11, 13"),
    ],
)
def test_a_wrong_answer_about_143_is_a_failure(answer: Answer, message: str) -> None:
    with pytest.raises(WrongAnswerError, match=message):
        check(PROMPTS[0], answer, MODEL_DIR)


@pytest.mark.parametrize("index", [0, 31, 63])
def test_a_token_that_differs_from_the_reference_is_named(index: int) -> None:
    tokens = reference_tokens(MODEL_DIR, "zh-prime-104857601")
    tokens[index] += 1
    with pytest.raises(WrongAnswerError, match=f"leaves the model's reference at token {index}"):
        check(PROMPTS[1], an_answer("", "length", tuple(tokens)), MODEL_DIR)


def test_an_answer_that_is_too_short_for_the_reference_is_a_failure() -> None:
    tokens = tuple(reference_tokens(MODEL_DIR, "zh-prime-104857601")[:10])
    with pytest.raises(WrongAnswerError, match="at token 10"):
        check(PROMPTS[1], an_answer("", "length", tokens), MODEL_DIR)


def test_tokens_per_second_follow_from_tpot() -> None:
    assert an_answer("").tokens_per_s == 50
    assert replace(an_answer(""), tpot_s=None).tokens_per_s is None


@pytest.mark.parametrize(
    ("colour", "expected"),
    [
        (False, "\n> Why?\n\n    one\n    two\n\nThree. […]\n"),
        (True, "\n\x1b[1m> Why?\x1b[0m\n\n\x1b[2mone\n\x1b[0m\x1b[2mtwo\x1b[0m\n\nThree. […]\n"),
    ],
)
def test_a_transcript_keeps_thoughts_and_answer_apart(colour: bool, expected: str) -> None:
    written: list[str] = []
    transcript = Transcript(written.append, colour)
    transcript.question("Why?")
    transcript.part("one\n", True)
    transcript.part("two", True)
    transcript.part("Three.", False)
    transcript.end(cut=True)
    assert "".join(written) == expected


def test_what_a_model_writes_does_not_steer_the_terminal() -> None:
    written: list[str] = []
    Transcript(written.append, colour=False).part("a\x1b]0;b\x07\nc\x9b", thinking=False)
    assert written == ["a?]0;b?\nc?"]


@pytest.mark.parametrize("ducks", ["3", "0", "-1", "16"])
def test_a_number_of_ducks_without_equal_slices_is_refused_at_once(
    ducks: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duckctl.commands.demo.run_demo", lambda *_: pytest.fail("started"))
    assert cli.run(["demo", "--ducks", ducks]) == ExitCode.USAGE
    assert f"--ducks: {ducks} is none of 1, 2, 4, 8" in capsys.readouterr().err


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    tmp_path.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "duckctl", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )


def assert_clean(tmp_path: Path, seen: set[ProcessIdentity]) -> None:
    """No process of the demo lives, and its folder is gone."""
    assert wait_until(lambda: not any(is_same(process) for process in seen), 10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("ducks", "weight_format"), [(4, "fp9"), (2, "fp8")])
def test_the_demo_answers_rightly_and_leaves_nothing(
    tmp_path: Path, ducks: int, weight_format: str
) -> None:
    process = start(tmp_path, "--json", "--ducks", str(ducks), "--format", weight_format)
    seen: set[ProcessIdentity] = set()

    def watch() -> bool:
        seen.update(descendants(process.pid))
        return process.poll() is not None

    assert wait_until(watch, 180)
    out, err = process.communicate()
    assert process.returncode == ExitCode.OK, err
    document = json.loads(out)
    assert document["schema_version"] == 1
    assert [a["finish_reason"] for a in document["answers"]] == ["stop", "length"]
    assert [len(a["token_ids"]) for a in document["answers"]][1] == 200
    assert all(a["drafts_accepted"] > 0 for a in document["answers"])
    assert len(document["ducks"]) == ducks
    assert all(duck["counters"]["calls"] > 0 for duck in document["ducks"])
    assert len(seen) >= ducks + 2
    assert_clean(tmp_path, seen)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    """The signal comes at seeded moments of every phase; a killed demo may leave its folder."""
    rng = random.Random(SEED + number)
    sys.stdout.write(f"seed {SEED + number}\n")
    for turn in range(4):
        folder = tmp_path / str(turn)
        process = start(folder)
        seen: set[ProcessIdentity] = set()
        deadline = time.monotonic() + rng.uniform(0.3, 14)

        def watch(
            process: subprocess.Popen[str] = process,
            seen: set[ProcessIdentity] = seen,
            deadline: float = deadline,
        ) -> bool:
            seen.update(descendants(process.pid))
            return time.monotonic() >= deadline or process.poll() is not None

        assert wait_until(watch, 60)
        seen.update(descendants(process.pid))
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        if number != signal.SIGKILL:
            codes: list[int] = [ExitCode.INTERRUPTED, ExitCode.OK]
            if "everything is shut down again" in err:
                codes.append(-number)  # while the interpreter was ending
            assert process.returncode in codes, err
            assert_clean(folder, seen)
        assert wait_until(lambda seen=seen: not any(map(is_same, seen)), 10)  # type: ignore[misc]


def test_an_impossible_duck_count_fails_cleanly(tmp_path: Path) -> None:
    process = start(tmp_path, "--ducks", "3")
    _, err = process.communicate(timeout=120)
    assert process.returncode == ExitCode.USAGE
    assert "3 is none of 1, 2, 4, 8" in err
    assert list(tmp_path.iterdir()) == []
