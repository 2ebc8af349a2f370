"""Text to token ids and back, for byte-level BPE tokenizers (``tokenizer.json``).

Two rules keep users from forging the conversation's structure and from seeing broken text:

* Text of users is encoded by a tokenizer that has no added tokens, so ``<｜Assistant｜>`` typed by
  a person becomes ordinary letters. Only a ``Mark`` written by the encoder becomes a special token.
* Tokens are turned into *bytes*; characters are given out when their last byte has come.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from host_runtime.server.errors import StartupError, bad_request

BEGIN_OF_SENTENCE = "<｜begin▁of▁sentence｜>"
END_OF_SENTENCE = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"  # tool-call markup; a token in some tokenizers, plain letters in others
REQUIRED_MARKS = (BEGIN_OF_SENTENCE, END_OF_SENTENCE, USER, ASSISTANT, THINK, END_THINK)


@dataclass(frozen=True)
class Mark:
    """A structural token of the prompt, e.g. ``Mark("<think>")``; plain text where the tokenizer
    has no such token."""

    name: str


Piece = str | Mark


def _byte_of_letter() -> dict[str, int]:
    """Inverse of the byte-level alphabet: printable Latin-1 stands for itself, the other 68 bytes
    are written as U+0100, U+0101, ... in byte order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


class ChatTokenizer:
    """The model's tokenizer. Thread-safe: nothing changes after construction."""

    def __init__(self, path: Path) -> None:
        document = _read_tokenizer_json(path)
        added = {entry["content"]: entry for entry in document.get("added_tokens", [])}
        missing = [mark for mark in REQUIRED_MARKS if mark not in added]
        if missing:
            raise StartupError(
                f"{path}: the chat format needs the tokens {', '.join(missing)}, not found",
                "serve a model with DeepSeek-V3.2's chat format",
            )
        self._mark_ids: dict[str, int] = {name: entry["id"] for name, entry in added.items()}
        self._plain = FastTokenizer.from_str(json.dumps({**document, "added_tokens": []}))
        self._bytes_of_id = _bytes_of_ids(document, path)
        hidden = {BEGIN_OF_SENTENCE, END_OF_SENTENCE, USER, ASSISTANT}
        hidden.update(name for name, entry in added.items() if entry["special"])
        # Tool calls are read from the text, so their mark belongs to it.
        self.control_ids = frozenset(self._mark_ids[name] for name in hidden - {DSML})
        self.think_id = self._mark_ids[THINK]
        self.end_think_id = self._mark_ids[END_THINK]
        self.begin_id = self._mark_ids[BEGIN_OF_SENTENCE]
        self.end_id = self._mark_ids[END_OF_SENTENCE]
        self.size = len(self._bytes_of_id)
        self._check_plain(path)

    def _check_plain(self, path: Path) -> None:
        """Plain text must never become a special token, whatever the tokenizer's options are."""
        for name, mark_id in self._mark_ids.items():
            if mark_id in self.encode_text(name):
                raise StartupError(
                    f"{path}: the text {name!r} is encoded as token {mark_id} even as plain text",
                    "users could forge turns of the conversation; use the model's own tokenizer",
                )

    def encode_text(self, text: str) -> list[int]:
        """Ids of ordinary text; names of special tokens in it stay letters."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def encode(self, pieces: Iterable[Piece]) -> list[int]:
        """Ids of a prompt. Text between two special tokens is encoded as one run."""
        ids: list[int] = []
        run: list[str] = []
        for piece in pieces:
            name = piece.name if isinstance(piece, Mark) else piece
            mark_id = self._mark_ids.get(name) if isinstance(piece, Mark) else None
            if mark_id is None:
                run.append(name)
                continue
            ids += self.encode_text("".join(run))
            ids.append(mark_id)
            run.clear()
        return ids + self.encode_text("".join(run))

    def bytes_of(self, token_id: int) -> bytes:
        """The UTF-8 bytes that one token stands for; they may be part of a character.

        None for ids behind the last token: a model's vocabulary may be padded, and random weights
        or a high temperature do choose such ids.
        """
        return self._bytes_of_id[token_id] if token_id < self.size else b""

    def decode(self, ids: Iterable[int], *, keep_control: bool = False) -> str:
        """Text of a whole sequence; control tokens are left out unless kept."""
        kept = (i for i in ids if keep_control or i not in self.control_ids)
        return b"".join(self.bytes_of(i) for i in kept).decode("utf-8", errors="replace")

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        """Refuse token ids that the model doesn't have."""
        for index, token_id in enumerate(ids):
            if not 0 <= token_id < self.size:
                raise bad_request(
                    f"{param}[{index}] is {token_id}; token ids of this model are "
                    f"0 to {self.size - 1}",
                    param,
                )


class TextStream:
    """Tokens in, complete characters out."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        # "replace" concerns bytes that can never become a character; an unfinished character
        # waits in the decoder, and at the end of an answer it is dropped, not shown broken.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """The characters that this token completes, often none for a part of a character."""
        return self._decoder.decode(self._tokenizer.bytes_of(token_id))

    def cut(self) -> None:
        """Forget an unfinished character (a structural token has come in between)."""
        self._decoder.reset()


def _read_tokenizer_json(path: Path) -> dict[str, Any]:
    try:
        document: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise StartupError(
            f"can't read the tokenizer {path}: {error.strerror}",
            "the model folder must have a tokenizer.json",
        ) from None
    except ValueError as error:
        raise StartupError(f"{path}: not JSON: {error}", "download the file again") from None
    if not isinstance(document, dict):
        raise StartupError(f"{path}: expected a JSON object", "download the file again")
    model, decoder = document.get("model"), document.get("decoder")
    if not isinstance(model, dict) or model.get("type") != "BPE":
        raise StartupError(f"{path}: expected a BPE tokenizer", "serve a DeepSeek-V3.2 model")
    if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
        raise StartupError(
            f"{path}: expected a byte-level decoder, found {(decoder or {}).get('type')}",
            "serve a DeepSeek-V3.2 model",
        )
    return document


def _bytes_of_ids(document: dict[str, Any], path: Path) -> list[bytes]:
    letters = _byte_of_letter()
    table: dict[int, bytes] = {}
    for token, token_id in document["model"]["vocab"].items():
        try:
            table[token_id] = bytes(letters[letter] for letter in token)
        except KeyError:
            # Special tokens may stand in the vocabulary too, written as they read.
            table[token_id] = token.encode()
    for entry in document.get("added_tokens", []):
        table[entry["id"]] = entry["content"].encode()
    size = max(table) + 1
    # Ids without a token exist where the embedding is padded: they stand for nothing.
    if len(table) < size // 2:
        raise StartupError(f"{path}: {len(table)} tokens, but ids go up to {size - 1}")
    return [table.get(token_id, b"") for token_id in range(size)]
