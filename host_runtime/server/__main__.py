"""``python -m host_runtime.server --config RUN.json``: load the model, then serve it."""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from host_runtime.config import load_config
from host_runtime.errors import HostError
from host_runtime.server.api_key import read_api_key
from host_runtime.server.port import bind
from host_runtime.server.progress import say
from host_runtime.server.run_config import RunConfig, check_for_model, parse_run_file
from host_runtime.server.tokens import ChatTokenizer

PR_SET_PDEATHSIG = 1  # linux/prctl.h


class _StoppedError(BaseException):
    """SIGTERM or SIGINT came while the server was starting."""


def main() -> int:
    """Exit codes: 0 stopped by SIGTERM or SIGINT, 1 failure (said on stderr), 2 bad usage."""
    parent = os.getppid()
    parser = argparse.ArgumentParser(prog="python -m host_runtime.server", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="run file (JSON)")
    arguments = parser.parse_args()
    try:
        _stop_on_signals()
        _die_with(parent)
        return run(parse_run_file(arguments.config))
    except _StoppedError:
        say("stopped")
        return 0
    except HostError as error:
        say(f"error: {error.message}")
        if error.hint:
            say(f"  hint: {error.hint}")
        return 1


def run(config: RunConfig) -> int:
    """Check what is cheap to check, then load, then serve until a signal."""
    logging.basicConfig(
        stream=sys.stderr,
        level=config.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if config.log_level != "debug":
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
    listener = bind(config.host, config.port)
    api_key = read_api_key(config.api_key_file, config.host)
    check_for_model(config, load_config(config.model_dir))
    tokenizer = ChatTokenizer(config.model_dir / "tokenizer.json")
    # torch is imported here: wrong arguments and a taken port are told without waiting for it.
    from host_runtime.server.lifecycle import serve
    from host_runtime.server.startup import build_service, start_machinery

    machinery = start_machinery(config)
    try:
        engine = machinery.engine
        requests_max = engine.max_active + engine.max_queue
        serve(build_service(config, machinery, tokenizer), listener, api_key, requests_max)
    finally:
        _stop_on_signals()  # the event loop has put the defaults back
        machinery.close()
    say("stopped")
    return 0


def _stop_on_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)


def _die_with(parent: int) -> None:
    """Get SIGTERM when the process that started us ends, also if it has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        signal.raise_signal(signal.SIGTERM)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _StoppedError


if __name__ == "__main__":
    sys.exit(main())
