"""From a run file to a running engine, with progress on stderr."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from host_runtime.engine import Engine
from host_runtime.experts.base import Experts
from host_runtime.models import load_model
from host_runtime.server.errors import StartupError
from host_runtime.server.progress import step
from host_runtime.server.run_config import RunConfig, remote_files
from host_runtime.server.service import Service
from host_runtime.server.tokens import ChatTokenizer


@dataclass(frozen=True)
class Machinery:
    """Everything that runs behind the API; ``close`` stops it in the right order."""

    engine: Engine
    experts: Experts

    def close(self) -> None:
        """End the engine, then let the ducks go."""
        self.engine.stop()
        self.experts.close()


def start_machinery(config: RunConfig) -> Machinery:
    """Load the model, get the experts ready, start the engine. Slow; progress on stderr."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with step(f"loading {config.model_name} from {config.model_dir}"):
        loaded = load_model(config.model_dir, routed_experts=config.experts)
    experts = loaded.local_experts or start_remote_experts(config)
    try:
        engine = Engine(
            loaded.model,
            experts,
            mtp=config.mtp,
            max_context=config.max_context,
            max_queue=config.max_queue,
            prefill_chunk=config.prefill_chunk,
        )
        engine.start()
    except BaseException:
        experts.close()
        raise
    return Machinery(engine, experts)


def start_remote_experts(config: RunConfig) -> Experts:
    """Connect to every duck, load kernel and shards where they aren't there yet."""
    # A run with local experts needs neither the transport nor the fleet.
    from host_runtime.experts.remote import RemoteExperts, RemoteOptions
    from host_runtime.fleet.config import load_fleet

    files = remote_files(config)
    fleet = load_fleet(files.fleet)
    options = RemoteOptions(
        activation_dtype=config.activation_dtype,
        result_dtype=config.result_dtype,
        call_deadline_ms=config.call_deadline_ms,
        faults=config.faults,
    )
    experts = RemoteExperts(fleet, files.cache, files.kernel, files.library, options)
    with step(f"connecting {len(fleet.ducks)} ducks of {fleet.name} and loading their shards"):
        try:
            experts.start()
        except BaseException:
            experts.close()
            raise
    return experts


def build_service(config: RunConfig, machinery: Machinery, tokenizer: ChatTokenizer) -> Service:
    """The API's view of the running machinery."""
    model = machinery.engine.model
    if tokenizer.size > model.config.vocab_size:
        raise StartupError(
            f"{config.model_dir / 'tokenizer.json'} has {tokenizer.size} tokens, but the model "
            f"knows {model.config.vocab_size}",
            "tokenizer.json and config.json must be of the same model",
        )
    return Service(
        engine=machinery.engine,
        tokenizer=tokenizer,
        model_name=config.model_name,
        max_context=machinery.engine.max_context,
        defaults=model.generation,
        request_deadline_s=config.request_deadline_s,
    )
