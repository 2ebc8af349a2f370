"""Malformed directories and calls end with a status and a text, never a fault."""

from __future__ import annotations

import re

import numpy as np
import packing
import pytest
import running
from packing import FP8, FP9
from running import CALL, MAGIC

from duckctl.bench.harness import scratch_bytes

SEED = 20260103
HIDDEN, ROWS, EXPERTS, TOKENS, TOP_K = 256, 64, 4, 3, 2


@pytest.fixture(scope="module")
def layer() -> running.Layer:
    rng = np.random.default_rng(SEED)
    return running.make_layer(
        rng, FP8, hidden=HIDDEN, moe=64, first_row=0, rows=ROWS, experts=EXPERTS
    )


def good_call(layer: running.Layer) -> bytes:
    rng = np.random.default_rng(SEED)
    return running.make_call(layer.layer, *running.random_call(rng, HIDDEN, TOKENS, TOP_K, EXPERTS))


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        (0, 1, f"call: magic is 1, expected {MAGIC}"),
        (1, 4, "call: layer is 4, expected one of the directory's layers"),
        (2, 0, "call: token_count is 0, expected 1 to 512"),
        (2, 513, "call: token_count is 513, expected 1 to 512"),
        (2, 2**32 - 1, "call: token_count is 4294967295, expected 1 to 512"),
        (3, 0, "call: top_k is 0, expected 1 to 16"),
        (3, 17, "call: top_k is 17, expected 1 to 16"),
        (4, 128, "call: hidden_size is 128, expected 256"),
        (5, 3, "call: activation_dtype is 3, expected 0 (f32), 1 (bf16) or 2 (fp8)"),
        (6, 9, "call: result_dtype is 9, expected 0 (f32) or 1 (bf16)"),
        (7, 3, "call: body is 3, expected one that this kernel has"),
        (8, 64, "call: activation_offset is 64, expected 128"),
        (9, 5, "call: reserved field is 5, expected 0"),
    ],
)
def test_each_field_of_a_call(layer: running.Layer, field: int, value: int, text: str) -> None:
    message = bytearray(good_call(layer))
    fields = list(CALL.unpack_from(message))
    fields[field] = value
    CALL.pack_into(message, 0, *fields)
    with running.Kernel(layer.region, body="int", fmt=FP8, cores=2) as kernel:
        with pytest.raises(running.KernelRefusedError) as caught:
            kernel.call_raw(bytes(message), TOKENS * HIDDEN * 4)
        assert str(caught.value) == text
        kernel.call_raw(good_call(layer), TOKENS * HIDDEN * 4)  # the session goes on


def test_lengths_expert_ids_and_padding(layer: running.Layer) -> None:
    good = good_call(layer)
    output = TOKENS * HIDDEN * 4
    with running.Kernel(layer.region, body="int", fmt=FP8, cores=2) as kernel:
        for length in (0, 1, 31, 32, 63, len(good) - 1):
            with pytest.raises(running.KernelRefusedError, match="call: length is"):
                kernel.call_raw(good[:length], output)
        with pytest.raises(running.KernelRefusedError, match="call: length is"):
            kernel.call_raw(good + b"\0", output)
        with pytest.raises(running.KernelRefusedError, match="the result needs 3072 bytes"):
            kernel.call_raw(good, output - 1)
        bad = bytearray(good)
        bad[32:34] = (4).to_bytes(2, "little")
        with pytest.raises(running.KernelRefusedError, match="expert is 4, expected less than 4"):
            kernel.call_raw(bytes(bad), output)
        bad = bytearray(good)
        bad[32 + 12] = 1
        with pytest.raises(running.KernelRefusedError, match="padding byte is 1"):
            kernel.call_raw(bytes(bad), output)
        kernel.call_raw(good, output)


def test_too_little_scratch_is_told_per_call(layer: running.Layer) -> None:
    needed = scratch_bytes(HIDDEN, ROWS, TOKENS, TOP_K, 2)
    for scratch, fine in ((needed, True), (needed - 4096, False)):
        with running.Kernel(layer.region, body="int", fmt=FP8, cores=2, scratch=scratch) as kernel:
            if fine:
                kernel.call_raw(good_call(layer), TOKENS * HIDDEN * 4)
                continue
            with pytest.raises(running.KernelRefusedError, match=f"needs {needed} bytes of scr"):
                kernel.call_raw(good_call(layer), TOKENS * HIDDEN * 4)


