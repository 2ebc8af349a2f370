"""Case files are read strictly: every mistake is named with its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from duckctl.bench_serve.cases import CaseError, load_cases, read_case
from duckctl.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
GOOD = "schema_version: 1\nname: a\nprompt: Is 143 prime?\n"


def write(folder: Path, text: str, name: str = "case.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_shipped_examples_cover_languages_lengths_and_ids() -> None:
    cases = {case.name: case for case in load_cases(ROOT / "docs/examples/cases")}
    assert list(cases) == ["en-short-long", "zh-short-long", "en-long-medium", "ids-medium"]
    assert cases["zh-short-long"].text == "104857601是质数吗"
    assert len(cases["en-long-medium"].text or "") > 1000
    assert len(cases["ids-medium"].ids) == 48
    assert all(case.ignore_eos for case in cases.values())


def test_request_of_a_chat_and_of_ids(tmp_path: Path) -> None:
    path, body = read_case(write(tmp_path, GOOD + "thinking: true\n")).request("m")
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "Is 143 prime?"}]
    assert body["thinking"] is True
    assert body["return_token_ids"] is True
    ids = "schema_version: 1\nendpoint: completion\nprompt_ids: [1, 2, 3]\nmax_tokens: 4\n"
    path, body = read_case(write(tmp_path, ids)).request("m")
    assert path == "/v1/completions"
    assert body["prompt"] == [1, 2, 3]
    assert body["max_tokens"] == 4
    assert body["ignore_eos"] is False


def test_prompt_length_draws_the_same_ids_for_the_same_seed(tmp_path: Path) -> None:
    text = (
        "schema_version: 1\nendpoint: completion\n"
        "prompt_length: {tokens: 50, first: 10, last: 20, seed: %d}\n"
    )
    first, again, other = (read_case(write(tmp_path, text % seed)).ids for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 50
    assert set(first) <= set(range(10, 21))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt: a\n", "schema_version is None"),
        (GOOD + "promt_file: x\n", "unknown key 'promt_file' (did you mean 'prompt_file'?)"),
        (GOOD + "prompt_ids: [1]\n", "found prompt and prompt_ids"),
        ("schema_version: 1\nname: a\n", "found none"),
        (GOOD.replace("Is 143 prime?", "'  '"), "the prompt is empty"),
        (GOOD.replace("name: a", "name: A b"), "name 'A b'"),
        (GOOD.replace("name: a", "name: ../a"), "name '../a'"),
        (GOOD + "endpoint: chats\n", "endpoint is 'chats'"),
        (GOOD + "max_tokens: 0\n", "max_tokens is 0"),
        (GOOD + "max_tokens: many\n", "'max_tokens' is 'many'"),
        (GOOD + "max_tokens: true\n", "'max_tokens' is True"),
        (GOOD + "temperature: 3\n", "temperature is 3"),
        (GOOD + "ignore_eos: 1\n", "'ignore_eos' is 1"),
        ("schema_version: 1\nprompt_ids: [1]\n", "a chat needs text"),
        ("schema_version: 1\nendpoint: completion\nprompt_ids: [1, x]\n", "list of token numbers"),
        ("schema_version: 1\nendpoint: completion\nprompt_ids: []\n", "list of token numbers"),
        ("schema_version: 1\nendpoint: completion\nprompt_length: {tokens: 1}\n", "prompt_length"),
        ("schema_version: 1\nprompt_file: gone.txt\n", "gone.txt: No such file"),
        (GOOD.replace("Is 143 prime?", '"\\ud800"'), "it has a lone surrogate"),
        ("- 1\n", "must be a mapping"),
        ("a: [\n", "is no YAML"),
        ("a: !!bool foo\n", "is no YAML"),
    ],
)
def test_malformed_case(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(CaseError) as refusal:
        read_case(path)
    assert message in refusal.value.message
    assert str(path) in refusal.value.message
    assert refusal.value.hint


def test_folders_without_cases_and_double_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no case files"):
        load_cases(tmp_path)
    with pytest.raises(UsageError, match="there is no"):
        load_cases(tmp_path / "gone")
    write(tmp_path, GOOD, "1.yaml")
    write(tmp_path, GOOD, "2.yaml")
    with pytest.raises(CaseError, match="the name 'a' is also that of"):
        load_cases(tmp_path)
