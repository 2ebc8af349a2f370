"""The conversion pipeline: read, then hash + pack on all cores, then hash + write.

Experts go through in small batches of one layer, each in an output buffer of its own. Packers
never wait at a batch's end: the next batch's experts are queued before this one's are done, as
long as a buffer is free. A slice always belongs to the same writer thread, so each piece is hashed
and written in order, and several batches can be on their way to the disk. All memory is the output
buffers and a fixed number of experts as read, sized up front from the memory limit; a finished
layer's fsyncs run behind the next layer's work.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from duckctl.shards.checkpoint import Checkpoint, ExpertSource
from duckctl.shards.errors import PlanError
from duckctl.shards.journal import JournalEntry
from duckctl.shards.manifest import pieces_of
from duckctl.shards.memory import aligned_bytes
from duckctl.shards.native import Bytes, PackError, PackLibrary
from duckctl.shards.plan import ShardPlan
from duckctl.shards.reader import ExpertReader, FileTable, reader_bytes
from duckctl.shards.store import PieceWriter, fsync_directory

WRITERS_MAX = 8
LAYERS_UNFINISHED_MAX = 2  # layers whose fsyncs may still run while later ones are packed
RESERVE_BYTES = 400 << 20  # interpreter, libraries, headers of a 92,000-tensor checkpoint
BUFFERS = 4
BUFFER_BYTES_MAX = 1 << 30  # of all of them: writes of several MB; more only costs first touches
READERS = 4  # enough to keep a disk busy with 15 MB reads

LayerDone = Callable[[int, Mapping[str, str], list[JournalEntry]], None]
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Budget:
    """How a memory limit is spent."""

    threads: int
    loaded_experts: int  # read, and waiting for a packer or being packed
    batch_experts: int
    buffers: int
    memory_bytes: int  # what the pipeline allocates at most, reserve included


def make_budget(
    checkpoint: Checkpoint, plan: ShardPlan, threads: int, memory_limit_bytes: int
) -> Budget:
    """Threads and sizes that keep the limit; refused when two experts do not fit."""
    source = max(reader_bytes(checkpoint.experts(layer)[0]) for layer in plan.shape.layers)
    output = sum(layout.record_bytes for layout in plan.layouts)
    least = RESERVE_BYTES + 2 * source + 2 * output
    if memory_limit_bytes < least:
        raise PlanError(
            f"--memory-limit {memory_limit_bytes >> 20} MiB is too small for this model",
            f"it needs at least {(least >> 20) + 1} MiB",
        )
    room = memory_limit_bytes - RESERVE_BYTES
    # One expert per packer and one per reader, as far as half of the room goes.
    loaded = max(2, min(threads + READERS, (room - 2 * output) // source, room // 2 // source))
    records = (room - loaded * source) // output
    buffers = min(BUFFERS, records)
    largest = max(1, BUFFER_BYTES_MAX // (buffers * output))
    batch = min(records // buffers, largest, plan.shape.expert_count)
    memory = RESERVE_BYTES + loaded * source + buffers * batch * output
    return Budget(threads, loaded, batch, buffers, memory)


@dataclass(frozen=True)
class _Batch:
    layer: int
    experts: Sequence[ExpertSource]
    is_first: bool
    is_last: bool


_Packed = tuple[dict[str, str], dict[int, PackError]]  # tensor digests; slice -> error


@dataclass(frozen=True)
class _Pools:
    """Threads that wait for the disk, threads that compute, threads that write."""

    readers: ThreadPoolExecutor
    packers: ThreadPoolExecutor
    writers: Sequence[ThreadPoolExecutor]  # one thread each: a slice's writes keep their order

    def writer_of(self, part: int) -> ThreadPoolExecutor:
        return self.writers[part % len(self.writers)]

    def shutdown(self) -> None:
        for pool in (self.readers, self.packers, *self.writers):
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass
class _OnTheWay:
    """A batch in its buffer: being packed, then being written."""

    batch: _Batch
    buffer: Mapping[int, Bytes]
    packs: list[Future[_Packed]]
    writes: list[Future[None]] = field(default_factory=list)


@dataclass
class _LayerState:
    """A layer on its way through: its writers and what was learnt about it."""

    layer: int
    writers: dict[int, PieceWriter]
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
        self._stopped = threading.Event()
        self._free: queue.SimpleQueue[ExpertReader | None] = queue.SimpleQueue()
        self._tickets = itertools.count()
        self._next_read = 0
        self._turn = threading.Condition()
        self._layers: dict[int, _LayerState] = {}

    def run(self, layer_done: LayerDone, advance: Advance) -> None:
        """Makes every piece of the work; on any error unfinished pieces are removed."""
        with FileTable(file.path for file in self._checkpoint.files) as files:
            for _ in range(self._budget.loaded_experts):
                self._free.put(ExpertReader(files, self._library, self._plan.fmt))
            count = min(WRITERS_MAX, len(self._plan.slices))
            pools = _Pools(
                ThreadPoolExecutor(READERS, "read"),
                ThreadPoolExecutor(self._budget.threads, "pack"),
                [ThreadPoolExecutor(1, f"write-{number}") for number in range(count)],
            )
            try:
                self._run(pools, layer_done, advance)
            except BaseException:
                self._stopped.set()
                self._free.put(None)  # wakes the one whose turn it is, if it waits for a reader
                with self._turn:
                    self._turn.notify_all()  # wakes those that wait for their turn
                pools.shutdown()
                self._discard()
                raise
            pools.shutdown()

    def _run(self, pools: _Pools, layer_done: LayerDone, advance: Advance) -> None:
        buffers = self._buffers()
        batches = self._batches()
        batch = next(batches, None)
        reads = self._start_reads(pools, batch)
        packing: deque[_OnTheWay] = deque()
        writing: deque[_OnTheWay] = deque()
        while batch is not None:
            following = next(batches, None)
            if len(packing) + len(writing) == len(buffers):
                if not writing:
                    writing.append(self._hand_over(packing.popleft(), pools, advance))
                buffer = self._end_writes(writing.popleft(), pools)
            else:
                buffer = buffers[len(packing) + len(writing)]
            packs = [
                pools.packers.submit(self._pack, source, read, buffer, position)
                for position, (source, read) in enumerate(zip(batch.experts, reads, strict=True))
            ]
            packing.append(_OnTheWay(batch, buffer, packs))
            reads = self._start_reads(pools, following)
            if len(packing) > 1:
                writing.append(self._hand_over(packing.popleft(), pools, advance))
            self._finish_layers(layer_done, LAYERS_UNFINISHED_MAX)
            batch = following
        writing.extend(self._hand_over(packed, pools, advance) for packed in packing)
        for written in writing:
            self._end_writes(written, pools)
        self._finish_layers(layer_done, 0)

    def _hand_over(self, packed: _OnTheWay, pools: _Pools, advance: Advance) -> _OnTheWay:
        """Waits until a batch is packed and starts its writes."""
        batch = packed.batch
        state = self._layer_state(batch, [future.result() for future in packed.packs])
        packed.writes = [
            pools.writer_of(part).submit(
                self._write, writer, packed.buffer[part], len(batch.experts)
            )
            for part, writer in state.writers.items()
        ]
        advance(sum(source.size_bytes for source in batch.experts))
        return packed

    def _start_reads(self, pools: _Pools, batch: _Batch | None) -> list[Future[ExpertReader]]:
        experts = batch.experts if batch is not None else ()
        return [pools.readers.submit(self._read, source, next(self._tickets)) for source in experts]

    def _batches(self) -> Iterator[_Batch]:
        step = self._budget.batch_experts
        for layer in self._work:
            experts = self._checkpoint.experts(layer)
            for start in range(0, len(experts), step):
                part = experts[start : start + step]
                yield _Batch(layer, part, start == 0, start + step >= len(experts))

    def _buffers(self) -> list[dict[int, Bytes]]:
        """Output buffers: per slice the records of one batch, back to back."""
        slices = sorted({part for parts in self._work.values() for part in parts})
        count = self._budget.batch_experts
        return [
            {part: aligned_bytes(count * self._layouts[part].record_bytes) for part in slices}
            for _ in range(self._budget.buffers)
        ]

    def _read(self, source: ExpertSource, ticket: int) -> ExpertReader:
        """Waits for a free reader and fills it; the packer gives it back."""
        with self._turn:
            # In the order of the experts: were a later one to take the last reader, the packers
            # would wait for an earlier one for ever.
            self._turn.wait_for(lambda: self._next_read == ticket or self._stopped.is_set())
            reader = None if self._stopped.is_set() else self._free.get()
            self._next_read += 1
            self._turn.notify_all()
        if reader is None:
            raise CancelledError
        try:
            reader.load(source)
        except BaseException:
            self._free.put(reader)
            raise
        return reader

    def _pack(
        self,
        source: ExpertSource,
        read: Future[ExpertReader],
        buffer: Mapping[int, Bytes],
        position: int,
    ) -> _Packed:
        """Packs one expert for every slice that is to be made."""
        reader = read.result()
        try:
            matrices, digests = reader.decode()
            errors = {}
            for part in self._work[source.layer]:
                size = self._layouts[part].record_bytes
                record = buffer[part][position * size : (position + 1) * size]
                errors[part] = self._library.pack_record(self._layouts[part], matrices, record)
            return digests, errors
        finally:
            self._free.put(reader)

    def _write(self, writer: PieceWriter, records: Bytes, count: int) -> None:
        if self._stopped.is_set():
            return
        size = self._layouts[writer.piece.slice_index].record_bytes
        writer.write(records.data[: count * size])

    def _layer_state(self, batch: _Batch, results: Sequence[_Packed]) -> _LayerState:
        """The batch's layer, with what packing this batch has told."""
        if batch.is_first:
            self._layers[batch.layer] = _LayerState(batch.layer, {})
        state = self._layers[batch.layer]
        if batch.is_first:
            for part in self._work[batch.layer]:
                piece = self._pieces[(batch.layer, part)]
                state.writers[part] = PieceWriter(self._directory, piece)
        for digests, errors in results:
            state.digests.update(digests)
            for part, error in errors.items():
                state.errors.setdefault(part, ErrorSum()).add(error)
        return state

    def _end_writes(self, written: _OnTheWay, pools: _Pools) -> Mapping[int, Bytes]:
        """Waits until a batch is written; its buffer. After a layer's last one, its pieces are
        finished."""
        for future in written.writes:
            future.result()
        if written.batch.is_last:
            state = self._layers[written.batch.layer]
            state.finishing = [
                (part, pools.writer_of(part).submit(writer.finish))
                for part, writer in state.writers.items()
            ]
        return written.buffer

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
            fsync_directory(self._directory)
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
