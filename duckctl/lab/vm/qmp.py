"""QEMU's machine protocol: one command to a running guest (qemu.org, "QMP specification")."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from duckctl.lab.state import LabError
from duckctl.process import wait_until

ANSWER_TIMEOUT_S = 5.0
START_TIMEOUT_S = 3.0  # a QEMU that was started a moment ago has no socket yet
LINE_BYTES_MAX = 1 << 20
LINES_MAX = 1000  # events come between question and answer


class QmpError(LabError):
    """QEMU could not be asked, or refused."""


def ask(socket_file: Path, command: str, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
    """Sends one command and gives its return value. Raises QmpError."""
    # The folder is opened, because a socket's own path may have only 107 bytes (unix(7)).
    try:
        folder = os.open(socket_file.parent, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise QmpError(f"no guest at {socket_file}: {error.strerror}") from error
    try:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(timeout_s)
            place = f"/proc/self/fd/{folder}/{socket_file.name}"
            if not wait_until(lambda: channel.connect_ex(place) == 0, START_TIMEOUT_S):
                raise QmpError(f"the guest at {socket_file} does not listen")
            with channel.makefile("rwb") as stream:
                stream.readline(LINE_BYTES_MAX)  # the greeting
                _exchange(stream, "qmp_capabilities")
                return _exchange(stream, command)
    except OSError as error:
        raise QmpError(f"the guest at {socket_file} does not answer: {error}") from error
    finally:
        os.close(folder)


def _exchange(stream: Any, command: str) -> Any:
    stream.write(json.dumps({"execute": command}).encode() + b"\n")
    stream.flush()
    for _ in range(LINES_MAX):
        line = stream.readline(LINE_BYTES_MAX)
        if not line:
            raise QmpError(f"QEMU closed the connection during '{command}'")
        answer = json.loads(line)
        if "return" in answer:
            return answer["return"]
        if "error" in answer:
            raise QmpError(f"QEMU refused '{command}': {answer['error'].get('desc')}")
    raise QmpError(f"QEMU answered '{command}' with nothing but {LINES_MAX} events")
