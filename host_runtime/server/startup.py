"""From a run file to a running engine, with progress on stderr."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from host_runtime.config import GenerationConfig, ModelConfig
from host_runtime.engine import Engine
from host_runtime.experts.base import Experts
from host_runtime.server.engine_port import TracerPort
from host_runtime.server.errors import StartupError
from host_runtime.server.host_part import HostPart, load_host_part
from host_runtime.server.progress import say, step
from host_runtime.server.run_config import RunConfig, remote_files
from host_runtime.server.service import Service
from host_runtime.server.tokens import END_OF_SENTENCE, ChatTokenizer

if TYPE_CHECKING:
    from host_runtime.fleet.cache import CacheConfig


@dataclass(frozen=True)
class Machinery:
    """Everything that runs behind the API; ``close`` stops it in the right order."""

    engine: Engine
    experts: Experts
    host: HostPart

    def close(self) -> None:
        """End the engine, then let the card and the ducks go."""
        self.engine.stop()
        self.host.close()
        self.experts.close()


def start_machinery(config: RunConfig) -> Machinery:
    """Load the model, get the experts ready, start the engine. Slow; progress on stderr."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with step(f"loading {config.model_name} from {config.model_dir}"):
        host = load_host_part(config)
    experts = host.local_experts or start_remote_experts(config, host.model.config)
    try:
        engine = Engine(
            host.model,
            experts,
            mtp=config.mtp,
            max_context=host.max_context,
            max_queue=config.max_queue,
            prefill_chunk=host.prefill_chunk,
            max_active=host.max_active,
        )
        engine.start()
    except BaseException:
        host.close()
        experts.close()
        raise
    return Machinery(engine, experts, host)


def start_remote_experts(config: RunConfig, model: ModelConfig) -> Experts:
    """Connect to every duck, load kernel and shards where they aren't there yet."""
    # A run with local experts needs neither the transport nor the fleet.
    from host_runtime import wire
    from host_runtime.experts.remote import RemoteExperts, RemoteOptions
    from host_runtime.fleet.cache import load_cache
    from host_runtime.fleet.config import load_fleet
    from host_runtime.transport import Faults

    files = remote_files(config)
    fleet = load_fleet(files.fleet)
    _check_cache(load_cache(files.cache), config.model_dir, model)
    options = RemoteOptions(
        activation_dtype=wire.Dtype[config.activation_dtype.upper()],
        result_dtype=wire.Dtype[config.result_dtype.upper()],
        poll_policy=wire.PollPolicy[config.poll.upper()],
        call_deadline_ms=config.call_deadline_ms,
        scrub_pause_s=config.scrub_pause_s,
        faults=Faults(**config.faults.model_dump()) if config.faults else None,
    )
    with step(f"connecting the {len(fleet.ducks)} ducks of {fleet.name} and loading their shards"):
        experts = RemoteExperts(fleet, files.cache, files.kernel, files.library, options)
        experts.start(LoadTold())
    return experts


def _check_cache(cache: CacheConfig, model_dir: Path, model: ModelConfig) -> None:
    """Weights of another model would give fluent nonsense: refuse them by name."""
    path = model_dir / "config.json"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    fits = (
        cache.config_sha256 == digest
        and cache.hidden_size == model.hidden_size
        and cache.moe_intermediate_size == model.moe_intermediate_size
        and cache.expert_count == model.n_routed_experts
        and cache.layers == model.moe_layers
    )
    if not fits:
        raise StartupError(
            f"{cache.path} holds the experts of another model or revision ({cache.model_name}), "
            f"not those of {path}",
            f"run: duckctl shard-weights {model_dir}",
        )


class LoadTold:
    """Tells how a load goes: bytes, their rate, and when it will be done at that rate."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if self._first is None:
            self._first = (now, done)
        text = f"  {done / 2**20:.0f} of {total / 2**20:.0f} MiB loaded"
        elapsed_s, moved = now - self._first[0], done - self._first[1]
        if elapsed_s > 0 and moved > 0:
            rate = moved / elapsed_s
            text += f", {rate / 1e6:.0f} MB/s to all ducks"
            if done < total:
                text += f", {(total - done) / rate:.0f} s left"
        say(text)


def build_service(config: RunConfig, machinery: Machinery, tokenizer: ChatTokenizer) -> Service:
    """The API's view of the running machinery."""
    model = machinery.engine.model
    _check_tokenizer(tokenizer, model.config, model.generation, config.model_dir)
    return Service(
        engine=machinery.engine,
        tokenizer=tokenizer,
        model_name=config.model_name,
        max_context=machinery.engine.max_context,
        defaults=model.generation,
        request_deadline_s=config.request_deadline_s,
        tracer=_tracer(machinery.experts),
    )


def _tracer(experts: Experts) -> TracerPort | None:
    """Experts on ducks can be traced; local ones have no calls."""
    from host_runtime.experts.remote import RemoteExperts

    return experts if isinstance(experts, RemoteExperts) else None


def _check_tokenizer(
    tokenizer: ChatTokenizer, model: ModelConfig, generation: GenerationConfig, folder: Path
) -> None:
    """tokenizer.json and the other files must speak of the same tokens."""
    if tokenizer.size > model.vocab_size:
        raise StartupError(
            f"{folder / 'tokenizer.json'} has {tokenizer.size} tokens, but config.json says "
            f"vocab_size {model.vocab_size}",
            "both files must be of the same model",
        )
    if tokenizer.end_id not in generation.eos_token_ids:
        raise StartupError(
            f"{folder / 'tokenizer.json'}: {END_OF_SENTENCE} is token {tokenizer.end_id}, but the "
            f"model's eos_token_id is {', '.join(map(str, generation.eos_token_ids))}",
            "answers would never end; both files must be of the same model",
        )
