"""What can be told of a command line before anything slow begins: conversion, loading, ducks."""

from __future__ import annotations

import json
import os
from pathlib import Path

from duckctl.errors import UsageError
from duckctl.rights import refusal
from duckctl.serving import ServeOptions

# As host_runtime/server/api_key.py takes them.
API_KEY_CHARACTERS_MIN = 16
API_KEY_BYTES_MAX = 1 << 16
HOST_WEIGHTS_INDEX = "host.json"


def check_serve_options(options: ServeOptions) -> None:
    """Raises UsageError for what the server would refuse after the weights have been converted."""
    if options.api_key_file is not None:
        _check_api_key(options.api_key_file)
    if options.host_weights is not None:
        _check_host_weights(options.host_weights, options.device)
    if options.max_context is not None:
        _check_max_context(options.max_context, options.model_dir)


def check_export_folder(folder: Path) -> None:
    """Raises UsageError when host weights cannot be written there, as far as rights tell."""
    place = folder.absolute()
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise UsageError(f"--host-weights {folder}: {place} is not a folder", "name another one")
    told = refusal(place)
    if told is not None:
        raise UsageError(f"--host-weights {folder}: {told[0]}", "name another folder")


def _check_api_key(path: Path) -> None:
    if not path.is_file():
        raise UsageError(f"there is no key file {path}", "--api-key-file names a file of one line")
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(API_KEY_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"--api-key-file: cannot read {path}: {error.strerror}") from error
    if mode & 0o077:
        raise UsageError(
            f"--api-key-file: other users can read {path}", f"make it yours: chmod 600 {path}"
        )
    key = content.decode("utf-8", errors="replace").strip()
    if len(key) < API_KEY_CHARACTERS_MIN or not key.isascii() or not key.isprintable():
        raise UsageError(
            f"--api-key-file: {path} does not hold one line of at least "
            f"{API_KEY_CHARACTERS_MIN} ASCII characters",
            "make one with: openssl rand -hex 24",
        )


def _check_host_weights(folder: Path, device: str) -> None:
    if device == "cpu":
        raise UsageError("--host-weights are for the card, which --device cpu does not use")
    if not (folder / HOST_WEIGHTS_INDEX).is_file():
        raise UsageError(
            f"--host-weights: there is no {HOST_WEIGHTS_INDEX} in {folder}",
            "duckctl shard-weights MODEL --host-weights FOLDER writes it",
        )


def _check_max_context(tokens: int, model_dir: Path) -> None:
    """A config.json that does not tell its bound is the server's to judge."""
    try:
        config = json.loads((model_dir / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    longest = config.get("max_position_embeddings") if isinstance(config, dict) else None
    if isinstance(longest, int) and tokens > longest:
        raise UsageError(
            f"--max-context {tokens} is more than {model_dir.name} can do", f"at most {longest}"
        )
