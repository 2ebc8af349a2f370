"""Reads one expert at a time: byte ranges into reused buffers, digests on the way."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from blake3 import blake3

from duckctl.shards.checkpoint import ExpertSource, MatrixSource
from duckctl.shards.layout import BLOCK, ceil_div
from duckctl.shards.memory import PAGE_BYTES, aligned_bytes, round_down, round_up
from duckctl.shards.native import Bytes, Floats, Matrix, PackLibrary
from duckctl.shards.safetensors import TensorEntry, open_regular, read_exactly, read_pages

DIGEST_BUFFER_BYTES = 4 << 20
DIRECT_FILE_BYTES_MIN = 512 << 20  # smaller files may well be in the page cache already


class FileTable:
    """Open source files, each opened once; positions are explicit, so threads share them.

    Large files are read past the page cache: a checkpoint is read once, and what the cache would
    keep of it costs copies and pushes out everything else.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._descriptors: dict[Path, int] = {}
        self._direct: dict[Path, int] = {}
        try:
            for path in paths:
                self._descriptors[path] = open_regular(path)
                if os.fstat(self._descriptors[path]).st_size >= DIRECT_FILE_BYTES_MIN:
                    self._open_direct(path)
        except BaseException:
            self.close()
            raise

    def _open_direct(self, path: Path) -> None:
        # EINVAL: the file system has no direct I/O; reading through the cache does as well.
        with contextlib.suppress(OSError):
            self._direct[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)

    def __enter__(self) -> FileTable:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for descriptor in (*self._descriptors.values(), *self._direct.values()):
            os.close(descriptor)
        self._descriptors.clear()
        self._direct.clear()

    def read(self, path: Path, offset: int, buffer: memoryview) -> None:
        """Fills ``buffer`` from ``offset`` through the page cache."""
        read_exactly(self._descriptors[path], buffer, offset, path)

    def read_large(self, path: Path, offset: int, size_bytes: int, area: Bytes) -> Bytes:
        """Reads into a page-aligned ``area`` (area_bytes() long); returns the part that was asked.

        Direct I/O reads whole pages, so the data begins somewhere in the area's first page.
        """
        start = round_down(offset)
        data = area[offset - start : offset - start + size_bytes]
        descriptor = self._direct.get(path)
        if descriptor is None:
            read_exactly(self._descriptors[path], data.data, offset, path)
            return data
        whole = area[: round_up(offset + size_bytes) - start]
        read_pages(descriptor, whole.data, start, offset + size_bytes - start, path)
        return data


def area_bytes(size_bytes: int) -> int:
    """Size of the area that read_large needs for a tensor, wherever it lies in its file."""
    return round_up(size_bytes) + PAGE_BYTES


def reader_bytes(source: ExpertSource) -> int:
    """Memory of an ExpertReader for experts of this size."""
    scales = sum(4 * math.prod(_scale_shape(matrix)) for matrix in source.matrices)
    return sum(area_bytes(matrix.size_bytes) for matrix in source.matrices) + scales


def _scale_shape(matrix: MatrixSource) -> tuple[int, int]:
    return ceil_div(matrix.rows, BLOCK), ceil_div(matrix.columns, BLOCK)


@dataclass
class _Loaded:
    """One matrix as read: codes, and scales as stored (none for bf16)."""

    source: MatrixSource
    data: Bytes
    raw_scale: bytes


class ExpertReader:
    """Buffers for one expert. ``load`` waits for the disk, ``decode`` uses the processor."""

    def __init__(self, files: FileTable, library: PackLibrary, fmt: str) -> None:
        self._files = files
        self._library = library
        self._format = fmt
        self._areas: list[Bytes] = [aligned_bytes(0)] * 3
        self._loaded: list[_Loaded] = []

    def load(self, source: ExpertSource) -> None:
        """Reads the expert's byte ranges; the last expert's are overwritten."""
        self._loaded = []
        for index, matrix in enumerate(source.matrices):
            if len(self._areas[index]) < area_bytes(matrix.size_bytes):
                self._areas[index] = aligned_bytes(area_bytes(matrix.size_bytes))
            data = self._files.read_large(
                matrix.path, matrix.offset, matrix.size_bytes, self._areas[index]
            )
            raw = bytearray(matrix.scale.size_bytes if matrix.scale else 0)
            if matrix.scale is not None:
                self._files.read(matrix.scale.path, matrix.scale.offset, memoryview(raw))
            self._loaded.append(_Loaded(matrix, data, bytes(raw)))

    def decode(self) -> tuple[tuple[Matrix, ...], dict[str, str]]:
        """Matrices gate, up, down, valid until the next load, and each tensor's BLAKE3 digest.

        It only has to tell equal bytes from others here, and takes a third of the time of SHA-256.
        """
        digests: dict[str, str] = {}
        return tuple(self._decode(loaded, digests) for loaded in self._loaded), digests

    def _decode(self, loaded: _Loaded, digests: dict[str, str]) -> Matrix:
        source = loaded.source
        digests[source.name] = blake3(loaded.data.data).hexdigest()
        if source.scale is not None:
            digests[source.scale.name] = blake3(loaded.raw_scale).hexdigest()
            scale = _stored_scale(source.scale, loaded.raw_scale)
        else:
            scale = np.empty(_scale_shape(source), np.float32)
        matrix = Matrix(source.name, source.dtype, source.rows, source.columns, loaded.data, scale)
        if source.scale is None:
            self._library.bf16_scales(self._format, matrix, scale)
        return matrix


def _stored_scale(entry: TensorEntry, raw: bytes) -> Floats:
    if entry.dtype == "F32":
        return np.frombuffer(raw, "<f4").reshape(entry.shape)
    # bf16 is the upper half of a float32: exact.
    widened = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
    return widened.view(np.float32).reshape(entry.shape)


def digest_expert(files: FileTable, source: ExpertSource) -> dict[str, str]:
    """The digests that ``ExpertReader.read`` reports, without the matrices."""
    digests = {}
    for matrix in source.matrices:
        digests[matrix.name] = _digest_range(files, matrix.path, matrix.offset, matrix.size_bytes)
        if matrix.scale is not None:
            entry = matrix.scale
            digests[entry.name] = _digest_range(files, entry.path, entry.offset, entry.size_bytes)
    return digests


def _digest_range(files: FileTable, path: Path, offset: int, size_bytes: int) -> str:
    digest = blake3()
    buffer = memoryview(bytearray(min(size_bytes, DIGEST_BUFFER_BYTES)))
    for start in range(0, size_bytes, DIGEST_BUFFER_BYTES):
        view = buffer[: min(len(buffer), size_bytes - start)]
        files.read(path, offset + start, view)
        digest.update(view)
    return digest.hexdigest()
