"""Proves that an answer's text, reasoning, stops and tool calls don't depend on how it is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_kit import DUCKLET, ducklet_tokenizer

from host_runtime.server.dsml import CallReader, MalformedCalls, ParsedCall, render_calls
from host_runtime.server.output import AnswerReader, Delta, StopFilter
from host_runtime.server.tokens import ChatTokenizer

LETTERS = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def first_stop(text: str, stops: list[str]) -> str:
    """The plain definition: cut at the stop string that is complete first."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


@settings(max_examples=500, deadline=None)
@given(LETTERS, STOPS, st.data())
def test_stop_strings_are_found_however_the_text_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    stop_filter = StopFilter(stops)
    shown, rest = "", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        shown += stop_filter.feed(rest[:size])
        # Nothing is shown that a later stop string could take back.
        assert first_stop(text, stops).startswith(shown)
        rest = rest[size:]
    found = stop_filter.found is not None
    shown += stop_filter.finish()
    assert shown == first_stop(text, stops)
    assert found == any(stop in text for stop in stops)


def test_text_that_cannot_become_a_stop_string_is_not_held_back() -> None:
    stop_filter = StopFilter(["END", "\n\n"])
    assert [stop_filter.feed(t) for t in ("one", " E", "N", "X\n", "y")] == [
        "one",
        " ",
        "",
        "ENX",
        "\ny",
    ]


BLOCK = (
    "<｜DSML｜function_calls>\n"
    '<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Ulm "<&\n</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
    '<｜DSML｜invoke name="time">\n</｜DSML｜invoke>\n'
    "</｜DSML｜function_calls>"
)
CALLS = [("weather", {"city": 'Ulm "<&\n', "days": 3}), ("time", {})]


def read(text: str, cuts: list[int]) -> tuple[str, list[tuple[str, object]], bool]:
    """Text, calls and whether a block was malformed, for one way to cut the stream."""
    reader = CallReader()
    items = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        items += reader.feed(text[begin:end])
    items += reader.finish()
    shown = "".join(
        i.text if isinstance(i, MalformedCalls) else i
        for i in items
        if not isinstance(i, ParsedCall)
    )
    calls = [(i.name, json.loads(i.arguments)) for i in items if isinstance(i, ParsedCall)]
    return shown, calls, any(isinstance(i, MalformedCalls) for i in items)


NOT_JSON = ["NaN", "[-Infinity]", "1e999", '{"a": [1e999]}', '"\\ud83d"', "[" * 500 + "]" * 500]


@pytest.mark.parametrize("value", NOT_JSON, ids=lambda v: v[:15])
def test_arguments_that_no_json_parser_would_take_are_malformed(value: str) -> None:
    """Python's parser takes them; the client's doesn't, or they can't be sent at all."""
    block = BLOCK.replace(">3<", f">{value}<")
    shown, calls, malformed = read(block, [])
    assert (shown, calls, malformed) == (block, [], True)
    # Without a declared type it is text, as everything else that is no JSON.
    shown, calls, malformed = read(block.replace(' string="false"', ""), [])
    assert calls[0] == ("weather", {"city": 'Ulm "<&\n', "days": value})
    assert (shown, malformed) == ("", False)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_tool_calls_are_read_however_the_text_is_cut(data: st.DataObject) -> None:
    text = f"I look.\n\n{BLOCK} < done"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=40)))
    assert read(text, cuts) == ("I look. < done", CALLS, False)


LENIENT = [
    ("spaces", BLOCK.replace("\n<", "  <").replace(">\n", "> "), 2),
    ("no closing tag", BLOCK.removesuffix("</｜DSML｜function_calls>"), 2),
    ("JSON body", '<｜DSML｜function_calls><｜DSML｜invoke name="f">{"a": 1}</｜DSML｜invoke>', 1),
    (
        "no string attribute",
        '<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a">Ulm'
        "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
        1,
    ),
]


@pytest.mark.parametrize(("name", "text", "count"), LENIENT, ids=[entry[0] for entry in LENIENT])
def test_calls_with_small_flaws_are_still_read(name: str, text: str, count: int) -> None:
    shown, calls, malformed = read(text, [])
    assert (shown, len(calls), malformed) == ("", count, False)


