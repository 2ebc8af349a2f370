"""What `duckctl serve` decides and does: every check first, then a run file, then the server.

The server is host_runtime, started as a process. It gets its files through a private folder that
goes away with the command, and it never outlives the command.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from duckctl.console import talk
from duckctl.errors import DuckError, UnreachableError, UsageError
from duckctl.fleet_file import DUCKS_MAX, fleet_document, write_json
from duckctl.health import fleet_health, probe
from duckctl.inventory import Fleet
from duckctl.keys import check_key
from duckctl.native import native_path
from duckctl.process import INTERRUPTS, die_with_parent, heeded

RUN_SCHEMA_VERSION = 1
PROBE_TIMEOUT_S = 2.0
FAULT_RATES = ("drop", "duplicate", "reorder", "corrupt")
FAULT_COUNTS = {"delay_us": 10_000_000, "seed": 2**31}
# Bounds of the run file (docs/reference/api.md), so that `serve` tells them by its options' names.
QUEUE_MAX = 4096
THREADS_MAX = 1024
SCRUB_PAUSE_S_MAX = 86_400
MODEL_NAME = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True)
class ServeOptions:
    """The command line of `duckctl serve`, parsed."""

    model_dir: Path
    model_name: str
    host: str
    port: int
    experts: str
    weight_format: str
    cache_dir: Path | None
    weights: str | None
    mtp: bool
    max_context: int | None
    max_queue: int
    activations: str
    scrub_pause_s: float
    poll: str
    prefill_chunk: int | None
    device: str
    host_weights: Path | None
    kernel: str
    threads: int | None
    faults: dict[str, float] | None
    api_key_file: Path | None
    log_level: str


def parse_faults(text: str | None) -> dict[str, float] | None:
    """``drop=0.05,seed=1`` -> the run file's ``faults``; None for no text."""
    if text is None:
        return None
    known = ", ".join((*FAULT_RATES, *FAULT_COUNTS))
    faults: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in (*FAULT_RATES, *FAULT_COUNTS):
            raise UsageError(f"--faults has '{part}'; expected key=value with one of {known}")
        try:
            number = float(value) if key in FAULT_RATES else int(value)
        except ValueError:
            raise UsageError(f"--faults: '{value}' is no number ({key})") from None
        most = FAULT_COUNTS.get(key, 1)
        if not 0 <= number <= most:
            raise UsageError(f"--faults: {key}={value} is out of range, expected 0 to {most}")
        faults[key] = number
    return faults


def api_name(given: str | None, folder: Path) -> str:
    """The model's name in the API: as given, else the folder's. Raises UsageError."""
    name = folder.name if given is None else given
    if not MODEL_NAME.fullmatch(name):
        whose = "the folder's name" if given is None else "--model-name"
        raise UsageError(
            f"{whose} {name!r} can be no name in the API: expected 1 to 200 ASCII characters "
            "without spaces",
            "give another one with --model-name",
        )
    return name


def run_document(
    options: ServeOptions, fleet_file: Path | None, cache: Path | None
) -> dict[str, Any]:
    """The run file of host_runtime.server (docs/reference/api.md)."""
    remote = options.experts == "remote"
    return {
        "schema_version": RUN_SCHEMA_VERSION,
        "model_dir": str(options.model_dir),
        "model_name": options.model_name,
        "host": options.host,
        "port": options.port,
        "experts": options.experts,
        "fleet_file": str(fleet_file) if fleet_file else None,
        "cache_file": str(cache.absolute()) if cache else None,
        "kernel_file": str(native_path(f"experts-{options.kernel}.elf")) if remote else None,
        "transport_library": str(native_path("libduckhost.so")) if remote else None,
        "mtp": options.mtp,
        "max_context": options.max_context,
        "max_queue": options.max_queue,
        "activation_dtype": options.activations,
        "scrub_pause_s": options.scrub_pause_s,
        "poll": options.poll,
        "prefill_chunk": options.prefill_chunk,
        "device": options.device,
        "host_weights": str(options.host_weights.absolute()) if options.host_weights else None,
        "threads": options.threads,
        "faults": options.faults,
        "api_key_file": str(options.api_key_file.absolute()) if options.api_key_file else None,
        "log_level": options.log_level,
    }


def shard_command(options: ServeOptions, fleet: Fleet, model: str) -> list[str]:
    """Arguments of the `duckctl shard-weights` that makes the cache which serving needs."""
    arguments = [
        *("shard-weights", model, "--inventory", str(fleet.path)),
        *("--format", options.weight_format),
    ]
    if options.cache_dir is not None:
        arguments += ["--cache-dir", str(options.cache_dir)]
    if options.weights is not None:
        arguments += ["--weights", options.weights]
    return arguments


