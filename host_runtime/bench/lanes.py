"""An expert call as a captured step sees it: native threads beside Python ones in the same run.

    python -m host_runtime.bench.lanes --natives DIR [--ducks 1,4] [--hidden 7168]
        [--poll block|sleep|spin] [--calls N]

Ducks are processes on this machine with a kernel that answers at once. An emulated card (a native
thread) posts calls into mailboxes in plain memory and waits for the answers, one lane or two in
turns. Native and Python threads answer in turns. `submit` is the same call made directly, without
mailbox; `transport` is the transport's own part of it, from submission to the last duck's result.
Prints one JSON document; exit 0 when it is printed, 1 when something could not be run, 2
on wrong arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from host_runtime import wire
from host_runtime.bench.gap import numbers, percentiles
from host_runtime.bench.process_ducks import POLICIES, Natives, Shelf, running_shelf
from host_runtime.cuda.link import CallLink
from host_runtime.cuda.mailbox import HostLane, Mailbox
from host_runtime.errors import HostError
from host_runtime.experts.base import DuckStatus, Experts, PendingExperts
from host_runtime.experts.remote import RemoteExperts, RemoteOptions
from host_runtime.fleet.config import load_fleet

SCHEMA_VERSION = 1
TURNS = 4
WARM_UP = 50
LANES = 2
TOP_K, EXPERTS, LAYER, ROWS = 8, 8, 1, 32
ANSWER_NS_MAX = 30_000_000_000
STEP_CALLS = 58  # of DeepSeek-V3.2 in one step


class PythonOnly:
    """Experts that do not serve mailboxes themselves, so that Python threads must."""

    def __init__(self, experts: RemoteExperts) -> None:
        self._experts = experts

    def submit(
        self,
        layer: int,
        hidden: torch.Tensor,
        expert_ids: torch.Tensor,
        expert_weights: torch.Tensor,
    ) -> PendingExperts:
        return self._experts.submit(layer, hidden, expert_ids, expert_weights)

    def status(self) -> list[DuckStatus]:
        return self._experts.status()

    def close(self) -> None:
        """Their owner closes them."""


class Card:
    """The emulated card of libduckecho.so."""

    def __init__(self, library: Path, boxes: Sequence[Mailbox]) -> None:
        self._library = ctypes.CDLL(str(library))
        self._boxes = list(boxes)

    def run(self, lanes: int, calls: int) -> list[int]:
        """Nanoseconds from each post to its answer, call by call, lanes in turns."""
        pointers = (ctypes.c_void_p * lanes)(*(b.flags.data_ptr() for b in self._boxes[:lanes]))
        layers = (ctypes.c_int32 * calls)(*([LAYER] * calls))
        latency = (ctypes.c_int64 * (calls * lanes))()
        limit = ctypes.c_int64(ANSWER_NS_MAX)
        if self._library.card_run(lanes, pointers, layers, calls, limit, latency):
            raise HostError("a call was not answered")
        return list(latency)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parse(arguments)
    try:
        cases = [
            _measure(Natives(options.natives), ducks, hidden, options.poll, options.calls)
            for ducks in options.ducks
            for hidden in options.hidden
        ]
    except (HostError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    document = {
        "schema_version": SCHEMA_VERSION,
        "poll": options.poll,
        "calls": options.calls,
        "cases": cases,
    }
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return 0


def _measure(natives: Natives, ducks: int, hidden: int, poll: str, calls: int) -> dict[str, Any]:
    boxes = [Mailbox(TOP_K, hidden, pinned=False) for _ in range(LANES)]
    card = Card(natives.folder / "libduckecho.so", boxes)
    for box in boxes:
        box.ids.copy_(torch.arange(TOP_K))
    with _experts(natives, ducks, hidden, poll) as experts, _linked(boxes) as link:
        ways: dict[str, Callable[[int], dict[str, list[int]]]] = {
            "native": lambda count: _link_turn(card, link, experts, count),
            "python": lambda count: _link_turn(card, link, PythonOnly(experts), count),
            "submit": lambda count: {"one_lane": _submit_turn(experts, boxes[0], count)},
        }
        found: dict[str, dict[str, list[int]]] = {way: {} for way in ways}
        for _ in range(TURNS):
            for way, turn in ways.items():
                turn(WARM_UP)
                for name, values in turn(calls // TURNS).items():
                    found[way].setdefault(name, []).extend(values)
        transport = _transport_times(card, link, experts)
    return {
        "ducks": ducks,
        "hidden": hidden,
        "transport_us": percentiles(transport),
        **{
            way: {f"{name}_us": percentiles(values) for name, values in lists.items()}
            for way, lists in found.items()
        },
    }


def _link_turn(card: Card, link: CallLink, experts: Experts, calls: int) -> dict[str, list[int]]:
    """`one_lane`: of each call. `two_lanes`: of each pair of calls, a whole step over its calls."""
    single: list[int] = []
    pairs: list[int] = []
    for _ in range(max(1, calls // STEP_CALLS)):
        with link.serving(experts):
            single += card.run(1, STEP_CALLS)
        with link.serving(experts):
            card.run(LANES, 1)  # the threads are awake
            begin = time.monotonic_ns()
            card.run(LANES, STEP_CALLS)
            pairs.append((time.monotonic_ns() - begin) // STEP_CALLS)
    return {"one_lane": single, "two_lanes": pairs}


def _transport_times(card: Card, link: CallLink, experts: RemoteExperts) -> list[int]:
    """Of calls of native threads; a turn of its own, because tracing costs time."""
    experts.set_trace(STEP_CALLS * TURNS)
    for _ in range(TURNS):
        with link.serving(experts):
            card.run(1, STEP_CALLS)
    calls = experts.trace()
    experts.set_trace(0)
    return [
        int((max(duck["done_s"] for duck in call["ducks"]) - call["submit_s"]) * 1e9)
        for call in calls
    ]


def _submit_turn(experts: RemoteExperts, box: Mailbox, calls: int) -> list[int]:
    hidden, weights, ids = box.hidden[None], box.weights[None], box.ids.long()[None]
    found = []
    for _ in range(calls):
        begin = time.monotonic_ns()
        experts.submit(LAYER, hidden, ids, weights).wait()
        found.append(time.monotonic_ns() - begin)
    return found


@contextlib.contextmanager
def _linked(boxes: Sequence[Mailbox]) -> Iterator[CallLink]:
    link = CallLink([HostLane(box) for box in boxes])
    try:
        yield link
    finally:
        link.close()


@contextlib.contextmanager
def _experts(natives: Natives, ducks: int, hidden: int, poll: str) -> Iterator[RemoteExperts]:
    """The production path to ducks whose kernel answers at once; their weights mean nothing."""
    with contextlib.ExitStack() as stack:
        shelf = stack.enter_context(running_shelf(natives, ducks, poll))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duck-bench-")))
        experts = RemoteExperts(
            load_fleet(_fleet_file(folder, shelf)),
            _cache_file(folder, ducks, hidden),
            Path(natives.program("gap.elf")),
            natives.library,
            # One token per call: the kernel answers with the session's largest result.
            RemoteOptions(tokens_max=1, scrub_pause_s=0, poll_policy=POLICIES[poll]),
        )
        stack.callback(experts.close)
        experts.start(lambda done, total: None)
        yield experts


def _fleet_file(folder: Path, shelf: Shelf) -> Path:
    key_file = folder / "fleet.key"
    key_file.write_text(f"duck-p256-private:{shelf.key.hex()}\n", encoding="ascii")
    key_file.chmod(0o600)
    domain = {"bind_address": "127.0.0.1", "call_address": None, "mtu": 9000}
    names = [f"domain{index + 1}" for index in range(min(len(shelf.ports), 4))]
    ducks = [
        {"name": f"d{i + 1:02}", "domain": names[i % len(names)], "address": "127.0.0.1",
         "port": port, "slot": i}
        for i, port in enumerate(shelf.ports)
    ]  # fmt: skip
    document = {
        "schema_version": 1,
        "name": "bench",
        "key_file": str(key_file),
        "domains": [{"name": name, **domain} for name in names],
        "ducks": ducks,
    }
    path = folder / "fleet.json"
    path.write_text(json.dumps(document), encoding="ascii")
    return path


def _cache_file(folder: Path, ducks: int, hidden: int) -> Path:
    """A cache of zeros with one layer, whose sizes add up."""
    slices = []
    for slot in range(ducks):
        rows = EXPERTS * wire.record_bytes(wire.Format.FP8, hidden, slot * ROWS, ROWS)
        pieces, digests, offset = [], b"", 0
        for layer, size in ((None, wire.DIRECTORY_BYTES), (LAYER, rows)):
            file = folder / f"{slot}-{layer}.bin"
            file.write_bytes(bytes(size))
            digest = hashlib.sha256(bytes(size))
            digests += digest.digest()
            piece = {"file": file.name, "offset": offset, "bytes": size}
            piece |= {"sha256": digest.hexdigest()} | ({} if layer is None else {"layer": layer})
            pieces.append(piece)
            offset += size
        set_id = hashlib.sha256(digests).hexdigest()
        part = {"slice": slot, "first_row": slot * ROWS, "rows": ROWS, "region_bytes": offset}
        slices.append({**part, "set_id": set_id, "pieces": pieces})
    model = {"name": "bench", "model_type": "none", "revision": None, "config_sha256": "00" * 32}
    document = {
        "schema_version": 1,
        "cache_key": "00" * 16,
        "model": model,
        "format": "fp8",
        "layout_version": wire.LAYOUT_VERSION,
        "converter_version": 1,
        "hidden_size": hidden,
        "moe_intermediate_size": ducks * ROWS,
        "expert_count": EXPERTS,
        "layers": [LAYER],
        "slices": slices,
        "report": {},
    }
    path = folder / "cache.json"
    path.write_text(json.dumps(document), encoding="ascii")
    return path


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m host_runtime.bench.lanes")
    parser.add_argument("--natives", type=Path, required=True, help="folder of the native parts")
    parser.add_argument("--ducks", type=numbers, default=[1, 4])
    parser.add_argument("--hidden", type=numbers, default=[7168])
    parser.add_argument("--poll", choices=sorted(POLICIES), default="block")
    parser.add_argument("--calls", type=int, default=2000)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
