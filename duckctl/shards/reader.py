"""Reads one expert at a time: byte ranges into reused buffers, digests on the way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import numpy as np

from duckctl.shards.checkpoint import ExpertSource, MatrixSource
from duckctl.shards.layout import BLOCK, ceil_div
from duckctl.shards.native import Bytes, Floats, Matrix, PackLibrary
from duckctl.shards.safetensors import TensorEntry, open_regular, read_exactly

DIGEST_BUFFER_BYTES = 4 << 20


class FileTable:
    """Open source files, each opened once; positions are explicit, so threads share them."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._descriptors: dict[Path, int] = {}
        try:
            for path in paths:
                self._descriptors[path] = open_regular(path)
        except BaseException:
            self.close()
            raise

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
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def read(self, path: Path, offset: int, buffer: memoryview) -> None:
        read_exactly(self._descriptors[path], buffer, offset, path)

    def will_need(self, path: Path, offset: int, size_bytes: int) -> None:
        """Lets the disk work ahead while the processor packs."""
        os.posix_fadvise(self._descriptors[path], offset, size_bytes, os.POSIX_FADV_WILLNEED)

    def drop(self, path: Path, offset: int, size_bytes: int) -> None:
        """Read once: keeps a checkpoint from pushing everything else out of the page cache."""
        os.posix_fadvise(self._descriptors[path], offset, size_bytes, os.POSIX_FADV_DONTNEED)


def reader_bytes(source: ExpertSource) -> int:
    """Memory of an ExpertReader for experts of this size."""
    scales = sum(
        _scale_shape(matrix)[0] * _scale_shape(matrix)[1] * 4 for matrix in source.matrices
    )
    return sum(matrix.size_bytes for matrix in source.matrices) + scales


def _scale_shape(matrix: MatrixSource) -> tuple[int, int]:
    return ceil_div(matrix.rows, BLOCK), ceil_div(matrix.columns, BLOCK)


class ExpertReader:
    """Buffers of one worker; what ``read`` returns is valid until the next call."""

    def __init__(self, files: FileTable, library: PackLibrary, fmt: str) -> None:
        self._files = files
        self._library = library
        self._format = fmt
        self._buffers: list[Bytes] = [np.empty(0, np.uint8)] * 3

    def read(self, source: ExpertSource) -> tuple[tuple[Matrix, ...], dict[str, str]]:
        """Matrices gate, up, down of one expert, and the sha256 of every tensor read."""
        digests: dict[str, str] = {}
        matrices = tuple(
            self._matrix(index, matrix, digests) for index, matrix in enumerate(source.matrices)
        )
        return matrices, digests

    def _matrix(self, index: int, source: MatrixSource, digests: dict[str, str]) -> Matrix:
        if len(self._buffers[index]) < source.size_bytes:
            self._buffers[index] = np.empty(source.size_bytes, np.uint8)
        data = self._buffers[index][: source.size_bytes]
        self._files.read(source.path, source.offset, data.data)
        digests[source.name] = hashlib.sha256(data.data).hexdigest()
        if source.scale is not None:
            scale = self._stored_scale(source.scale, digests)
            return Matrix(source.name, source.dtype, source.rows, source.columns, data, scale)
        scale = np.empty(_scale_shape(source), np.float32)
        matrix = Matrix(source.name, source.dtype, source.rows, source.columns, data, scale)
        self._library.bf16_scales(self._format, matrix, scale)
        return matrix

    def _stored_scale(self, entry: TensorEntry, digests: dict[str, str]) -> Floats:
        raw = bytearray(entry.size_bytes)
        self._files.read(entry.path, entry.offset, memoryview(raw))
        digests[entry.name] = hashlib.sha256(raw).hexdigest()
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
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(size_bytes, DIGEST_BUFFER_BYTES)))
    for start in range(0, size_bytes, DIGEST_BUFFER_BYTES):
        view = buffer[: min(len(buffer), size_bytes - start)]
        files.read(path, offset + start, view)
        digest.update(view)
    return digest.hexdigest()
