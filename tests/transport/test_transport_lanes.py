"""Lanes under sanitizers, their messages bit for bit, and the layout that Python sees."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from native_kit import SanitizedObjects, build_sanitized, build_with_library
from test_transport_interface import header_layout, python_layout
from transport_kit import ROOT, running_shelf

from host_runtime import wire
from host_runtime.experts.remote import DTYPES, CallMessage, MessageLayout
from host_runtime.ops import mailbox_words
from host_runtime.transport import lanes

RUN_S_MAX = 240
SEED = 20261130
STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "duckhost_lane": lanes.Lane,
    "duckhost_lane_shape": lanes.LaneShapeWords,
    "duckhost_lane_outcome": lanes.LaneOutcomeWords,
    "duckhost_lane_call": lanes.LaneCall,
}


def run_lanes(folder: Path, kernel: bytes, program: Path, steps: int) -> None:
    """lanes.cc: steps of two lanes under faults, failing calls, refusals, the end."""
    kernel_file = folder / "echo.elf"
    kernel_file.write_bytes(kernel)
    with running_shelf(folder, kernel, [0, 1, 0]) as shelf:
        ports = [str(duck.port) for duck in shelf.ducks]
        command = [str(program), shelf.key.hex(), str(kernel_file), str(steps), *ports]
        result = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert result.returncode == 0, result.stderr[-6000:]
    assert (result.stdout, result.stderr) == ("the lanes are over\n", "")


@pytest.mark.slow
def test_two_lanes_of_a_card(tmp_path: Path, echo_kernel: bytes) -> None:
    run_lanes(tmp_path, echo_kernel, build_with_library("lanes", tmp_path), 40)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(
    tmp_path: Path, echo_kernel: bytes, sanitized_objects: SanitizedObjects, sanitizer: str
) -> None:
    program = build_sanitized("lanes", tmp_path, sanitizer, sanitized_objects)
    run_lanes(tmp_path, echo_kernel, program, 20)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [wire.Dtype.F32, wire.Dtype.BF16, wire.Dtype.FP8])
def test_messages_are_those_of_the_python_path(
    tmp_path: Path, sanitized_objects: SanitizedObjects, dtype: wire.Dtype
) -> None:
    """Random bit patterns: all exponents, subnormal numbers and infinities. Not NaN, whose bits
    differ between torch's own ways; that it stays NaN is shown below."""
    program = build_sanitized("lane_message", tmp_path, "address,undefined", sanitized_objects)
    hidden, top_k, layer = 128 * 800, 8, 61
    generator = np.random.default_rng(SEED)
    rows = generator.integers(0, 1 << 32, hidden, dtype=np.uint32).view(np.float32)
    tame = (generator.standard_normal(hidden) * 2.0 ** generator.integers(-20, 20, hidden)).astype(
        np.float32
    )
    rows[np.isnan(rows)] = np.inf
    rows[hidden // 2 :] = tame[hidden // 2 :]  # an infinity spoils its whole FP8 block
    rows[-128:] = 0
    weights = generator.standard_normal(top_k).astype(np.float32)
    ids = generator.integers(0, 1 << 16, top_k, dtype=np.uint16)

    def native() -> bytes:
        numbers = [hidden, top_k, int(dtype), int(wire.Dtype.F32), layer]
        command, mailbox = [str(program), *map(str, numbers)], (rows, weights, ids)
        sent = b"".join(part.tobytes() for part in mailbox)
        return subprocess.run(command, input=sent, capture_output=True, check=True).stdout

    message = CallMessage(MessageLayout(1, top_k, hidden, dtype), wire.Dtype.F32)
    wide_ids = torch.from_numpy(ids.astype(np.int64))[None]
    message.fill(layer, torch.from_numpy(rows)[None], wide_ids, torch.from_numpy(weights)[None])
    assert native() == message.raw()
    rows[:] = np.nan
    element = DTYPES[dtype]
    begin = MessageLayout(1, top_k, hidden, dtype).activation_offset
    told = bytearray(native()[begin : begin + hidden * element.itemsize])
    assert torch.frombuffer(told, dtype=element).float().isnan().all()


@pytest.mark.parametrize(("compiler", "standard"), [("cc", "c11"), ("c++", "c++17")])
def test_header_and_ctypes_agree(tmp_path: Path, compiler: str, standard: str) -> None:
    told = header_layout(tmp_path, "duckhost_lanes.h", STRUCTURES, compiler, standard)
    assert told == python_layout(STRUCTURES)


def test_numbers_are_those_of_the_headers(tmp_path: Path) -> None:
    """Three sides poll the same words: kernels on the card, the lanes, the emulated ducks."""
    words = {name: getattr(mailbox_words, name) for name in ("POSTED", "LAYER", "ANSWERED")}
    checks = [f"_Static_assert(DUCKHOST_LANE_{name} == {at}, 'w');" for name, at in words.items()]
    checks += [
        f"_Static_assert(DUCKHOST_LANES_MAX == {lanes.LANES_MAX}u, 'lanes');",
        f"_Static_assert(DUCKHOST_LANE_LAYERS_MAX == {lanes.LAYERS_MAX}u, 'layers');",
        f"_Static_assert(DUCKHOST_LANE_CALLS_MAX == {lanes.CALLS_MAX}u, 'calls');",
    ]
    source = tmp_path / "numbers.c"
    text = "#include <duckhost_lanes.h>\n" + "\n".join(checks).replace("'", '"') + "\n"
    source.write_text(text)
    folders = [ROOT / "kernels/include", ROOT / "host_runtime/transport"]
    command = ["cc", "-std=c11", *(f"-I{folder}" for folder in folders), "-c", str(source)]
    subprocess.run([*command, "-o", str(tmp_path / "o")], check=True)
    line = "POSTED, LAYER, ANSWERED, FLAG_WORDS = 0, 1, 16, 32\n"
    for name in ("mailbox_words.py", "gpu/mailbox.py"):
        assert line in (ROOT / "host_runtime/ops" / name).read_text()
    for name in ("echo.c", "card.c"):
        text = (ROOT / "host_runtime/cuda" / name).read_text()
        for word, at in words.items():
            assert f"{word} = {at}" in text, name