def test_random_bytes_in_calls(layer: running.Layer) -> None:
    """2000 calls with random damage: each is refused or gives finite-sized output; none faults."""
    rng = np.random.default_rng(SEED)
    good = good_call(layer)
    refused = 0
    with running.Kernel(layer.region, body="int", fmt=FP8, cores=2) as kernel:
        for _ in range(2000):
            message = bytearray(good)
            for _ in range(int(rng.integers(1, 4))):
                message[int(rng.integers(0, 64))] = int(rng.integers(0, 256))
            cut = int(rng.integers(0, len(message))) if rng.random() < 0.2 else len(message)
            try:
                output = kernel.call_raw(bytes(message[:cut]), TOKENS * HIDDEN * 4)
            except running.KernelRefusedError as error:
                assert str(error).startswith("call: ")
                refused += 1
            else:
                assert len(output) in (TOKENS * HIDDEN * 4, TOKENS * HIDDEN * 2)
        assert refused > 1000
        kernel.call_raw(good, TOKENS * HIDDEN * 4)


@pytest.mark.parametrize("elf", ["experts-scalar.elf", "experts-avx2.elf"])
def test_directories_that_do_not_add_up(layer: running.Layer, elf: str) -> None:
    """Each 32-bit field of the directory set to several values; offsets as in fp9.h."""
    fields = {0: "magic", 4: "layout_version", 8: "format", 12: "hidden_size", 20: "rows"}
    fields |= {24: "expert_count", 28: "layer_count", 32: "record_bytes", 40: "segment_bytes"}
    fields |= {48: "region_bytes", 60: "reserved", 1000: "reserved", 4092: "reserved"}
    for offset, name in fields.items():
        for value in (0, 7, 2**31, 2**32 - 1):
            region = bytearray(layer.region)
            if region[offset : offset + 4] == value.to_bytes(4, "little"):
                continue
            region[offset : offset + 4] = value.to_bytes(4, "little")
            with pytest.raises(running.KernelRefusedError, match="weights: ") as caught:
                running.Kernel(bytes(region), body="", fmt=FP8, elf=elf).__enter__()
            assert name in str(caught.value) or "expected" in str(caught.value)


def test_truncated_weights(layer: running.Layer) -> None:
    for size in (0, 1, 4095, 4096, len(layer.region) - 1):
        with pytest.raises(running.KernelRefusedError, match="size of the weights region"):
            running.Kernel(layer.region[:size], body="int", fmt=FP8).__enter__()


@pytest.mark.parametrize("fmt", [FP8, FP9])
def test_hostile_float_modes_are_undone(fmt: int) -> None:
    """Cores that start with DAZ, FTZ and round-to-zero give the same bits as clean ones."""
    rng = np.random.default_rng(SEED)
    layer = running.make_layer(rng, fmt, hidden=256, moe=64, first_row=0, rows=64, experts=4)
    x, ids, weights = running.random_call(rng, 256, 5, 2, 4)
    results = []
    for mxcsr in (0, 0x1F80 | 0x8040 | 0x6000):
        with running.Kernel(
            layer.region, body=running.BODIES_OF[fmt][1], fmt=fmt, cores=2, mxcsr=mxcsr
        ) as kernel:
            results.append(kernel.experts(layer.layer, x, ids, weights))
    assert np.array_equal(results[0], results[1])


def test_one_shot_and_many_calls(layer: running.Layer) -> None:
    good = good_call(layer)
    with running.Kernel(layer.region, body="int", fmt=FP8, cores=3, one_shot=True) as kernel:
        first = kernel.call_raw(good, TOKENS * HIDDEN * 4)
    with running.Kernel(layer.region, body="int", fmt=FP8, cores=3) as kernel:
        assert re.fullmatch(
            r"body (int|cvt), GEMM from \d+ tokens; ticks: int \d+, cvt \d+", kernel.text
        )
        for _ in range(50):
            assert kernel.call_raw(good, TOKENS * HIDDEN * 4) == first


def test_several_layers_in_one_region() -> None:
    rng = np.random.default_rng(SEED)
    layers = [
        running.make_layer(
            rng, FP9, hidden=128, moe=32, first_row=0, rows=32, experts=3, layer=number
        )
        for number in (1, 4, 61)
    ]
    head = packing.directory(FP9, 128, 32, 0, 32, 3, [1, 4, 61])
    region = head + b"".join(part.region[4096:] for part in layers)
    x, ids, weights = running.random_call(rng, 128, 2, 2, 3)
    with running.Kernel(region, body="wide", fmt=FP9) as together:
        for part in layers:
            with running.Kernel(part.region, body="wide", fmt=FP9) as alone:
                wanted = alone.experts(part.layer, x, ids, weights)
            assert np.array_equal(together.experts(part.layer, x, ids, weights), wanted)
