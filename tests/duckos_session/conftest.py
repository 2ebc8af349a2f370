"""Fixtures of duckos' session tests: kernels, and guests that many tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "duckd"))

from duckd_process import KERNELS, build_kernel


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """kernel("echo", "REFUSE_START"): the bytes of a test kernel, compiled once."""
    folder = tmp_path_factory.mktemp("kernels")
    built: dict[tuple[str, ...], bytes] = {}

    def build(name: str, *defines: str) -> bytes:
        key = (name, *defines)
        if key not in built:
            built[key] = build_kernel(KERNELS / f"{name}.c", folder / f"{len(built)}.elf", *defines)
        return built[key]

    return build
