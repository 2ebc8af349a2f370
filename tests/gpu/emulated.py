"""The CUDA C++ kernels on a CPU: their sources, compiled with emulator/machine.cuh."""

from __future__ import annotations

import ctypes
import importlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

# Architecture, and whether copies to shared memory arrive as late as they may or at once.
EMULATED = {"emulated": (900, True), "emulated-old": (800, False)}
_EMULATOR = Path(__file__).parent / "emulator" / "machine.cuh"
_KERNEL = re.compile(r'^extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(', re.M)
_PRODUCT = re.compile(r"^PRODUCT\((\d), (\w+), \w+\)$", re.M)
_ERRORS = {1: "its threads wait for each other for ever", 2: "a block wrote behind its memory"}
_ENTRY = """
extern "C" int emulate(const char *name, u32 blocks, u32 threads, u32 bytes, int late,
                       void **arguments) {
    emulator::late = late;
%s    return -1;
}
"""


class EmulatedKernels:
    """As compiled.Kernels, for CPU tensors; a card with few multiprocessors.

    `architecture`: 900, or 800 for what older cards compile; `late`: see machine.cuh.
    """

    device = torch.device("cpu")
    multiprocessors = 7
    shared_per_multiprocessor = 233472

    def __init__(self, folder: Path, architecture: int, late: bool) -> None:
        from host_runtime.ops.gpu import compiled

        self.late, self.shared_per_block = late, 232448
        self._functions: dict[str, Any] = {}
        sources = Path(compiled.__file__).parent
        for name in (*compiled.SOURCES, *compiled.HEADERS):
            shutil.copy(_EMULATOR if name == _EMULATOR.name else sources / name, folder)
        sizes = [
            f"-D{key.upper()}_BYTES={value}" for key, value in compiled.argument_sizes().items()
        ]
        running = [
            (name, _compile(folder, name, [*sizes, f"-DEMULATED_ARCH={architecture}"]))
            for name in compiled.SOURCES
        ]
        for name, process in running:
            _, text = process.communicate()
            assert process.returncode == 0, f"{name}: {text}"
            self._functions[name] = ctypes.CDLL(str(folder / f"{name}.so")).emulate

    def launch(
        self,
        source: str,
        name: str,
        programs: int,
        threads: int,
        shared_bytes: int,
        arguments: Sequence[ctypes.Structure],
    ) -> None:
        """Run a kernel to its end."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        error = self._functions[source](
            name.encode(), programs, threads, shared_bytes, int(self.late), pointers
        )
        assert error == 0, f"{name}: {_ERRORS.get(error, 'no such kernel')}"


def _compile(folder: Path, name: str, options: list[str]) -> subprocess.Popen[str]:
    text = (folder / name).read_text()
    kernels = _KERNEL.findall(text)
    kernels += [f"product_{rows}_{kind}" for rows, kind in _PRODUCT.findall(text)]
    cases = "".join(
        f'    if (!strcmp(name, "{one}")) '
        f"return emulator::launch({one}, blocks, threads, bytes, arguments);\n"
        for one in kernels
    )
    wrapper = folder / f"{name}.cc"
    wrapper.write_text(f'#include "{name}"\n' + _ENTRY % cases)
    command = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-w", "-I", str(folder), *options]
    return subprocess.Popen(
        [*command, str(wrapper), "-o", str(folder / f"{name}.so")],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def emulator(emulators: dict[str, Any], name: str) -> EmulatedKernels:
    """The kernels of that name in EMULATED, compiled once: `emulators` is the fixture."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing, which compiles the emulated kernels")
    if name not in emulators:
        folder: Path = emulators["folder"].mktemp(name)
        emulators[name] = EmulatedKernels(folder, *EMULATED[name])
    found: EmulatedKernels = emulators[name]
    return found


def replace_compiled(monkeypatch: pytest.MonkeyPatch, found: EmulatedKernels | None) -> None:
    """`compiled(device)` gives `found` wherever it is used."""
    for name in ("attend", "index", "mailbox", "norm", "prepare", "product", "split"):
        module = importlib.import_module(f"host_runtime.ops.gpu.{name}")
        monkeypatch.setattr(module, "compiled", lambda device: found)
