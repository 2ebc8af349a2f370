"""What every endpoint shares: the engine, the tokenizer, defaults, admission and book-keeping."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from host_runtime.config import GenerationConfig
from host_runtime.engine import SamplingParams
from host_runtime.server.answer import CANCELLED, Answer
from host_runtime.server.engine_port import EnginePort, TracerPort
from host_runtime.server.errors import ApiError, bad_request
from host_runtime.server.generation import Generation, submit
from host_runtime.server.limits import SHOWN_CHARACTERS_MAX
from host_runtime.server.metrics import Metrics
from host_runtime.server.output import AnswerReader
from host_runtime.server.schemas import SamplingFields
from host_runtime.server.tokens import ChatTokenizer

log = logging.getLogger("host_runtime.server")


@dataclass
class Service:
    """One served model."""

    engine: EnginePort
    tokenizer: ChatTokenizer
    model_name: str
    max_context: int
    defaults: GenerationConfig
    request_deadline_s: float
    tracer: TracerPort | None = None  # None: experts on the host
    created: int = field(default_factory=lambda: int(time.time()))
    metrics: Metrics = field(default_factory=Metrics)
    running: set[Generation] = field(default_factory=set)
    stopping: bool = False

    def check_model(self, name: str) -> None:
        """404 unless ``name`` is the served model."""
        if name != self.model_name:
            raise ApiError(
                404,
                f"the model {name[:SHOWN_CHARACTERS_MAX]!r} does not exist here; this server has "
                f"{self.model_name!r}",
                param="model",
                code="model_not_found",
            )

    @contextmanager
    def refusals_counted(self, endpoint: str) -> Iterator[None]:
        """Book requests that end in here, before they run."""
        try:
            yield
        except ApiError as error:
            self.metrics.request_ended(endpoint, error.code or "invalid_request")
            raise
        except Exception:
            self.metrics.request_ended(endpoint, "internal_error")
            raise

    def start(
        self,
        request: SamplingFields,
        prompt_ids: Sequence[int],
        reader: AnswerReader,
        *,
        max_tokens: int | None,
        prompt_field: str,
    ) -> Answer:
        """Admit a request, or raise the ApiError that says why not."""
        if self.stopping:
            raise ApiError(503, CANCELLED, kind="service_unavailable_error", code="server_stopping")
        room = self.max_context - len(prompt_ids)
        if room < 1 or (max_tokens or 0) > room:
            raise self._too_long(len(prompt_ids), max_tokens, prompt_field)
        generation = submit(
            self.engine,
            prompt_ids,
            self._params(request, max_tokens or room),
            deadline_s=self.request_deadline_s,
            prompt_field=prompt_field,
        )
        self.running.add(generation)
        return Answer(generation, reader, prompt_ids)

    def ended(self, endpoint: str, answer: Answer, outcome: str) -> None:
        """Take a request out of the books and stop what still runs of it. Only the first call for
        an answer counts."""
        generation = answer.generation
        if generation not in self.running:
            return
        self.running.remove(generation)
        generation.close()
        self.metrics.request_ended(endpoint, outcome)
        self.metrics.tokens(len(answer.prompt_ids), len(answer.token_ids), answer.stats)
        log.info(
            "%s: %s, %d prompt tokens, %d answer tokens, %s",
            endpoint,
            outcome,
            len(answer.prompt_ids),
            len(answer.token_ids),
            answer.measurements(),
        )

    def _too_long(self, prompt: int, max_tokens: int | None, field_name: str) -> ApiError:
        asked = "" if max_tokens is None else f" and max_tokens is {max_tokens}"
        return bad_request(
            f"the context of this server is {self.max_context} tokens; the prompt has {prompt}"
            f"{asked}. Shorten the prompt or ask for fewer tokens.",
            field_name,
            "context_length_exceeded",
        )

    def _params(self, request: SamplingFields, max_tokens: int) -> SamplingParams:
        stop_ids = request.stop_token_ids or []
        self.tokenizer.check_ids(stop_ids, "stop_token_ids")
        defaults = self.defaults
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=_first(request.temperature, defaults.temperature),
            top_p=_first(request.top_p, defaults.top_p),
            top_k=defaults.top_k if request.top_k is None else max(0, request.top_k),
            seed=request.seed,
            stop_token_ids=tuple(stop_ids),
            ignore_eos=bool(request.ignore_eos),
        )


def _first(value: float | None, default: float) -> float:
    return default if value is None else value
