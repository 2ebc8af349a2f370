"""The cache directory on disk: atomic files, the lock, and the writing of pieces.

A kill, a full disk or a power loss at any moment leaves either no file or a whole one: every file
is written under a temporary name, fsynced, renamed, and its directory is fsynced. The journal
names a piece only after that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

from duckctl.shards.errors import CacheBusyError, CacheError
from duckctl.shards.manifest import LOCK_NAME, Piece
from duckctl.shards.memory import PAGE_BYTES, aligned_bytes, round_down

TEMPORARY_SUFFIX = ".part"
HASH_BUFFER_BYTES = 4 << 20
DIRECT_PIECE_BYTES_MIN = 32 << 20  # smaller ones: the page cache takes them faster
FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """All of ``data`` or nothing is at ``path`` afterwards, even after a power loss."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:  # an interrupt too
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def write_if_different(path: Path, data: bytes) -> None:
    """write_atomically, but leaves an equal file (and its time) alone."""
    try:
        if path.read_bytes() == data:
            return
    except FileNotFoundError:
        path.parent.mkdir(exist_ok=True)
    write_atomically(path, data)


def json_bytes(value: Mapping[str, object]) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def remove_temporary_files(directory: Path) -> None:
    """Leftovers of a killed run; only call while holding the lock."""
    for path in directory.rglob("*" + TEMPORARY_SUFFIX):
        path.unlink(missing_ok=True)


def free_bytes(directory: Path) -> int:
    """Bytes that this user may still write where ``directory`` is or will be."""
    while not directory.exists():
        directory = directory.parent
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


@contextlib.contextmanager
def hashing_pool(threads: int) -> Iterator[tuple[ThreadPoolExecutor, threading.Event]]:
    """A pool and the ``stop`` of its work: an error or Ctrl-C in the block ends it early."""
    stop = threading.Event()
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield pool, stop
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def file_sha256(path: Path, stop: threading.Event | None = None) -> str:
    """Digest of a whole file in hex, read in pieces of 4 MiB.

    Raises CancelledError between two pieces when ``stop`` is set.
    """
    digest = hashlib.sha256()
    buffer = aligned_bytes(HASH_BUFFER_BYTES).data
    descriptor = open_data(path, os.O_RDONLY, path.stat().st_size >= DIRECT_PIECE_BYTES_MIN)
    try:
        offset = 0
        while count := os.preadv(descriptor, [buffer], offset):
            if stop is not None and stop.is_set():
                raise CancelledError
            digest.update(buffer[:count])
            offset += count
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def open_data(path: Path, flags: int, direct: bool) -> int:
    """Opens a large file past the page cache; through it where the file system has no other way.

    Then a digest is that of the disk's bytes, and writing does not wait for copies.
    """
    flags |= os.O_CLOEXEC
    try:
        return os.open(path, flags | (os.O_DIRECT if direct else 0), 0o644)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o644)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds the cache's lock or names its holder. The kernel frees it when the process ends."""
    path = directory / LOCK_NAME
    descriptor = _open_locked(path)
    while not _is_file_at(descriptor, path):  # whoever held it has removed the cache
        os.close(descriptor)
        descriptor = _open_locked(path)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open_locked(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        raise CacheError(
            f"the cache {path.parent} has been removed", "run the command again"
        ) from None
    try:
        _lock(descriptor, fcntl.LOCK_EX, path)
    except CacheBusyError:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, how: int, path: Path) -> None:
    """Raises CacheBusyError with the holder's process number."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        raise CacheBusyError(
            f"process {owner or '(unknown)'} is writing to the cache {path.parent}",
            "wait until it is done, or stop it; finished pieces are kept",
        ) from None


def require_unlocked(directory: Path) -> None:
    """Raises CacheBusyError while somebody holds the cache's lock; changes nothing on disk."""
    path = directory / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _lock(descriptor, fcntl.LOCK_SH, path)
    finally:
        os.close(descriptor)


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


class PieceWriter:
    """Writes one piece in order, hashing on the way; ``finish`` makes it durable and visible.

    Large pieces go past the page cache (data must be page-aligned then, as record buffers are).
    """

    def __init__(self, directory: Path, piece: Piece) -> None:
        self.piece = piece
        self.path = directory / piece.file
        self.temporary = self.path.with_name(self.path.name + TEMPORARY_SUFFIX)
        self.digest = hashlib.sha256()
        self.written = 0
        self.path.parent.mkdir(exist_ok=True)
        self.direct = piece.size_bytes >= DIRECT_PIECE_BYTES_MIN
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self.descriptor = open_data(self.temporary, flags, self.direct)

    def write(self, data: memoryview) -> None:
        """Appends ``data``; OSError when the disk is full."""
        self.digest.update(data)
        done = 0
        while done < len(data):
            count = os.pwrite(self.descriptor, data[done:], self.written + done)
            if self.direct and count % PAGE_BYTES:
                # Cut short by a full disk; direct I/O can only go on at a page.
                count = round_down(count)
                if count == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += count
        self.written += len(data)

    def finish(self) -> str:
        """Syncs and renames; returns the digest in hex. The directory is synced by the caller."""
        if self.written != self.piece.size_bytes:
            raise CacheError(
                f"{self.path}: {self.written} of {self.piece.size_bytes} bytes were written",
                "this is a fault of duckctl: report it with the command that you ran",
            )
        os.fsync(self.descriptor)
        self.close()
        self.temporary.rename(self.path)
        return self.digest.hexdigest()

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def discard(self) -> None:
        """Gives the space of an unfinished piece back."""
        self.close()
        self.temporary.unlink(missing_ok=True)
