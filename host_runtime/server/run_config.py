"""The run file: everything the server is told, as JSON written by ``duckctl serve``."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from host_runtime.config import ModelConfig
from host_runtime.server.errors import StartupError
from host_runtime.server.limits import REQUEST_DEADLINE_S

SCHEMA_VERSION = 1
RUN_FILE_BYTES_MAX = 1024 * 1024

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Faults(BaseModel):
    """Faults that the host transport injects into the wire (tests and demonstrations)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    drop: Fraction = 0.0
    duplicate: Fraction = 0.0
    reorder: Fraction = 0.0
    corrupt: Fraction = 0.0
    delay_us: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    seed: Annotated[int, Field(ge=0)] = 1


class RunConfig(BaseModel):
    """One run of the server. Paths are absolute or relative to the run file's folder."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: int
    model_dir: Path
    model_name: Annotated[str, Field(pattern=r"^[!-~]{1,200}$")]
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    experts: Literal["remote", "local"]
    fleet_file: Path | None = None
    cache_file: Path | None = None
    kernel_file: Path | None = None
    transport_library: Path | None = None
    mtp: bool = True
    max_context: Annotated[int, Field(ge=2)] | None = None
    max_queue: Annotated[int, Field(ge=0, le=4096)] = 16
    activation_dtype: Literal["f32", "bf16", "fp8"] = "f32"
    result_dtype: Literal["f32"] = "f32"
    poll: Literal["block", "sleep", "spin"] = "block"
    call_deadline_ms: Annotated[int, Field(ge=1, le=600_000)] = 3000
    scrub_pause_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    host_weights: Path | None = None
    prefill_chunk: Annotated[int, Field(ge=1, le=512)] | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    faults: Faults | None = None
    api_key_file: Path | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    request_deadline_s: Annotated[float, Field(gt=0)] = REQUEST_DEADLINE_S


@dataclass(frozen=True)
class RemoteFiles:
    """The files that remote experts need, all of them known to exist."""

    fleet: Path
    cache: Path
    kernel: Path
    library: Path


def parse_run_file(path: Path) -> RunConfig:
    """Read, validate and resolve a run file; every named file must exist."""
    raw, document = _read_json_object(path)
    _check_keys(document, path)
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise StartupError(
            f"{path}: schema_version is {version!r}, this server reads {SCHEMA_VERSION}",
            "use duckctl and host_runtime of the same installation",
        )
    try:
        config = RunConfig.model_validate_json(raw)
    except ValidationError as error:
        raise StartupError(f"{path}: {_describe(error)}", "see docs/reference/api.md") from None
    config = _resolve_paths(config, path.resolve().parent)
    _check_files(config, path)
    return config


def check_for_model(config: RunConfig, model: ModelConfig) -> None:
    """Raise StartupError for what this model cannot do: told before its weights are loaded."""
    longest = model.max_position_embeddings
    if config.max_context is not None and config.max_context > longest:
        raise StartupError(
            f"max_context is {config.max_context}, expected 2 to {longest}, as the model has it",
            f"--max-context {longest} or less; without it: all that the model has",
        )
    if config.mtp and model.mtp_layer is None:
        raise StartupError(
            "MTP is switched on, but the model has no MTP module",
            'serve without it: --no-mtp ("mtp": false in a run file)',
        )


def remote_files(config: RunConfig) -> RemoteFiles:
    """The four files of remote experts (parse_run_file has checked that they are there)."""
    paths = (config.fleet_file, config.cache_file, config.kernel_file, config.transport_library)
    fleet, cache, kernel, library = paths
    if fleet is None or cache is None or kernel is None or library is None:
        raise StartupError('"experts": "remote" needs fleet, cache, kernel and transport files')
    return RemoteFiles(fleet=fleet, cache=cache, kernel=kernel, library=library)


def _read_json_object(path: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise StartupError(
            f"can't read the run file {path}: {error.strerror}",
            "`duckctl serve` writes one; see docs/reference/api.md for its keys",
        ) from None
    if len(raw) > RUN_FILE_BYTES_MAX:
        raise StartupError(f"{path}: {len(raw)} bytes, a run file has at most {RUN_FILE_BYTES_MAX}")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise StartupError(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise StartupError(f"{path}: expected a JSON object, found {type(document).__name__}")
    return raw, document


def _check_keys(document: dict[str, Any], path: Path) -> None:
    scopes: list[tuple[str, dict[str, Any], type[BaseModel]]] = [("", document, RunConfig)]
    if isinstance(document.get("faults"), dict):
        scopes.append(("faults.", document["faults"], Faults))
    for prefix, keys, model in scopes:
        for key in keys:
            if key in model.model_fields:
                continue
            near = difflib.get_close_matches(key, model.model_fields, n=1, cutoff=0.5)
            meant = f', did you mean "{prefix}{near[0]}"?' if near else ""
            raise StartupError(
                f'{path}: unknown key "{prefix}{key}"{meant}',
                f"known keys: {', '.join(model.model_fields)}",
            )


def _describe(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    found = "" if first["type"] == "missing" else f" (found {first['input']!r})"
    return f'"{where}": {first["msg"]}{found}'


_PATH_KEYS = (
    "model_dir",
    "fleet_file",
    "cache_file",
    "kernel_file",
    "transport_library",
    "api_key_file",
    "host_weights",
)


def _resolve_paths(config: RunConfig, base: Path) -> RunConfig:
    changed = {
        key: base / value for key in _PATH_KEYS if (value := getattr(config, key)) is not None
    }
    return config.model_copy(update=changed)


def _check_files(config: RunConfig, path: Path) -> None:
    if not config.model_dir.is_dir():
        raise StartupError(
            f'{path}: "model_dir": {config.model_dir} is not a folder',
            "it must be a Hugging Face model folder with config.json and tokenizer.json",
        )
    if config.host_weights is not None and not (config.host_weights / "host.json").is_file():
        raise StartupError(
            f'{path}: "host_weights": there is no host.json in {config.host_weights}',
            "duckctl shard-weights MODEL --host-weights FOLDER writes it",
        )
    needed = ("fleet_file", "cache_file", "kernel_file", "transport_library")
    for key in (*needed, "api_key_file"):
        value: Path | None = getattr(config, key)
        if value is None:
            if key in needed and config.experts == "remote":
                raise StartupError(
                    f'{path}: "{key}" is missing, and "experts": "remote" needs it',
                    'give it, or set "experts": "local"',
                )
        elif not value.is_file():
            raise StartupError(f'{path}: "{key}": there is no file {value}')
