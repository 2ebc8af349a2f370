"""The probe prints one JSON document for any state of the fleet, quickly and without torch."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from duck_process import running_ducks
from fake_duck import FakeDuck
from fleet_files import fleet_content, write_json, write_key

from duckctl.native import native_path
from host_runtime import wire


def run_probe(fleet_file: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "host_runtime.fleet.probe", "--fleet", str(fleet_file)]
    command += ["--library", str(native_path("libduckhost.so")), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def document(fleet_file: Path, *more: str) -> dict[str, Any]:
    done = run_probe(fleet_file, *more)
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads(done.stdout)
    assert isinstance(content, dict)
    return content


def test_live_ducks(tmp_path: Path) -> None:
    with running_ducks(tmp_path, 3) as (ducks, _):
        started = time.monotonic()
        answer = document(tmp_path / "fleet.json", "--stats")
        seconds = time.monotonic() - started
    assert answer["schema_version"] == 1
    assert answer["build"] == ducks[0].build
    for duck, told in zip(ducks, answer["ducks"], strict=True):
        assert (told["name"], told["name_told"]) == (duck.name, duck.name)
        assert (told["reachable"], told["error"]) == (True, None)
        assert (told["endpoint"], told["port"]) == (f"127.0.0.1:{duck.port}", duck.port)
        assert (told["state"], told["build_ok"], told["weights_id"]) == ("idle", True, None)
        assert (told["protocol_version"], told["platform"]) == (wire.WIRE_VERSION, "linux-process")
        assert told["core_count"] == 1 and told["memory_bytes"] > 0
        assert told["stats"]["packets_received"] >= 1
        assert set(told["stats"]) == {f[0] for f in wire.Stats._fields_} - {"reserved"}
        assert told["round_trip_us"] > 0
    # The start of Python and three answers over loopback; the bound is generous for busy machines.
    assert seconds < 3


def test_dead_duck(tmp_path: Path) -> None:
    with running_ducks(tmp_path, 2) as (ducks, _):
        ducks[0].kill()
        answer = document(tmp_path / "fleet.json", "--timeout", "0.5")
    dead, live = answer["ducks"]
    assert (dead["reachable"], dead["state"], dead["stats"]) == (False, None, None)
    assert "d01" in dead["error"]
    assert live["reachable"] is True
    assert set(live) == set(dead)


def test_duck_of_another_protocol_version(tmp_path: Path) -> None:
    key_file = write_key(tmp_path)
    with FakeDuck("d01", wire.WIRE_VERSION + 1) as other:
        fleet_file = write_json(tmp_path / "f.json", fleet_content(key_file, [other.port]))
        answer = document(fleet_file, "--stats")
    told = answer["ducks"][0]
    assert (told["reachable"], told["state"]) == (True, None)
    assert f"protocol version {wire.WIRE_VERSION + 1}" in told["error"]


def test_log_of_one_duck(tmp_path: Path) -> None:
    with running_ducks(tmp_path, 2):
        answer = document(tmp_path / "fleet.json", "--log", "d02")
    assert "log" not in answer["ducks"][0]
    assert "started" in answer["ducks"][1]["log"]


def test_wrong_input(tmp_path: Path) -> None:
    with running_ducks(tmp_path, 1) as (_, fleet):
        done = run_probe(tmp_path / "fleet.json", "--reboot", "d09")
        assert done.returncode == 1
        assert done.stderr == "error: the fleet has no duck 'd09'\n  hint: its ducks: d01\n"
        done = run_probe(tmp_path / "nothing.json")
        assert done.returncode == 1 and "nothing.json: cannot be read" in done.stderr
        fleet.key_file.chmod(0o644)
        done = run_probe(tmp_path / "fleet.json")
        assert done.returncode == 1 and "chmod 600" in done.stderr
    assert run_probe(tmp_path / "fleet.json", "--frobnicate").returncode == 2


@pytest.mark.slow
def test_a_foreign_service_on_the_port(tmp_path: Path) -> None:
    """Something else answers with other bytes: the duck is not reachable, nothing breaks."""
    with running_ducks(tmp_path, 1) as (_, fleet), socket.socket(type=socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        other.settimeout(3)

        def echo() -> None:
            try:
                while True:
                    data, sender = other.recvfrom(9000)
                    other.sendto(data, sender)
            except OSError:
                return

        thread = threading.Thread(target=echo)
        thread.start()
        content = fleet_content(fleet.key_file, [other.getsockname()[1]])
        answer = document(write_json(tmp_path / "f.json", content), "--timeout", "0.5")
        thread.join()
    assert answer["ducks"][0]["reachable"] is False
