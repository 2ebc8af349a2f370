"""A server that answers from a script, in the words of docs/reference/api.md."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from duckctl.bench_serve.measure import Sample, Token

PROMPT_IDS = (5, 6, 7)


@dataclass
class Script:
    """What the fake server says; ``calls`` counts its answers."""

    tokens: tuple[int, ...] = (11, 12, 13, 14, 15)
    accepted: tuple[bool, ...] = (False, True, False, True, False)
    ready: bool = True
    error: str = ""
    cached: int = 0
    calls: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def documents(self) -> list[dict[str, Any]]:
        """One stream."""
        chunks: list[dict[str, Any]] = [{"choices": [{"prompt_token_ids": list(PROMPT_IDS)}]}]
        pairs = zip(self.tokens, self.accepted, strict=True)
        for index, (token, accepted) in enumerate(pairs):
            choice = {
                "text": f"t{token} ",
                "token_ids": [token],
                "token_times_s": [100 + 0.01 * index],
                "token_accepted": [accepted],
            }
            chunks.append({"choices": [choice]})
        if self.error:
            return [*chunks, {"error": {"message": self.error}}]
        measured = {
            **{"queue_s": 0.0, "ttft_s": 0.05, "decode_s": 0.04},
            **{"drafts_proposed": 4, "drafts_accepted": 2},
        }
        usage = {"prompt_tokens_details": {"cached_tokens": self.cached}}
        chunks.append({"choices": [{"text": "", "finish_reason": "length"}], "duckctl": measured})
        return [*chunks, {"choices": [], "usage": usage, "duckctl": measured}]


@contextmanager
def fake_server(script: Script) -> Iterator[str]:
    """Serves the script on a free port; gives the address."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def send(self, text: str, kind: str = "application/json") -> None:
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            counters = {
                "calls": 10.0 * script.calls,
                "call_ns": 2e7 * script.calls,
                "kernel_ns": 1e7 * script.calls,
                "sent_bytes": 1000.0 * script.calls,
            }
            duck = {"name": "d01", "ready": True, "state": "serving", "counters": counters}
            ready = {"ready": script.ready, "reason": "d01 is lost", "ducks": [duck]}
            models = {"data": [{"id": "fake"}]}
            self.send(json.dumps(models if self.path.endswith("models") else ready))

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            script.bodies.append(json.loads(self.rfile.read(size)))
            events = [f"data: {json.dumps(document)}\n\n" for document in script.documents()]
            script.calls += 1
            self.send("".join(events) + "data: [DONE]\n\n", "text/event-stream")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def make_sample(step_s: float = 0.02, steps: int = 20) -> Sample:
    """Steps of equal length that give an accepted draft and a token each."""
    tokens = [Token(1, 0.0, 0.1, False)]
    for step in range(1, steps + 1):
        time_s = step * step_s
        tokens += [Token(2, time_s, 0.1 + time_s, True), Token(3, time_s, 0.1 + time_s, False)]
    measured = {"drafts_proposed": steps, "drafts_accepted": steps}
    return Sample("text", "", tuple(tokens), PROMPT_IDS, "length", 0.1, {}, measured, None)
