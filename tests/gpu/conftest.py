"""Where the tests of the CUDA path run: on a GPU, else on the CPU, where Triton's interpreter and
an emulator of the CUDA C++ kernels stand in for it."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch
from emulated import EMULATED, emulator, replace_compiled

HAS_TRITON = importlib.util.find_spec("triton") is not None

# Before Triton is imported; on a machine without CUDA its kernels can only be interpreted.
if HAS_TRITON and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

if torch.cuda.is_available():
    ALL, CPP, COMPILED = ["cuda", "triton"], ["cuda", "triton"], ["cuda"]
else:
    first, *others = EMULATED
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in ("triton", *others)]
    ALL, CPP, COMPILED = [first, *slow], [first, *slow[1:]], [first, *slow[1:]]


@pytest.fixture(scope="session")
def emulators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Filled when needed: the kernels' sources, compiled for this CPU."""
    return {"folder": tmp_path_factory}


def use_kernels(
    request: pytest.FixtureRequest,
    emulators: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Which kernels operations run: CUDA C++ (on the CPU: emulated), or what stands in where they
    cannot be had."""
    name = str(request.param)
    if name == "triton":
        replace_compiled(monkeypatch, None)
    elif name in EMULATED:
        if not HAS_TRITON:
            pytest.skip("the package triton is not installed")
        replace_compiled(monkeypatch, emulator(emulators, name))
    return name


kernels = pytest.fixture(params=ALL)(use_kernels)
# Without what Triton's interpreter on the CPU cannot do.
cpp_kernels = pytest.fixture(params=CPP)(use_kernels)
# CUDA C++ only.
compiled_kernels = pytest.fixture(params=COMPILED)(use_kernels)
