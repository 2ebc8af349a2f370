"""DSML, DeepSeek-V3.2's markup of tool calls: writing it into prompts, reading it from answers.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="get_weather">
    <｜DSML｜parameter name="city" string="true">Berlin</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

A parameter with string="false" holds JSON. The reader is lenient about white space and refuses
nothing: a block that it can't read is given back as text, with a flag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from host_runtime.server.strict_json import strict_json
from host_runtime.server.tokens import DSML, END_THINK, THINK, Mark, Piece

BLOCK_OPEN = f"<{DSML}function_calls>"
BLOCK_CLOSE = f"</{DSML}function_calls>"
BLOCK_CHARACTERS_MAX = 1_000_000
"""A block that grows beyond this is given back as text."""

# The wording is part of the model's trained prompt format (facts of DeepSeek-V3.2's encoding).
_TOOLS_HEAD = """## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<{dsml}function_calls>" block like the following as part of \
your reply to the user:
<{dsml}function_calls>
<{dsml}invoke name="$FUNCTION_NAME">
<{dsml}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{dsml}parameter>
...
</{dsml}invoke>
<{dsml}invoke name="$FUNCTION_NAME2">
...
</{dsml}invoke>
</{dsml}function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists \
and objects should use JSON format. The "string" attribute should be set to "true" for string type \
parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider \
outputting a thinking block. Here is an example:

<{dsml}function_calls>
...
</{dsml}function_calls>

<function_results>
...
</function_results>

{think}...thinking about results{end_think}

Here are the functions available in JSONSchema format:
<functions>
"""
_TOOLS_TAIL = "\n</functions>\n"
_MARK_OF_FIELD = {"{dsml}": DSML, "{think}": THINK, "{end_think}": END_THINK}


def render_tools(tools: Sequence[dict[str, Any]]) -> list[Piece]:
    """The block that tells the model which functions there are."""
    schemas = "\n".join(_json(tool) for tool in tools)
    return [*_with_marks(_TOOLS_HEAD), schemas, _TOOLS_TAIL]


def render_calls(calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Piece]:
    """Calls (name, arguments) that the assistant made in an earlier turn."""
    pieces: list[Piece] = [*_tag("function_calls>\n")]
    for name, arguments in calls:
        pieces += [*_tag("invoke name="), f'"{name}">\n']
        parameters: list[Piece] = []
        for key, value in arguments.items():
            is_string = isinstance(value, str)
            parameters += [
                *([] if not parameters else ["\n"]),
                *_tag("parameter name="),
                f'"{key}" string="{str(is_string).lower()}">',
                value if is_string else _json(value),
                *_tag("parameter>", close=True),
            ]
        pieces += [*parameters, "\n", *_tag("invoke>\n", close=True)]
    return [*pieces, *_tag("function_calls>", close=True)]


def render_results(results: Sequence[str]) -> list[Piece]:
    """Results of all the calls of one assistant turn, in the order of the calls."""
    inner = "".join(f"\n<result>{result}</result>" for result in results)
    return ["<function_results>", inner, "\n</function_results>"]


def _tag(rest: str, *, close: bool = False) -> tuple[Piece, ...]:
    return ("</" if close else "<", Mark(DSML), rest)


def _with_marks(template: str) -> Iterator[Piece]:
    for part in re.split(r"(\{dsml\}|\{think\}|\{end_think\})", template):
        mark = _MARK_OF_FIELD.get(part)
        yield Mark(mark) if mark else part


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class ParsedCall:
    """One call read from an answer; ``arguments`` is JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class MalformedCalls:
    """A block that is no valid call: its text as the model wrote it."""

    text: str


Parsed = str | ParsedCall | MalformedCalls

_INVOKE = re.compile(
    rf'<{DSML}invoke\s+name="(?P<name>[^"]*)"\s*>(?P<body>.*?)</{DSML}invoke>', re.DOTALL
)
_PARAMETER = re.compile(
    rf'<{DSML}parameter\s+name="(?P<name>[^"]*)"(?:\s+string="(?P<string>true|false)")?\s*>'
    rf"(?P<value>.*?)</{DSML}parameter>",
    re.DOTALL,
)


class CallReader:
    """Splits a streamed answer into text and calls. Text flows through at once, except what could
    be the beginning of a block (and the blank line before it, which belongs to the markup)."""

    def __init__(self) -> None:
        self._held = ""
        self._in_block = False

    def feed(self, text: str) -> list[Parsed]:
        """Text and calls that are certain after this piece of the answer."""
        self._held += text
        out: list[Parsed] = []
        while True:
            if self._in_block:
                end = self._held.find(BLOCK_CLOSE)
                if end < 0:
                    if len(self._held) > BLOCK_CHARACTERS_MAX:
                        out += self.finish()
                    return out
                out += _read_block(self._held[:end] + BLOCK_CLOSE)
                self._held = self._held[end + len(BLOCK_CLOSE) :]
                self._in_block = False
            else:
                start = self._held.find(BLOCK_OPEN)
                if start < 0:
                    return out + self._release_safe_text()
                before = self._held[:start].removesuffix("\n\n")
                out += [before] if before else []
                self._held = self._held[start:]
                self._in_block = True

    def finish(self) -> list[Parsed]:
        """What is left at the end of the answer; an unclosed block is read as far as it goes."""
        held, in_block = self._held, self._in_block
        self._held, self._in_block = "", False
        if in_block:
            return _read_block(held)
        return [held] if held else []

    def _release_safe_text(self) -> list[Parsed]:
        keep = 0
        for opening in ("\n\n" + BLOCK_OPEN, BLOCK_OPEN):
            keep = max(keep, overlap(self._held, opening))
        safe = self._held[: len(self._held) - keep]
        self._held = self._held[len(safe) :]
        return [safe] if safe else []


def overlap(text: str, wanted: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``wanted`` (but not all)."""
    for length in range(min(len(text), len(wanted) - 1), 0, -1):
        if text.endswith(wanted[:length]):
            return length
    return 0


def _read_block(block: str) -> list[Parsed]:
    inner = block.removeprefix(BLOCK_OPEN).removesuffix(BLOCK_CLOSE)
    calls: list[Parsed] = []
    rest_from = 0
    for match in _INVOKE.finditer(inner):
        arguments = _read_arguments(match["body"])
        if inner[rest_from : match.start()].strip() or arguments is None or not match["name"]:
            return [MalformedCalls(block)]
        calls.append(ParsedCall(match["name"], arguments))
        rest_from = match.end()
    if not calls or inner[rest_from:].strip():
        return [MalformedCalls(block)]
    return calls


def _read_arguments(body: str) -> str | None:
    """Parameters as JSON text; a body that is itself a JSON object is accepted too."""
    if not body.strip():
        return "{}"
    if DSML not in body:
        value = _load(body)
        return _json(value) if isinstance(value, dict) else None
    arguments: dict[str, Any] = {}
    rest_from = 0
    for match in _PARAMETER.finditer(body):
        if body[rest_from : match.start()].strip() or match["name"] in arguments:
            return None
        rest_from = match.end()
        value = match["value"]
        if match["string"] != "true":
            value = _load(match["value"])
            if value is _NOT_JSON and match["string"] == "false":
                return None
            value = match["value"] if value is _NOT_JSON else value
        arguments[match["name"]] = value
    return None if body[rest_from:].strip() else _json(arguments)


_NOT_JSON = object()


def _load(text: str) -> Any:
    try:
        return strict_json(text)
    except ValueError:
        return _NOT_JSON
