"""The fleet's key pair (ECDSA P-256): the host signs with the private half, ducks know the public.

Both halves are one line of text: ``duck-p256-private:`` and 64 hex digits in ``fleet.key`` (mode
0600, never leaves the host), ``duck-p256-public:`` and 130 hex digits in ``fleet.pub``. The
arithmetic is that of libduckhost.so.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
from pathlib import Path

from duckctl.errors import UsageError
from duckctl.native import native_path

PRIVATE_LABEL = "duck-p256-private:"
PUBLIC_LABEL = "duck-p256-public:"
PRIVATE_BYTES, PUBLIC_BYTES, SIGNATURE_BYTES = 32, 65, 64  # wire.h
KEY_FILE_BYTES_MAX = 4096
OLD_KEY = re.compile(r"[0-9a-fA-F]{64}")


def public_path(path: Path) -> Path:
    """Where the public half of a private key file lies."""
    return path.with_suffix(".pub")


def pins_path(path: Path) -> Path:
    """Where the host keeps the ducks' own keys: beside its private key file."""
    return path.with_suffix(".pins.json")


def make_key(path: Path) -> None:
    """Writes a new pair: ``path`` (mode 0600) and its ``.pub``. What is there is never touched."""
    public_file = public_path(path)
    for file in (path, public_file):
        if os.path.lexists(file):
            raise UsageError(
                f"there is already a file {file}",
                "ducks that know that key would no longer obey a new one; to replace it, move it "
                "away first",
            )
    private = ctypes.create_string_buffer(PRIVATE_BYTES)
    public = ctypes.create_string_buffer(PUBLIC_BYTES)
    if _library().duckhost_make_key(private, public) != 0:
        raise UsageError("no key could be made: the system gives no random bytes")
    _write(path, PRIVATE_LABEL + private.raw.hex(), 0o600)
    _write(public_file, PUBLIC_LABEL + public.raw.hex(), 0o644)


def check_key(path: Path) -> None:
    """Refuses a key file that is missing, readable by others, or no key; never shows a key."""
    private_key(path)


def private_key(path: Path) -> bytes:
    """The private key of a file that only its owner can read."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"key file {path} is not a regular file", "make one: duckctl init")
        if stat.S_IMODE(status.st_mode) & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise UsageError(
                f"key file {path} has mode {mode:04o}: others than its owner may read it",
                f"if nobody else has read it: chmod 600 {path}",
            )
    except OSError as error:
        raise _unreadable(path, error) from error
    key = _parse(_line(path), PRIVATE_LABEL, PRIVATE_BYTES)
    if key is None:
        raise _not_a_key(path, f"'{PRIVATE_LABEL}' and {2 * PRIVATE_BYTES} hex digits")
    return key


def public_key(path: Path) -> bytes:
    """The public key for ducks and images, of the private key in ``path``.

    The ``.pub`` file is written if it is missing; one that belongs to another key is refused.
    """
    private = private_key(path)
    public = ctypes.create_string_buffer(PUBLIC_BYTES)
    if _library().duckhost_public_key(private, public) != 0:
        raise _not_a_key(path, "a private key of P-256")
    file = public_path(path)
    if not file.exists():
        _write(file, PUBLIC_LABEL + public.raw.hex(), 0o644)
    elif read_public_key(file) != public.raw:
        raise UsageError(
            f"{file} does not belong to {path}", f"if {path} is right: remove {file} and try again"
        )
    return public.raw


def read_public_key(path: Path) -> bytes:
    """The key in a ``.pub`` file."""
    key = _parse(_line(path), PUBLIC_LABEL, PUBLIC_BYTES)
    if key is None or key[0] != 4:
        if _line(path).startswith(PRIVATE_LABEL):
            raise UsageError(
                f"key file {path} does not hold a public key but the private one, which never "
                "leaves the host",
                "give its public half, the .pub file that lies beside it",
            )
        raise _not_a_key(path, f"'{PUBLIC_LABEL}' and {2 * PUBLIC_BYTES} hex digits")
    return key


def sign_bytes(path: Path, data: bytes) -> bytes:
    """Signature (r, s) of data by the private key in ``path``: 64 bytes."""
    signature = ctypes.create_string_buffer(SIGNATURE_BYTES)
    if _library().duckhost_sign(private_key(path), data, len(data), signature) != 0:
        raise _not_a_key(path, "a private key of P-256")
    return signature.raw


def verify_bytes(path: Path, data: bytes, signature: bytes) -> bool:
    """Was it the private half of the key in the ``.pub`` file ``path`` that signed this data?"""
    key = read_public_key(path)
    if len(signature) != SIGNATURE_BYTES:
        return False
    return bool(_library().duckhost_verify(key, data, len(data), signature) == 0)


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(native_path("libduckhost.so")))
    memory, size = ctypes.c_char_p, ctypes.c_size_t
    library.duckhost_sign.argtypes = [memory, memory, size, memory]
    library.duckhost_verify.argtypes = [memory, memory, size, memory]
    return library


def _write(path: Path, line: str, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        raise UsageError(f"cannot write key file {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(descriptor, mode)
        file.write(line + "\n")
        file.flush()
        os.fsync(descriptor)


def _line(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            return file.read(KEY_FILE_BYTES_MAX).strip()
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError:
        return ""


def _parse(line: str, label: str, size: int) -> bytes | None:
    digits = line.removeprefix(label)
    if digits == line or not re.fullmatch(rf"[0-9a-fA-F]{{{2 * size}}}", digits):
        return None
    return bytes.fromhex(digits)


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot read key file {path}: {error.strerror}",
        f"make one: duckctl init --fleet-dir {path.parent}",
    )


def _not_a_key(path: Path, expected: str) -> UsageError:
    if OLD_KEY.fullmatch(_line(path)):
        return UsageError(
            f"key file {path} is a shared key of an older version; a fleet has a key pair now",
            f"move it away, then: duckctl init --fleet-dir {path.parent}, and give the ducks "
            "fleet.pub",
        )
    return UsageError(
        f"key file {path} does not hold {expected}",
        f"make one: duckctl init --fleet-dir {path.parent} (after moving this file away)",
    )
