"""A small client of the OpenAI API that `duckctl serve` offers: streamed chat answers.

    client = ChatClient("http://127.0.0.1:8000")
    for part in client.stream([{"role": "user", "content": "Is 143 prime?"}]): ...

Failures are DuckErrors in the server's own words, which name the duck where one is at fault.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from duckctl.errors import DuckError, UnreachableError, UsageError

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 5.0
SILENCE_S_MAX = 60.0
"""The server sends a sign of life every 15 s; after this long it is gone."""
LINE_CHARACTERS_MAX = 1_000_000
LINE_BYTES_MAX = 4 * LINE_CHARACTERS_MAX
KEY_BYTES_MAX = 8192


class ServerError(DuckError):
    """The server refused or failed a request."""


@dataclass(frozen=True)
class ChatPart:
    """What one event adds to the answer."""

    content: str = ""
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()  # only when the request has return_token_ids


@dataclass(frozen=True)
class ChatEnd:
    """How the answer ended. ``usage`` and ``measured`` are the server's objects of these names."""

    finish_reason: str
    usage: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)


Answer = Generator[ChatPart | ChatEnd, None, None]


class ChatClient:
    """One server; close it after use, or use it as a context manager."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        import httpx

        hostname = _hostname(url)
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=httpx.Timeout(SILENCE_S_MAX, connect=CONNECT_TIMEOUT_S),
                trust_env=not _is_loopback(hostname),  # a proxy can't reach this machine's ports
            )
        except (httpx.InvalidURL, UnicodeError):
            raise _no_address(url) from None

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """Names of the models that the server has."""
        import httpx

        try:
            response = self._http.get("/v1/models")
            response.raise_for_status()
            return [str(entry["id"]) for entry in response.json()["data"]]
        except httpx.HTTPStatusError as error:
            raise _refusal(error.response) from None
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        except (ValueError, KeyError, TypeError):
            raise DuckError(f"what answers at {self.url} is no OpenAI-compatible server") from None

    def readiness(self) -> dict[str, Any]:
        """The server's /ready document: whether it serves, and every duck with its counters."""
        import httpx

        try:
            document: dict[str, Any] = self._http.get("/ready").json()
            return document
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        except ValueError:
            raise DuckError(f"what answers at {self.url} is no server of duckctl") from None

    def set_trace(self, calls: int) -> bool:
        """Let the server keep the last expert calls; False when it has none (no ducks)."""
        response = self._ask("PUT", "/trace", {"calls": calls})
        if response.status_code in (404, 405, 501):  # an older server, or another one
            return False
        if response.status_code != 200:
            raise _refusal(response)
        return True

    def trace(self) -> dict[str, Any]:
        """The server's trace document (docs/reference/api.md)."""
        response = self._ask("GET", "/trace")
        if response.status_code != 200:
            raise _refusal(response)
        document: dict[str, Any] = response.json()
        return document

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        import httpx

        try:
            return self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def stream(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> Answer:
        """Parts of the answer as they come, then one ChatEnd.

        Closing the iterator early cancels the answer at the server.
        """
        body = {
            **fields,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        yield from _read_answer(self.documents("/v1/chat/completions", body))

    def documents(
        self, path: str, body: Mapping[str, Any]
    ) -> Generator[dict[str, Any], None, None]:
        """The documents of a streamed request as they come, until the server says that it is done.

        Closing the iterator early cancels the answer at the server.
        """
        import httpx

        try:
            with self._http.stream("POST", path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    raise _refusal(response)
                yield from _read_documents(stream_lines(response.iter_bytes()))
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"no server answers at {self.url}: {error or type(error).__name__}",
            "start one with `duckctl serve`, or give its address with --url",
        )


def read_key(path: Path | None) -> str | None:
    """The API key in a file; None without one. Raises UsageError if the file holds none."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            key = file.read(KEY_BYTES_MAX + 1).decode("ascii", "replace").strip()
    except OSError as error:
        raise UsageError(
            f"can't read the API key {path}: {error.strerror}", "it is the server's --api-key-file"
        ) from None
    if not key or len(key) > KEY_BYTES_MAX or not key.isascii() or not key.isprintable():
        raise UsageError(
            f"{path} is no file of an API key: expected one line of ASCII characters",
            "it is the server's --api-key-file",
        )
    return key


def utf8(text: str, what: str) -> str:
    """`text` itself. Raises UsageError if its bytes were none of UTF-8, as arguments may have."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise not_utf8(what) from error
    return text


def not_utf8(what: str) -> UsageError:
    """For text from outside that cannot be read."""
    return UsageError(f"{what} is not valid UTF-8 text")


def stream_lines(chunks: Iterable[bytes]) -> Generator[str, None, None]:
    """Lines of an event stream, cut at line feeds only: other characters that end lines elsewhere
    (U+0085, U+2028, U+2029) may stand in JSON strings. Raises ServerError for an endless line."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
        if len(rest) > LINE_BYTES_MAX:
            raise ServerError(f"the server sent a line of more than {LINE_BYTES_MAX} bytes")
    if rest:
        yield rest.decode("utf-8", "replace")


def _read_documents(lines: Iterator[str]) -> Generator[dict[str, Any], None, None]:
    for line in lines:
        if not line.startswith("data:"):
            continue  # blank lines and signs of life
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        document = _event(data)
        if "error" in document:
            raise ServerError(str(document["error"].get("message", "unknown failure")))
        yield document
    raise ServerError(
        "the server closed the connection before the answer was complete", "look at its log"
    )


def _read_answer(documents: Iterator[dict[str, Any]]) -> Answer:
    finish_reason = ""
    usage: dict[str, Any] = {}
    measured: dict[str, Any] = {}
    for document in documents:
        usage = document.get("usage") or usage
        measured = document.get("duckctl") or measured
        for choice in document.get("choices", []):
            finish_reason = choice.get("finish_reason") or finish_reason
            delta = choice.get("delta", {})
            part = ChatPart(
                delta.get("content") or "",
                delta.get("reasoning_content") or "",
                tuple(choice.get("token_ids") or ()),
            )
            if part.content or part.reasoning or part.token_ids:
                yield part
    yield ChatEnd(finish_reason, usage, measured)


def _event(data: str) -> dict[str, Any]:
    try:
        document = json.loads(data) if len(data) <= LINE_CHARACTERS_MAX else None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ServerError(f"the server sent an event that is no JSON object: {data[:80]!r}")
    return document


def _refusal(response: httpx.Response) -> ServerError:
    try:
        error = response.json()["error"]
        message = str(error["message"])
    except (ValueError, KeyError, TypeError):
        message = response.text[:200] or response.reason_phrase
    hints = {401: "give the key with --api-key-file", 429: "the server is busy: try again later"}
    return ServerError(
        f"the server answered {response.status_code}: {message}",
        hints.get(response.status_code, ""),
    )


def _hostname(url: str) -> str:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            parts.hostname.encode("idna")
            return parts.hostname
    except ValueError:  # an open bracket, a port that is no number up to 65535, too long a label
        pass
    raise _no_address(url)


def _no_address(url: str) -> UsageError:
    return UsageError(f"{url!r} is no address of a server", "expected e.g. http://127.0.0.1:8000")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
