"""The conversion pipeline: read + hash + pack on all cores, write + hash behind it.

Experts go through in batches of one layer. While the writers append batch k to the pieces (one
task per slice, so each piece is written and hashed in order), the packers fill the other buffer
with batch k + 1. All memory is two output buffers and one expert per packer, sized up front from
the memory limit; a finished layer's fsyncs run behind the next layer's work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from duckctl.shards.checkpoint import Checkpoint, ExpertSource
from duckctl.shards.errors import PlanError
from duckctl.shards.manifest import Piece, pieces_of
from duckctl.shards.native import Bytes, PackError, PackLibrary
from duckctl.shards.plan import ShardPlan
from duckctl.shards.reader import ExpertReader, FileTable, reader_bytes
from duckctl.shards.store import JournalEntry, PieceWriter, fsync_directory

WRITERS_MAX = 8
LAYERS_UNFINISHED_MAX = 2  # layers whose fsyncs may still run while later ones are packed
RESERVE_BYTES = 400 << 20  # interpreter, libraries, headers of a 92,000-tensor checkpoint
BATCH_EXPERTS_MAX = 64  # beyond this, larger batches only add memory
DROP_CACHE_FILE_BYTES = 1 << 30  # smaller checkpoints may stay in the page cache

LayerDone = Callable[[int, Mapping[str, str], list[JournalEntry]], None]
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Budget:
    """How a memory limit is spent."""

    threads: int
    batch_experts: int
    memory_bytes: int  # what the pipeline allocates at most, reserve included


def make_budget(
    checkpoint: Checkpoint, plan: ShardPlan, threads: int, memory_limit_bytes: int
) -> Budget:
    """Threads and batch size that keep the limit; refused when one expert does not fit."""
    source = max(reader_bytes(checkpoint.experts(layer)[0]) for layer in plan.shape.layers)
    output = 2 * sum(layout.record_bytes for layout in plan.layouts)
    least = RESERVE_BYTES + source + output
    if memory_limit_bytes < least:
        raise PlanError(
            f"--memory-limit {memory_limit_bytes >> 20} MiB is too small for this model",
            f"it needs at least {(least >> 20) + 1} MiB",
        )
    threads = max(1, min(threads, (memory_limit_bytes - RESERVE_BYTES) // (source + output)))
    room = memory_limit_bytes - RESERVE_BYTES - threads * source
    batch = min(room // output, BATCH_EXPERTS_MAX, plan.shape.expert_count)
    return Budget(threads, batch, RESERVE_BYTES + threads * source + batch * output)


@dataclass(frozen=True)
class _Batch:
    layer: int
    experts: Sequence[ExpertSource]
    is_first: bool
    is_last: bool


@dataclass
class _LayerState:
    """A layer on its way through: its writers and what was learnt about it."""

    layer: int
    writers: Mapping[int, PieceWriter]
    digests: dict[str, str] = field(default_factory=dict)
    errors: dict[int, ErrorSum] = field(default_factory=dict)
    finishing: list[tuple[int, Future[str]]] = field(default_factory=list)


@dataclass
class ErrorSum:
    """Squared errors of many records, added in expert order (so that reruns agree to the bit)."""

    squared_error: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    squared_sum: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def add(self, error: PackError) -> None:
        for index in range(3):
            self.squared_error[index] += error.squared_error[index]
            self.squared_sum[index] += error.squared_sum[index]


class Pipeline:
    """One run over the missing pieces. ``work``: layer -> slices to make, in layer order."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: ShardPlan,
        directory: Path,
        work: Mapping[int, tuple[int, ...]],
        budget: Budget,
    ) -> None:
        self._checkpoint = checkpoint
        self._plan = plan
        self._directory = directory
        self._work = work
        self._budget = budget
        self._layouts = plan.layouts
        self._library = PackLibrary()
        self._pieces = {(piece.layer, piece.slice_index): piece for piece in pieces_of(plan)}
        self._drop = any(file.size_bytes >= DROP_CACHE_FILE_BYTES for file in checkpoint.files)
        self._stopped = threading.Event()
        self._local = threading.local()
        self._layers: dict[int, _LayerState] = {}

    def run(self, layer_done: LayerDone, advance: Advance) -> None:
        """Makes every piece of the work; on any error unfinished pieces are removed."""
        writers = min(WRITERS_MAX, len(self._plan.slices))
        with FileTable(file.path for file in self._checkpoint.files) as files:
            packers = ThreadPoolExecutor(self._budget.threads, "pack")
            pool = ThreadPoolExecutor(writers, "write")
            try:
                self._run(files, packers, pool, layer_done, advance)
            except BaseException:
                self._stopped.set()
                packers.shutdown(wait=True, cancel_futures=True)
                pool.shutdown(wait=True, cancel_futures=True)
                self._discard()
                raise
            packers.shutdown()
            pool.shutdown()

    def _run(
        self,
        files: FileTable,
        packers: ThreadPoolExecutor,
        pool: ThreadPoolExecutor,
        layer_done: LayerDone,
        advance: Advance,
    ) -> None:
        buffers = self._buffers()
        writes: list[Future[None]] = []
        previous: _Batch | None = None
        for index, batch in enumerate(self._batches()):
            buffer = buffers[index % 2]
            packs = [
                packers.submit(self._pack, files, source, buffer, position, ahead)
                for position, (source, ahead) in enumerate(self._with_ahead(batch))
            ]
            results = [future.result() for future in packs]
            self._end_batch(previous, writes, pool)
            self._finish_layers(layer_done, LAYERS_UNFINISHED_MAX)
            state = self._begin_layer(batch) if batch.is_first else self._layers[batch.layer]
            for digests, errors in results:
                state.digests.update(digests)
                for part, error in errors.items():
                    state.errors.setdefault(part, ErrorSum()).add(error)
            writes = [
                pool.submit(self._write, writer, buffer[part], len(batch.experts))
                for part, writer in state.writers.items()
            ]
            advance(sum(source.size_bytes for source in batch.experts))
            previous = batch
        self._end_batch(previous, writes, pool)
        self._finish_layers(layer_done, 0)

    def _batches(self) -> Iterator[_Batch]:
        step = self._budget.batch_experts
        for layer in self._work:
            experts = self._checkpoint.experts(layer)
            for start in range(0, len(experts), step):
                part = experts[start : start + step]
                yield _Batch(layer, part, start == 0, start + step >= len(experts))

    def _with_ahead(self, batch: _Batch) -> Iterator[tuple[ExpertSource, ExpertSource | None]]:
        """Each expert with the one that the disk should fetch meanwhile."""
        experts = self._checkpoint.experts(batch.layer)
        for source in batch.experts:
            ahead = source.expert + self._budget.threads
            yield source, experts[ahead] if ahead < len(experts) else None

    def _buffers(self) -> tuple[dict[int, Bytes], dict[int, Bytes]]:
        """Two output buffers: per slice the records of one batch, back to back."""
        slices = sorted({part for parts in self._work.values() for part in parts})
        count = self._budget.batch_experts
        first, second = (
            {part: np.empty(count * self._layouts[part].record_bytes, np.uint8) for part in slices}
            for _ in range(2)
        )
        return first, second

    def _reader(self, files: FileTable) -> ExpertReader:
        if not hasattr(self._local, "reader"):
            self._local.reader = ExpertReader(files, self._library, self._plan.fmt)
        reader: ExpertReader = self._local.reader
        return reader

    def _pack(
        self,
        files: FileTable,
        source: ExpertSource,
        buffer: Mapping[int, Bytes],
        position: int,
        ahead: ExpertSource | None,
    ) -> tuple[dict[str, str], dict[int, PackError]]:
        """Reads one expert and packs it for every slice that is to be made."""
        if self._stopped.is_set():
            return {}, {}
        if ahead is not None:
            for matrix in ahead.matrices:
                files.will_need(matrix.path, matrix.offset, matrix.size_bytes)
        matrices, digests = self._reader(files).read(source)
        errors = {}
        for part in self._work[source.layer]:
            size = self._layouts[part].record_bytes
            record = buffer[part][position * size : (position + 1) * size]
            errors[part] = self._library.pack_record(self._layouts[part], matrices, record)
        if self._drop:
            for matrix in source.matrices:
                files.drop(matrix.path, matrix.offset, matrix.size_bytes)
        return digests, errors

    def _write(self, writer: PieceWriter, records: Bytes, count: int) -> None:
        if self._stopped.is_set():
            return
        size = self._layouts[writer.piece.slice_index].record_bytes
        writer.write(records.data[: count * size])

    def _begin_layer(self, batch: _Batch) -> _LayerState:
        writers: dict[int, PieceWriter] = {}
        state = self._layers[batch.layer] = _LayerState(batch.layer, writers)
        for part in self._work[batch.layer]:
            writers[part] = PieceWriter(self._directory, self._piece(batch.layer, part))
        return state

    def _piece(self, layer: int, part: int) -> Piece:
        return self._pieces[(layer, part)]

    def _end_batch(
        self, batch: _Batch | None, writes: Sequence[Future[None]], pool: ThreadPoolExecutor
    ) -> None:
        """Waits until a batch is written; after a layer's last one, its pieces are finished."""
        for future in writes:
            future.result()
        if batch is not None and batch.is_last:
            state = self._layers[batch.layer]
            state.finishing = [
                (part, pool.submit(writer.finish)) for part, writer in state.writers.items()
            ]

    def _finish_layers(self, layer_done: LayerDone, unfinished_max: int) -> None:
        """Reports layers whose pieces are durable; waits while too many are not."""
        waiting = [state for state in self._layers.values() if state.finishing]
        for state in waiting:
            ready = all(future.done() for _, future in state.finishing)
            if not ready and len(waiting) <= unfinished_max:
                return
            digests = {part: future.result() for part, future in state.finishing}
            for part in digests:
                fsync_directory(state.writers[part].path.parent)
            layer_done(state.layer, state.digests, self._entries(state, digests))
            del self._layers[state.layer]
            waiting = waiting[1:]

    def _entries(self, state: _LayerState, digests: Mapping[int, str]) -> list[JournalEntry]:
        """Journal entries of a layer; the caller adds the digest of the source."""
        return [
            JournalEntry(
                part,
                state.layer,
                state.writers[part].piece.size_bytes,
                sha256,
                "",
                tuple(state.errors[part].squared_error),
                tuple(state.errors[part].squared_sum),
            )
            for part, sha256 in digests.items()
        ]

    def _discard(self) -> None:
        for state in self._layers.values():
            for writer in state.writers.values():
                writer.discard()