MALFORMED = [
    BLOCK[:100],
    BLOCK.replace('name="days" string="false">3', 'name="days" string="false">three'),
    BLOCK.replace('name="days"', 'name="city"'),
    BLOCK.replace('<｜DSML｜invoke name="time">', "hello"),
    "<｜DSML｜function_calls>\n</｜DSML｜function_calls>",
    '<｜DSML｜function_calls><｜DSML｜invoke name="f">5</｜DSML｜invoke></｜DSML｜function_calls>',
    '<｜DSML｜function_calls><｜DSML｜invoke name="">{}</｜DSML｜invoke></｜DSML｜function_calls>',
]


@pytest.mark.parametrize("block", MALFORMED)
def test_a_malformed_block_comes_back_as_text_with_a_flag(block: str) -> None:
    for cuts in ([], list(range(1, len(block) + 6))):
        assert read(f"Look: {block}", cuts) == (f"Look: {block}", [], True)


def run(reader: AnswerReader, ids: list[int]) -> list[Delta]:
    return [*(reader.feed(i) for i in ids), reader.finish()]


def test_the_reader_starts_in_the_state_in_which_the_prompt_ended() -> None:
    tokenizer = ducklet_tokenizer()
    ids = tokenizer.encode_text("Rain.")
    for thinking in (False, True):
        deltas = run(AnswerReader(tokenizer, chat=True, thinking=thinking), ids)
        content = "".join(d.content for d in deltas)
        reasoning = "".join(d.reasoning for d in deltas)
        assert (content, reasoning) == (("", "Rain.") if thinking else ("Rain.", ""))


def test_the_end_of_thinking_is_a_token_not_a_text() -> None:
    tokenizer = ducklet_tokenizer()
    ids = [
        *tokenizer.encode_text("so </think> is text"),
        tokenizer.end_think_id,
        *tokenizer.encode_text("yes <think> too"),
    ]
    reader = AnswerReader(tokenizer, chat=True, thinking=True, stops=["is text"])
    deltas = run(reader, ids)
    assert "".join(d.reasoning for d in deltas) == "so </think> is text"
    assert "".join(d.content for d in deltas) == "yes <think> too"
    assert not reader.stopped
    assert reader.reasoning_tokens == ids.index(tokenizer.end_think_id) + 1


def test_control_tokens_are_no_text_and_thinking_tokens_are_text_in_plain_completions() -> None:
    tokenizer = ducklet_tokenizer()
    ids = [0, 8190, *tokenizer.encode_text("a"), tokenizer.think_id, 1]
    content = "".join(d.content for d in run(AnswerReader(tokenizer, chat=False), ids))
    assert content == "a<think>"


def test_tool_calls_are_read_when_their_mark_is_a_special_token(tmp_path: Path) -> None:
    document = json.loads((DUCKLET / "tokenizer.json").read_text())
    mark = {**document["added_tokens"][0], "id": 8192, "content": "｜DSML｜", "special": True}
    document["added_tokens"].append(mark)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    tokenizer = ChatTokenizer(path)
    ids = tokenizer.encode(render_calls([("weather", {"city": "Ulm", "days": 3})]))
    assert ids.count(8192) == 8
    deltas = run(AnswerReader(tokenizer, chat=True, tools=True), ids)
    ((call,),) = [delta.calls for delta in deltas if delta.calls]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Ulm", "days": 3})
    assert 8192 not in tokenizer.encode_text("<｜DSML｜invoke>")


def test_tool_calls_are_text_when_no_tools_were_offered() -> None:
    tokenizer = ducklet_tokenizer()
    deltas = run(AnswerReader(tokenizer, chat=True), tokenizer.encode_text(BLOCK))
    assert "".join(d.content for d in deltas) == BLOCK
    reader = AnswerReader(tokenizer, chat=True, tools=True)
    offered = run(reader, tokenizer.encode_text(BLOCK))
    assert [call.name for d in offered for call in d.calls] == ["weather", "time"]
    assert reader.call_count == 2
