"""Where the tests of the CUDA path run: on a GPU, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import importlib
import importlib.util
import os

import pytest
import torch

# Before Triton is imported; on a machine without CUDA its kernels can only be interpreted.
if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(params=["cuda", "triton"] if torch.cuda.is_available() else ["triton"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which kernels an operation runs: CUDA C++, or what stands in where they cannot be had."""
    if request.param == "triton":
        for name in ("attend", "index", "mailbox", "norm", "prepare", "product"):
            module = importlib.import_module(f"host_runtime.ops.gpu.{name}")
            monkeypatch.setattr(module, "compiled", lambda device: None)
    return str(request.param)
