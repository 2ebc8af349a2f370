"""Proves that a wrong run file is refused with the key, the value and what was expected."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_kit import DUCKLET

from host_runtime.config import load_config
from host_runtime.server.api_key import read_api_key
from host_runtime.server.errors import StartupError
from host_runtime.server.run_config import check_for_model, parse_run_file, remote_files

MINIMAL: dict[str, Any] = {
    "schema_version": 1,
    "model_dir": str(DUCKLET),
    "model_name": "ducklet",
    "experts": "local",
}


def write(folder: Path, document: object) -> Path:
    path = folder / "run.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_minimal_run_file_gets_the_documented_defaults(tmp_path: Path) -> None:
    config = parse_run_file(write(tmp_path, MINIMAL))
    assert (config.host, config.port, config.mtp, config.max_queue) == ("127.0.0.1", 8000, True, 16)
    assert (config.call_deadline_ms, config.prefill_chunk, config.threads) == (3000, None, None)
    assert config.poll == "block"
    assert config.model_dir == DUCKLET


def test_a_full_run_file_is_read_and_relative_paths_start_at_its_folder(tmp_path: Path) -> None:
    for name in ("fleet.json", "cache.json", "k.elf", "t.so", "key"):
        (tmp_path / name).write_text("x")
    document = {
        **MINIMAL,
        "host": "0.0.0.0",
        "port": 0,
        "experts": "remote",
        "fleet_file": "fleet.json",
        "cache_file": str(tmp_path / "cache.json"),
        "kernel_file": "k.elf",
        "transport_library": "t.so",
        "mtp": False,
        "max_context": 512,
        "max_queue": 4,
        "activation_dtype": "bf16",
        "result_dtype": "f32",
        "call_deadline_ms": 500,
        "poll": "spin",
        "prefill_chunk": 32,
        "threads": 2,
        "faults": {"drop": 0.05, "duplicate": 0, "reorder": 0.05, "delay_us": 10, "seed": 3},
        "api_key_file": "key",
        "log_level": "debug",
    }
    config = parse_run_file(write(tmp_path, document))
    assert remote_files(config).kernel == tmp_path / "k.elf"
    assert config.faults is not None
    assert (config.faults.drop, config.faults.seed, config.faults.corrupt) == (0.05, 3, 0.0)


BAD: list[tuple[Any, str]] = [
    ("{", "not JSON"),
    ([], "expected a JSON object, found list"),
    ({**MINIMAL, "modle_dir": "x"}, 'unknown key "modle_dir", did you mean "model_dir"?'),
    ({**MINIMAL, "faults": {"dorp": 1}}, 'unknown key "faults.dorp", did you mean "faults.drop"?'),
    ({**MINIMAL, "schema_version": 2}, "schema_version is 2, this server reads 1"),
    ({**MINIMAL, "port": 70000}, '"port"'),
    ({**MINIMAL, "port": "8000"}, '"port"'),
    ({**MINIMAL, "experts": "cloud"}, "\"experts\": Input should be 'remote' or 'local'"),
    ({**MINIMAL, "faults": {"drop": 1.5}}, '"faults.drop"'),
    ({**MINIMAL, "model_name": "two words"}, '"model_name"'),
    ({**MINIMAL, "model_dir": "nowhere"}, "nowhere is not a folder"),
    ({**MINIMAL, "api_key_file": "nokey"}, '"api_key_file": there is no file'),
    ({**MINIMAL, "experts": "remote"}, '"fleet_file" is missing, and "experts": "remote" needs it'),
    ({**MINIMAL, "experts": "remote", "fleet_file": "no.json"}, '"fleet_file": there is no file'),
    ({k: v for k, v in MINIMAL.items() if k != "experts"}, '"experts": Field required'),
]


@pytest.mark.parametrize(("document", "text"), BAD, ids=lambda v: str(v)[-45:])
def test_mistakes_are_named(tmp_path: Path, document: Any, text: str) -> None:
    path = write(tmp_path, document)
    with pytest.raises(StartupError) as caught:
        parse_run_file(path)
    assert str(path) in caught.value.message
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("changes", "layers", "text", "hint"),
    [
        ({"max_context": 2049}, 1, "max_context is 2049, expected 2 to 2048", "--max-context 2048"),
        ({}, 0, "has no MTP module", "--no-mtp"),
        ({"max_context": 2048}, 1, "", ""),
        ({"max_context": None, "mtp": False}, 0, "", ""),
    ],
)
def test_what_the_model_cannot_do_is_named_with_the_option(
    tmp_path: Path, changes: dict[str, Any], layers: int, text: str, hint: str
) -> None:
    """Before anything of it is loaded, here or on ducks."""
    config = parse_run_file(write(tmp_path, {**MINIMAL, **changes}))
    model = replace(load_config(DUCKLET), num_nextn_predict_layers=layers)
    if not text:
        check_for_model(config, model)
        return
    with pytest.raises(StartupError, match=text) as caught:
        check_for_model(config, model)
    assert hint in caught.value.hint


def test_a_missing_run_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"can't read the run file .*gone\.json"):
        parse_run_file(tmp_path / "gone.json")


def test_api_key_files_must_be_private_and_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "key"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o644)
    with pytest.raises(StartupError, match="other users can read"):
        read_api_key(path, "127.0.0.1")
    path.chmod(0o600)
    assert read_api_key(path, "127.0.0.1") == "0123456789abcdef"
    path.write_text("short")
    with pytest.raises(StartupError, match="at least 16"):
        read_api_key(path, "127.0.0.1")
    path.write_bytes(b"\xff\xfe" * 20)
    with pytest.raises(StartupError, match="ASCII characters") as caught:
        read_api_key(path, "127.0.0.1")
    assert caught.value.hint
    for unreadable in (tmp_path, tmp_path / "gone"):
        with pytest.raises(StartupError, match="can't read the API key") as caught:
            read_api_key(unreadable, "127.0.0.1")
        assert caught.value.hint
    capsys.readouterr()
    assert read_api_key(None, "127.0.0.1") is None
    assert capsys.readouterr().err == ""
    assert read_api_key(None, "0.0.0.0") is None
    assert "there is no API key" in capsys.readouterr().err
