"""``duckctl serve``: serves a model through an OpenAI-compatible API."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from duckctl.console import talk, warn
from duckctl.early_checks import check_serve_options
from duckctl.errors import UsageError
from duckctl.inventory import Fleet
from duckctl.inventory_choice import choose_inventory
from duckctl.model_dir import resolve_model_dir
from duckctl.serving import (
    QUEUE_MAX,
    SCRUB_PAUSE_S_MAX,
    THREADS_MAX,
    ServeOptions,
    api_name,
    check_ducks,
    check_port,
    parse_faults,
    require_cache,
    run_document,
    run_server,
)

app = typer.Typer()


class WeightFormat(StrEnum):
    """Formats of routed experts on ducks."""

    FP9 = "fp9"
    FP8 = "fp8"
    FP7 = "fp7"
    Q6 = "q6"
    Q4 = "q4"


class ExpertsPlace(StrEnum):
    """Where routed experts are computed."""

    REMOTE = "remote"
    LOCAL = "local"


class Activations(StrEnum):
    """Number format of activations on the wire."""

    F32 = "f32"
    BF16 = "bf16"
    FP8 = "fp8"


class Device(StrEnum):
    """Where the host's part of the model runs."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Kernel(StrEnum):
    """Duck kernel."""

    AVX2 = "avx2"
    SCALAR = "scalar"


class LogLevel(StrEnum):
    """How much the server says."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Poll(StrEnum):
    """How the host's threads wait for packets and calls."""

    BLOCK = "block"
    SLEEP = "sleep"
    SPIN = "spin"


InventoryOption = Annotated[
    Path | None, typer.Option("--inventory", help="Inventory file.  [default: the lab's]")
]
ScrubOption = Annotated[
    float,
    typer.Option(
        "--scrub-pause",
        min=0,
        max=SCRUB_PAUSE_S_MAX,
        help="Seconds between re-checked pieces of weights; 0: never.",
    ),
]
QueueOption = Annotated[
    int, typer.Option("--max-queue", min=0, max=QUEUE_MAX, help="Requests that may wait.")
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", min=1, max=THREADS_MAX, help="CPU threads of the host."),
]
PollOption = Annotated[
    Poll,
    typer.Option("--poll", help="How the host waits; spin: a CPU per domain and lane to itself."),
]
ChunkOption = Annotated[
    int | None,
    typer.Option(
        "--prefill-chunk",
        min=1,
        max=512,
        help="Prompt tokens of one expert call.  [default: 512 on the card, 64 on the CPU]",
    ),
]
DeviceOption = Annotated[
    Device, typer.Option("--device", help="Of attention: the card if it can be used, or the CPU.")
]
HostWeightsOption = Annotated[
    Path | None,
    typer.Option("--host-weights", help="Folder of shard-weights --host-weights, for the card."),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option("--api-key-file", help="File with the key that requests must carry."),
]


@app.command()
def serve(
    model_dir: str = typer.Argument(
        metavar="MODEL_DIR", help="Hugging Face model folder, or 'ducklet'."
    ),
    inventory: InventoryOption = None,
    cache_dir: Path | None = typer.Option(None, "--cache-dir", help="As for shard-weights."),
    weight_format: WeightFormat = typer.Option(
        WeightFormat.FP9, "--format", help="Of the weights on the ducks."
    ),
    weights: str | None = typer.Option(
        None, "--weights", help="Uneven slices, as given to shard-weights."
    ),
    experts: ExpertsPlace = typer.Option(
        ExpertsPlace.REMOTE, "--experts", help="On ducks, or in this process without any duck."
    ),
    mtp: bool = typer.Option(True, "--mtp/--no-mtp", help="Draft tokens with the MTP head."),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on."),
    port: int = typer.Option(
        8000, "--port", min=0, max=65535, help="TCP port; 0 takes a free one."
    ),
    max_context: int | None = typer.Option(
        None, "--max-context", min=2, help="Tokens of prompt and answer.  [default: the model's]"
    ),
    max_queue: QueueOption = 16,
    activations: Activations = typer.Option(Activations.F32, "--activations", help="On the wire."),
    scrub_pause: ScrubOption = 30.0,
    poll: PollOption = Poll.BLOCK,
    prefill_chunk: ChunkOption = None,
    device: DeviceOption = Device.AUTO,
    host_weights: HostWeightsOption = None,
    kernel: Kernel = typer.Option(Kernel.AVX2, "--kernel", help="Kernel that the ducks run."),
    threads: ThreadsOption = None,
    model_name: str | None = typer.Option(
        None, "--model-name", help="Name in the API.  [default: the folder's]"
    ),
    faults: str | None = typer.Option(
        None, "--faults", help="Faults put on the wire, e.g. drop=0.05,duplicate=0.05,seed=1."
    ),
    api_key_file: KeyFileOption = None,
    shard: bool = typer.Option(
        False, "--shard/--no-shard", help="Make a missing weight cache before serving."
    ),
    log_level: LogLevel = typer.Option(LogLevel.INFO, "--log-level", help="Of the server."),
) -> None:
    """Serve a model; prints 'ready http://…' when requests are accepted. Ctrl-C stops it.

    Everything is checked before the model is loaded: the inventory, the key, the weight cache,
    the port, and that every duck answers with the same build as this host (exit code 4 if not).

    \b
    Examples:
      duckctl serve ducklet --shard
      duckctl serve ~/DeepSeek-V3.2 --inventory inventory/rack32.yml --format fp8 --shard
      duckctl serve ducklet --experts local --port 0
      duckctl serve ~/DeepSeek-V3.2 --device cuda --max-context 32768
      duckctl serve ducklet --faults drop=0.05,duplicate=0.05,reorder=0.05,seed=1
    """
    folder = resolve_model_dir(model_dir)
    options = ServeOptions(
        model_dir=folder,
        model_name=api_name(model_name, folder),
        host=host,
        port=port,
        experts=experts.value,
        weight_format=weight_format.value,
        cache_dir=cache_dir,
        weights=weights,
        mtp=mtp,
        max_context=max_context,
        max_queue=max_queue,
        activations=activations.value,
        scrub_pause_s=scrub_pause,
        poll=poll.value,
        prefill_chunk=prefill_chunk,
        device=device.value,
        host_weights=host_weights,
        kernel=kernel.value,
        threads=threads,
        faults=parse_faults(faults),
        api_key_file=api_key_file,
        log_level=log_level.value,
    )
    raise typer.Exit(_serve(options, model_dir, inventory, shard))


def _serve(options: ServeOptions, model: str, inventory: Path | None, shard: bool) -> int:
    fleet: Fleet | None = None
    cache: Path | None = None
    check_serve_options(options)
    check_port(options.host, options.port)
    if options.experts == "remote":
        fleet = choose_inventory(inventory)
        run_document(options, None, None)  # names a missing native part before the slow checks
        check_ducks(fleet)
        cache = require_cache(options, fleet, model, shard)
    elif options.faults is not None:
        raise UsageError("--faults concern the wire, and --experts local has none")
    if options.host not in ("127.0.0.1", "localhost", "::1") and options.api_key_file is None:
        warn(f"everyone who can reach {options.host} may use the API; see --api-key-file")

    def announce(url: str) -> None:
        talk(f"talk to it: duckctl chat --url {url}")

    return run_server(run_document(options, None, cache), fleet, announce)
