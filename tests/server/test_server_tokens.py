"""Proves that text survives the tokenizer unchanged and that no broken character is ever shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_kit import DUCKLET, ducklet_tokenizer
from tokenizers import Tokenizer

from host_runtime.server.errors import ApiError, StartupError
from host_runtime.server.tokens import ChatTokenizer, TextStream

LIBRARY = Tokenizer.from_file(str(DUCKLET / "tokenizer.json"))
SAMPLES = [
    "  two  spaces   three ",
    "\n\n\ttabs\r\nand lines\n",
    "中文：他说，“今天天气很好。”",
    "日本語カタカナ",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 🦆🦆",
    "def f(x):\n    return {'a': [1, 2]}  # 注释\n",
    "مرحبا שלום नमस्ते",
    "e\u0301 ﬃ \u00a0nbsp \u200bzero",
    "\x00\x01\x7f",
    "1234567890 3.14159 1e-9",
]


@pytest.mark.parametrize("text", SAMPLES)
def test_round_trip_of_difficult_texts(text: str) -> None:
    tokenizer = ducklet_tokenizer()
    assert tokenizer.decode(tokenizer.encode_text(text)) == text


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_round_trip_and_streaming_of_any_text(text: str) -> None:
    tokenizer = ducklet_tokenizer()
    ids = tokenizer.encode_text(text)
    stream = TextStream(tokenizer)
    assert "".join(stream.feed(i) for i in ids) == text == tokenizer.decode(ids)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 8191), max_size=60))
def test_any_token_sequence_decodes_as_the_tokenizers_library_does(ids: list[int]) -> None:
    # The library decodes special tokens apart from the bytes around them; so do we when streaming.
    ordinary = [i for i in ids if 3 <= i < 8175]
    assert ducklet_tokenizer().decode(ordinary) == LIBRARY.decode(ordinary)


def test_a_character_is_given_out_with_its_last_byte() -> None:
    tokenizer = ducklet_tokenizer()
    duck = tokenizer.encode_text("🦆")
    assert len(duck) > 1
    stream = TextStream(tokenizer)
    assert [stream.feed(i) for i in duck] == [""] * (len(duck) - 1) + ["🦆"]


def test_an_unfinished_character_is_dropped_not_shown_broken() -> None:
    tokenizer = ducklet_tokenizer()
    duck = tokenizer.encode_text("🦆")
    stream = TextStream(tokenizer)
    assert stream.feed(duck[0]) == ""
    stream.cut()
    assert "".join(stream.feed(i) for i in tokenizer.encode_text("a🦆")) == "a🦆"


@pytest.mark.parametrize("bad", [-1, 8192])
def test_ids_outside_the_vocabulary_are_refused(bad: int) -> None:
    with pytest.raises(ApiError, match=rf"prompt\[1\] is {bad}"):
        ducklet_tokenizer().check_ids([5, bad], "prompt")


def test_ids_behind_the_last_token_stand_for_nothing() -> None:
    """Vocabularies may be padded: the model can choose such an id."""
    tokenizer = ducklet_tokenizer()
    assert tokenizer.bytes_of(tokenizer.size) == b""
    assert tokenizer.decode([tokenizer.size + 7, *tokenizer.encode_text("a")]) == "a"


def write_tokenizer(folder: Path, change: dict[str, Any]) -> Path:
    document = json.loads((DUCKLET / "tokenizer.json").read_text())
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**document, **change}))
    return path


def test_start_refuses_a_tokenizer_without_the_chat_tokens(tmp_path: Path) -> None:
    document = json.loads((DUCKLET / "tokenizer.json").read_text())
    kept = [t for t in document["added_tokens"] if t["content"] != "<think>"]
    with pytest.raises(StartupError, match="needs the tokens <think>, not found"):
        ChatTokenizer(write_tokenizer(tmp_path, {"added_tokens": kept}))


def test_start_refuses_a_tokenizer_that_is_not_byte_level(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="byte-level decoder, found Metaspace"):
        ChatTokenizer(write_tokenizer(tmp_path, {"decoder": {"type": "Metaspace"}}))


@pytest.mark.parametrize(("content", "text"), [(None, "can't read"), ("{", "not JSON")])
def test_start_names_a_missing_or_damaged_tokenizer(
    tmp_path: Path, content: str | None, text: str
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StartupError, match=text) as caught:
        ChatTokenizer(path)
    assert str(path) in caught.value.message
