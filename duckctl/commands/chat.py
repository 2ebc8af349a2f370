"""``duckctl chat``: talk to a served model in the terminal.

The answer goes to stdout; thinking, numbers and errors go to stderr, so that
``duckctl chat "..." > file`` writes the answer only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from duckctl.chat_client import Answer, ChatClient, ChatEnd, ChatPart, not_utf8, read_key, utf8
from duckctl.console import CONTROL_BUT_LINES, console
from duckctl.errors import DuckError, ExitCode, UsageError
from duckctl.process import ToldToEnd

app = typer.Typer()

STDIN_CHARACTERS_MAX = 4_000_000
INTERACTIVE_HELP = "Ctrl-D ends, Ctrl-C stops an answer, /new starts over."


@app.command()
def chat(
    prompt: str | None = typer.Argument(
        None, help="Question; without it: what is piped in, or a conversation."
    ),
    url: str = typer.Option("http://127.0.0.1:8000", "--url", help="Address of the server."),
    model: str | None = typer.Option(None, "--model", help="Model, if the server has several."),
    thinking: bool = typer.Option(False, "--thinking", help="Let the model think first."),
    system: str | None = typer.Option(None, "--system", help="System message."),
    max_tokens: int | None = typer.Option(None, "--max-tokens", min=1, help="Longest answer."),
    temperature: float | None = typer.Option(
        None, "--temperature", min=0.0, max=2.0, help="0 = always the likeliest token."
    ),
    seed: int | None = typer.Option(None, "--seed", help="Repeatable sampling."),
    api_key_file: Path | None = typer.Option(None, "--api-key-file", help="Key of the server."),
) -> None:
    """Talk to a served model in the terminal.

    \b
    Examples:
      duckctl chat
      duckctl chat "Is 143 prime?" --url http://127.0.0.1:8000
    """
    options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    fields: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
    for text, name in ((prompt, "the question"), (system, "--system"), (model, "--model")):
        utf8(text or "", name)
    with ChatClient(url, read_key(api_key_file)) as client:
        conversation = Conversation(
            client, {"model": model or _only_model(client), "thinking": thinking, **fields}, system
        )
        if prompt is None and not sys.stdin.isatty():
            prompt = _read_stdin()
        if prompt is not None:
            _ask_once(conversation, prompt)
        else:
            _talk(conversation)


@dataclass
class Conversation:
    """The messages so far; a question whose answer fails or is stopped leaves no trace."""

    client: ChatClient
    fields: Mapping[str, Any]
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def restart(self) -> None:
        """Forget everything but the system message."""
        self.messages.clear()

    def ask(self, question: str) -> Answer:
        """Parts of the answer, then its end."""
        opening = [{"role": "system", "content": self.system}] if self.system else []
        asked = [*self.messages, {"role": "user", "content": question}]
        content = ""
        with closing(self.client.stream([*opening, *asked], **self.fields)) as parts:
            for part in parts:
                if isinstance(part, ChatPart):
                    content += part.content
                else:
                    self.messages = [*asked, {"role": "assistant", "content": content}]
                yield part


def _ask_once(conversation: Conversation, question: str) -> None:
    try:
        _print_answer(conversation, question)
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _talk(conversation: Conversation) -> None:
    import readline  # noqa: F401 - importing it gives input() line editing and history

    talk = console(stderr=True)
    name = conversation.fields["model"]
    talk.print(f"{name} at {conversation.client.url}. {INTERACTIVE_HELP}", markup=False)
    while True:
        try:
            question = _read_question()
        except (EOFError, KeyboardInterrupt):
            talk.print()
            return
        except UsageError as error:
            talk.print(f"error: {error.message}", style="red", markup=False)
            continue
        if question == "/new":
            conversation.restart()
        elif question:
            try:
                _print_answer(conversation, question)
            except ToldToEnd:
                raise
            except KeyboardInterrupt:
                talk.print("stopped", style="dim")
            except DuckError as error:
                talk.print(f"error: {error.message}", style="red", markup=False)


def _print_answer(conversation: Conversation, question: str) -> None:
    answer, talk = console(), console(stderr=True)
    open_line: Any = None  # the stream whose line isn't ended yet
    end: ChatEnd | None = None
    with closing(conversation.ask(question)) as parts:
        try:
            for part in parts:
                if isinstance(part, ChatEnd):
                    end = part
                    continue
                if part.reasoning:
                    _write(talk, part.reasoning, style="dim")
                    open_line = talk
                if part.content:
                    if open_line is talk:
                        talk.print()
                    _write(answer, part.content)
                    open_line = answer
        finally:
            if open_line is not None:
                open_line.print()
    if end is not None:
        talk.print(speed_line(end), style="dim", markup=False)


def _write(stream: Any, text: str, style: str | None = None) -> None:
    shown = CONTROL_BUT_LINES.sub("", text)
    stream.print(shown, end="", style=style, markup=False, soft_wrap=True, emoji=False)
    stream.file.flush()


def speed_line(end: ChatEnd) -> str:
    """What the answer cost, e.g. "[23 tokens, first after 0.31 s, 16.2 tokens/s, MTP 9 of 11]"."""
    facts = [f"{end.usage.get('completion_tokens', 0)} tokens"]
    measured = end.measured
    if measured.get("ttft_s"):
        facts.append(f"first after {measured['ttft_s']:.2f} s")
    if measured.get("tpot_s"):
        facts.append(f"{1 / measured['tpot_s']:.1f} tokens/s")
    if measured.get("drafts_proposed"):
        facts.append(f"MTP {measured['drafts_accepted']} of {measured['drafts_proposed']} accepted")
    if end.finish_reason == "length":
        facts.append("cut at the token limit")
    return f"[{', '.join(facts)}]"


def _only_model(client: ChatClient) -> str:
    names = client.models()
    if len(names) != 1:
        raise UsageError(
            f"the server at {client.url} has {len(names)} models", f"--model: {', '.join(names)}"
        )
    return names[0]


def _read_question() -> str:
    """What is typed at a terminal. Raises UsageError, and the next one can be read."""
    try:
        return utf8(input("> ").strip(), "the question")
    except UnicodeDecodeError as error:
        raise not_utf8("the question") from error


def _read_stdin() -> str:
    try:
        text = utf8(sys.stdin.read(STDIN_CHARACTERS_MAX + 1).strip(), "what was piped in")
    except UnicodeDecodeError as error:
        raise not_utf8("what was piped in") from error
    if not text:
        raise UsageError("the question is empty", 'e.g. duckctl chat "Is 143 prime?"')
    if len(text) > STDIN_CHARACTERS_MAX:
        raise UsageError(f"more than {STDIN_CHARACTERS_MAX} characters were piped in")
    return text
