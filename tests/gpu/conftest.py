"""Where the tests of the CUDA path run: on a GPU, else on the CPU, where Triton's interpreter and
an emulator of the CUDA C++ kernels stand in for it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None

# Before Triton is imported; on a machine without CUDA its kernels can only be interpreted.
if HAS_TRITON and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Architecture, and whether copies to shared memory arrive as late as they may or at once.
EMULATED = {"emulated": (900, True), "emulated-old": (800, False)}
if torch.cuda.is_available():
    ALL, CPP, COMPILED = ["cuda", "triton"], ["cuda", "triton"], ["cuda"]
else:
    ALL, CPP, COMPILED = ["triton", *EMULATED], list(EMULATED), list(EMULATED)


def replace_compiled(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    """`compiled(device)` gives `found` wherever it is used."""
    for name in ("attend", "index", "mailbox", "norm", "prepare", "product", "split"):
        module = importlib.import_module(f"host_runtime.ops.gpu.{name}")
        monkeypatch.setattr(module, "compiled", lambda device: found)


@pytest.fixture(scope="session")
def emulators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Filled when needed: the kernels' sources, compiled for this CPU."""
    return {"folder": tmp_path_factory}


def emulator(emulators: dict[str, Any], name: str) -> Any:
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing, which compiles the emulated kernels")
    if name not in emulators:
        from emulated import EmulatedKernels

        folder: Path = emulators["folder"].mktemp(name)
        emulators[name] = EmulatedKernels(folder, *EMULATED[name])
    return emulators[name]


def use_kernels(name: str, emulators: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    if name == "triton":
        replace_compiled(monkeypatch, None)
    elif name in EMULATED:
        if not HAS_TRITON:
            pytest.skip("the package triton is not installed")
        replace_compiled(monkeypatch, emulator(emulators, name))
    return name


@pytest.fixture(params=ALL)
def kernels(
    request: pytest.FixtureRequest,
    emulators: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Which kernels an operation runs: CUDA C++ (on the CPU: emulated), or what stands in where
    they cannot be had."""
    return use_kernels(str(request.param), emulators, monkeypatch)


@pytest.fixture(params=CPP)
def cpp_kernels(
    request: pytest.FixtureRequest,
    emulators: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """As `kernels`, but for what Triton's interpreter on the CPU cannot do."""
    return use_kernels(str(request.param), emulators, monkeypatch)


@pytest.fixture(params=COMPILED)
def compiled_kernels(
    request: pytest.FixtureRequest,
    emulators: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """As `kernels`, but CUDA C++ only."""
    return use_kernels(str(request.param), emulators, monkeypatch)