def find_cache(options: ServeOptions, fleet: Fleet) -> Path | None:
    """cache.json for this model, format and fleet; None when it has to be made first."""
    from duckctl.shards import convert
    from duckctl.shards.checkpoint import open_checkpoint
    from duckctl.shards.plan import make_plan

    ducks = [(duck.name, duck.memory_gib) for duck in fleet.ducks]
    shape = open_checkpoint(options.model_dir).shape
    plan = make_plan(shape, options.weight_format, ducks, options.weights)
    slices = [(part.first_row, part.rows) for part in plan.slices]
    return convert.find_cache(options.model_dir, options.weight_format, slices, options.cache_dir)


def require_cache(options: ServeOptions, fleet: Fleet, model: str, shard: bool) -> Path:
    """The cache, made now if ``shard`` allows it; else an error with the command that makes it."""
    cache = find_cache(options, fleet)
    if cache is not None:
        return cache
    command = shard_command(options, fleet, model)
    if not shard:
        raise UsageError(
            f"there is no {options.weight_format} weight cache of {model} for "
            f"{len(fleet.ducks)} ducks",
            f"make it: duckctl {' '.join(command)}   (or serve with --shard)",
        )
    talk(f"no weight cache yet: duckctl {' '.join(command)}")
    result = subprocess.run([sys.executable, "-P", "-m", "duckctl", *command], stdout=sys.stderr)
    if result.returncode != 0:
        raise DuckError(f"shard-weights failed with exit code {result.returncode}")
    cache = find_cache(options, fleet)
    if cache is None:
        raise DuckError("shard-weights has ended, but the cache is not where it should be")
    return cache


def check_port(host: str, port: int) -> None:
    """A port that is taken is named before anything is loaded."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UsageError(f"--host {host}: {error.strerror}") from error
    except ValueError as error:  # no host name at all, as a label too long
        raise UsageError(f"--host {host}: {error}") from error
    with socket.socket(family, kind, number) as probe_socket:
        probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe_socket.bind(address)
        except OSError as error:
            raise DuckError(
                f"cannot listen on {host} port {port}: {error.strerror}",
                "choose another one with --port, or --port 0 for any free one",
            ) from error


def check_ducks(fleet: Fleet) -> None:
    """Every duck answers, with this host's build and without a fault of its own."""
    if len(fleet.ducks) > DUCKS_MAX:
        raise UsageError(
            f"at most {DUCKS_MAX} ducks can serve one model; {fleet.path} has {len(fleet.ducks)}",
            "serve with an inventory of a part of them: duckctl serve --inventory FILE",
        )
    check_key(fleet.key_file)
    report = fleet_health(probe(fleet, fleet.ducks, PROBE_TIMEOUT_S))
    silent = [duck for duck in report.ducks if not duck.reachable]
    if silent:
        lines = "".join(f"\n  {duck.name}: {duck.problem}" for duck in silent)
        raise UnreachableError(
            f"{len(silent)} of {len(report.ducks)} ducks cannot be reached:{lines}",
            f"look closer: duckctl health --inventory {fleet.path}",
        )
    for duck in report.ducks:
        if not duck.facts.get("build_ok", True):
            raise DuckError(
                f"{duck.name} {duck.problem}",
                "host and ducks must be of one build: boot the duck with this installation's image "
                "(a lab: duckctl lab down, then up)",
            )


class Stoppable(Protocol):
    """A process that signals reach."""

    def send_signal(self, sig: int, /) -> None: ...

    def kill(self) -> None: ...


@contextmanager
def forwarding(server: Stoppable) -> Iterator[None]:
    """Signals to duckctl go to the server, a second one ends it at once; ignored ones stay so."""
    received: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            server.kill()
        else:
            talk("stopping the server; once more to stop it at once")
            server.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, forward) for number in heeded(INTERRUPTS)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_server(run: dict[str, Any], fleet: Fleet | None, on_ready: Callable[[str], None]) -> int:
    """Runs the server until it ends and gives its exit code.

    Its stdout goes to ours line by line; ``on_ready`` gets the address of its ready line.
    """
    with tempfile.TemporaryDirectory(prefix="duckctl-") as name:
        folder = Path(name)
        if fleet is not None:
            write_json(folder / "fleet.json", fleet_document(fleet))
            run = {**run, "fleet_file": str(folder / "fleet.json")}
        write_json(folder / "run.json", run)
        server = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "host_runtime.server"),
                *("--config", str(folder / "run.json")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
            preexec_fn=die_with_parent,
        )
        with forwarding(server):
            assert server.stdout is not None
            for line in server.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                if line.startswith("ready "):
                    on_ready(line.split()[1])
            return server.wait()
