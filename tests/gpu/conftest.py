"""Where the tests of the CUDA path run: on a GPU, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import importlib.util
import os

import torch

# Before Triton is imported; on a machine without CUDA its kernels can only be interpreted.
if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
