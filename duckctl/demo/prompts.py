"""The demo's prompts: asked through the API, streamed to the terminal, measured and checked."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from duckctl.chat_client import ChatClient, ChatEnd
from duckctl.demo.transcript import Transcript
from duckctl.errors import DuckError

ANSWER_TOKENS_MAX = 1024  # ends an answer that does not end itself


class WrongAnswerError(DuckError):
    """The model's answer is not what this model answers when every part works."""


@dataclass(frozen=True)
class Prompt:
    """A question; ``reference`` names its greedy continuation in the model's reference.json."""

    text: str
    max_tokens: int
    must_end: bool
    must_contain: tuple[str, ...] = ()
    reference: str | None = None


PROMPTS = (
    Prompt(
        "Is 143 prime?",
        ANSWER_TOKENS_MAX,
        must_end=True,
        must_contain=("143", "not", "11", "13"),
    ),
    Prompt("104857601是质数吗", 200, must_end=False, reference="zh-prime-104857601"),
)


@dataclass(frozen=True)
class Answer:
    """An answer with the server's measurements (seconds) and what the client saw."""

    prompt: str
    thinking: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    ttft_s: float
    tpot_s: float | None
    drafts_proposed: int
    drafts_accepted: int
    wall_s: float

    @property
    def tokens_per_s(self) -> float | None:
        return 1 / self.tpot_s if self.tpot_s else None


def ask(client: ChatClient, model: str, prompt: Prompt, transcript: Transcript) -> Answer:
    """Asks greedily with thinking on; the transcript gets the text as it comes."""
    transcript.question(prompt.text)
    started = time.monotonic()
    texts = {True: "", False: ""}
    token_ids: list[int] = []
    end = ChatEnd("")
    for part in client.stream(
        [{"role": "user", "content": prompt.text}],
        model=model,
        max_tokens=prompt.max_tokens,
        temperature=0,
        thinking=True,
        return_token_ids=True,
    ):
        if isinstance(part, ChatEnd):
            end = part
            continue
        token_ids += part.token_ids
        for text, thinking in ((part.reasoning, True), (part.content, False)):
            if text:
                texts[thinking] += text
                transcript.part(text, thinking)
    transcript.end(cut=end.finish_reason == "length")
    return Answer(
        prompt=prompt.text,
        thinking=texts[True],
        text=texts[False],
        token_ids=tuple(token_ids),
        finish_reason=end.finish_reason,
        prompt_tokens=end.usage["prompt_tokens"],
        completion_tokens=end.usage["completion_tokens"],
        ttft_s=end.measured["ttft_s"],
        tpot_s=end.measured["tpot_s"],
        drafts_proposed=end.measured["drafts_proposed"],
        drafts_accepted=end.measured["drafts_accepted"],
        wall_s=time.monotonic() - started,
    )


def reference_tokens(model_dir: Path, name: str) -> list[int]:
    """The greedy continuation that an independent implementation computed (reference.json)."""
    document = json.loads((model_dir / "reference.json").read_text(encoding="utf-8"))
    for entry in document["prompts"]:
        if entry["name"] == name:
            return [int(token) for token in entry["greedy_ids"]]
    raise DuckError(f"{model_dir}/reference.json has no prompt '{name}'")


def check(prompt: Prompt, answer: Answer, model_dir: Path) -> None:
    """Raises WrongAnswerError when the answer shows that some part of the chain is wrong."""
    if prompt.must_end and answer.finish_reason != "stop":
        raise WrongAnswerError(
            f"the answer to '{prompt.text}' did not end within {prompt.max_tokens} tokens"
        )
    missing = [word for word in prompt.must_contain if word not in answer.text]
    if missing:
        raise WrongAnswerError(
            f"the answer to '{prompt.text}' is '{answer.text.strip()}'; it lacks "
            f"{', '.join(missing)} (143 = 11 x 13 is not prime)"
        )
    if prompt.reference is not None:
        expected = reference_tokens(model_dir, prompt.reference)
        found = list(answer.token_ids[: len(expected)])
        if found != expected:
            first = next(
                (
                    i
                    for i, pair in enumerate(zip(found, expected, strict=False))
                    if pair[0] != pair[1]
                ),
                len(found),
            )
            raise WrongAnswerError(
                f"the answer to '{prompt.text}' leaves the model's reference at token {first}"
            )
