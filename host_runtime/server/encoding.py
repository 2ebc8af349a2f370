"""DeepSeek-V3.2's chat format: a conversation in, a prompt out (structure marks and plain text).

    BOS system [tools block]
    <｜User｜>question<｜Assistant｜></think>answer EOS
    <｜User｜>question<｜Assistant｜>, then <think> (thinking) or </think> (not)

The answer starts in the state that the prompt ends in.
Reasoning of earlier turns is dropped; inside a tool loop (after the last user message) it is kept.
Choices where the format leaves room: docs/decisions/0050-prompt-encoding.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from host_runtime.server.dsml import render_calls, render_results, render_tools
from host_runtime.server.errors import bad_request
from host_runtime.server.tokens import (
    ASSISTANT,
    BEGIN_OF_SENTENCE,
    END_OF_SENTENCE,
    END_THINK,
    THINK,
    USER,
    Mark,
    Piece,
)

Role = Literal["system", "developer", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """One call that the assistant made: ``arguments`` is a JSON object."""

    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Message:
    """One validated message of a conversation."""

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True)
class Prompt:
    """What the model is given, and the state in which its answer begins."""

    pieces: tuple[Piece, ...]
    thinking: bool

    def text(self) -> str:
        """The prompt as one string, marks written out (for people and tests)."""
        return "".join(p.name if isinstance(p, Mark) else p for p in self.pieces)


def encode_conversation(
    messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] = (), thinking: bool = False
) -> Prompt:
    """Render a conversation that ends with a user, developer or tool message.

    ``tools`` are function schemas (the inner ``function`` objects of OpenAI's form).
    Raises ApiError (400) that names the message when the order of roles makes no sense.
    """
    _check_order(messages)
    last_user = max(i for i, m in enumerate(messages) if m.role in ("user", "developer"))
    pieces: list[Piece] = [Mark(BEGIN_OF_SENTENCE)]
    pieces.append("\n\n".join(m.content for m in messages if m.role == "system" and m.content))
    tools_with_developer = bool(tools) and _tools_belong_to_developer(messages)
    if tools and not tools_with_developer:
        pieces += ["\n\n", *render_tools(tools)]
    index = 0
    while index < len(messages):
        message = messages[index]
        thinks = thinking and index >= last_user
        if message.role in ("user", "developer"):
            offered = tools if tools_with_developer and index == last_user else ()
            pieces += _user_turn(message, offered, thinks)
        elif message.role == "assistant":
            pieces += _assistant_turn(message, keep_reasoning=thinks)
        elif message.role == "tool":
            count = len(messages[index - 1].tool_calls)
            results = messages[index : index + count]
            pieces += _tool_turn(messages[index - 1], results, index)
            pieces += ["\n\n", Mark(THINK if thinks else END_THINK)]
            index += count
            continue
        index += 1
    return Prompt(tuple(pieces), thinking)


def _tools_belong_to_developer(messages: Sequence[Message]) -> bool:
    """The format gives tools to the system message; a developer message carries them instead when
    it is the last user-side message and there is no system message."""
    has_system = any(m.role == "system" for m in messages)
    user_side = [m for m in messages if m.role in ("user", "developer")]
    return not has_system and user_side[-1].role == "developer"


def _user_turn(message: Message, tools: Sequence[dict[str, Any]], thinks: bool) -> list[Piece]:
    pieces: list[Piece] = [Mark(USER)]
    if message.role == "developer":
        if tools:
            pieces += ["\n\n", *render_tools(tools)]
        pieces.append("\n\n# The user's message is: ")
    return [*pieces, message.content, Mark(ASSISTANT), Mark(THINK if thinks else END_THINK)]


def _assistant_turn(message: Message, *, keep_reasoning: bool) -> list[Piece]:
    pieces: list[Piece] = []
    if keep_reasoning:
        pieces += [message.reasoning, Mark(END_THINK)]
    pieces.append(_without_thinking(message.content))
    if message.tool_calls:
        pieces += ["\n\n", *render_calls([(c.name, c.arguments) for c in message.tool_calls])]
    return [*pieces, Mark(END_OF_SENTENCE)]


def _without_thinking(content: str) -> str:
    """Clients that show thinking inline send it back in front of the content, between its marks.
    Without the opening mark, ``</think>`` may just be what the answer is about."""
    if not content.lstrip().startswith(THINK):
        return content
    _, found, after = content.partition(END_THINK)
    return after if found else content


def _tool_turn(caller: Message, results: Sequence[Message], index: int) -> list[Piece]:
    by_id = {m.tool_call_id: m.content for m in results if m.role == "tool"}
    wanted = [call.call_id for call in caller.tool_calls]
    if set(by_id) != set(wanted):
        raise bad_request(
            f"the tool messages after messages[{index - 1}] must answer each of its tool calls "
            f"once: expected tool_call_id {', '.join(wanted)}, found {', '.join(by_id) or 'none'}",
            f"messages[{index}].tool_call_id",
        )
    return ["\n\n", *render_results([by_id[call_id] for call_id in wanted])]


def _check_order(messages: Sequence[Message]) -> None:
    if not any(m.role in ("user", "developer") for m in messages):
        raise bad_request("messages must have at least one user message", "messages")
    last = len(messages) - 1
    while last > 0 and messages[last].role == "system":
        last -= 1
    if messages[last].role == "assistant":
        raise bad_request(
            "the last message is the assistant's; end with a user or tool message "
            "(continuing an assistant message is not supported)",
            f"messages[{last}].role",
        )
    for index, message in enumerate(messages):
        previous = messages[index - 1] if index else None
        if message.role == "tool" and (previous is None or not _may_precede_tool(previous)):
            raise bad_request(
                "a tool message must follow the assistant message whose tool call it answers",
                f"messages[{index}].role",
            )
        if previous is not None and previous.tool_calls and message.role != "tool":
            raise bad_request(
                f"messages[{index - 1}] has tool_calls; tool messages with their results must "
                "follow it",
                f"messages[{index}].role",
            )
    _check_tool_counts(messages)


def _may_precede_tool(previous: Message) -> bool:
    return previous.role == "tool" or bool(previous.tool_calls)


def _check_tool_counts(messages: Sequence[Message]) -> None:
    """Tool messages come in runs, as many as the calls before them."""
    index = 0
    while index < len(messages):
        calls = len(messages[index].tool_calls)
        index += 1
        run = 0
        while index < len(messages) and messages[index].role == "tool":
            index, run = index + 1, run + 1
        if run != calls:
            raise bad_request(
                f"messages[{index - run - 1}] has {calls} tool calls, but {run} tool messages "
                "follow it",
                "messages",
            )
