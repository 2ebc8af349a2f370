"""Expert calls in CUDA C++: choice and payload beside a product, and the answer that is added."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpu_kit import DEVICE, finish, fp8, needs_cuda, needs_triton, normal, pinned, relative_error

from host_runtime.ops.norm import rms_norm
from host_runtime.ops.router import choose_experts

pytestmark = [needs_triton, pytest.mark.usefixtures("compiled_kernels")]
SIZE = 7168


def small_matrix() -> Any:
    from host_runtime.ops.matrix import Matrix

    codes, scale, _ = fp8(3, 64, 256)
    return Matrix(codes, scale, torch.empty(0, 256, dtype=torch.bfloat16, device=DEVICE))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("experts", "groups", "top_k"), [(256, 8, 8), (16, 4, 4), (512, 1, 10)])
def test_choice_beside_a_product(experts: int, groups: int, top_k: int, seed: int) -> None:
    from host_runtime.ops.gpu.linear import partial_linear
    from host_runtime.ops.gpu.router import RouteCall, route_beside

    chosen = max(1, groups // 2)
    config: Any = SimpleNamespace(
        n_routed_experts=experts, n_group=groups, topk_group=chosen,
        num_experts_per_tok=top_k, norm_topk_prob=seed % 2 == 0, routed_scaling_factor=2.5,
    )  # fmt: skip
    logits, bias = normal(seed, experts), normal(seed + 100, experts) * 0.1 - 0.7
    if seed == 7:
        logits = logits.round()  # ties: the lower expert wins
        bias.zero_()
    ids = pinned(torch.full((top_k,), -1, dtype=torch.int16))
    weights = pinned(torch.full((top_k,), torch.nan))
    sequence = torch.tensor([41, 0, 0, 0], dtype=torch.int32, device=DEVICE)
    flags = pinned(torch.zeros(32, dtype=torch.int32))
    beside = route_beside(logits, bias, config, ids, weights, RouteCall(sequence, flags, 9))
    assert beside is not None
    x = normal(seed + 200, 1, 256)
    out = torch.full((1, 1, 64), torch.nan, device=DEVICE)
    partial_linear(x, small_matrix(), out, route=beside)
    finish()
    alone = torch.empty_like(out)
    assert torch.equal(partial_linear(x, small_matrix(), alone), out)
    wanted, wanted_weights = choose_experts(
        logits.sigmoid()[None], bias, group_count=groups, chosen_groups=chosen, top_k=top_k,
        normalise=config.norm_topk_prob, scaling_factor=2.5,
    )  # fmt: skip
    assert ids.tolist() == wanted[0].tolist()
    assert relative_error(weights, wanted_weights[0].cpu()) < 1e-5
    assert (int(sequence[0]), flags[:2].tolist()) == (42, [42, 9])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("size", [260, SIZE])
def test_payload_beside_a_product(size: int, dtype: torch.dtype) -> None:
    from host_runtime.ops.gpu.linear import linear
    from host_runtime.ops.gpu.router import route_payload

    x, gain = normal(1, size) * 5, normal(2, size)
    payload = pinned(torch.full((size,), torch.nan, dtype=dtype))
    beside = route_payload(x, gain, 1e-6, payload)
    assert beside is not None
    linear(normal(4, 1, 256), small_matrix(), route=beside)
    finish()
    limit = 1e-6 if dtype == torch.float32 else 4e-3
    assert relative_error(payload, rms_norm(x, gain, 1e-6).cpu()) < limit


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("size", [260, SIZE])
def test_sums_without_a_call(size: int, parts: int) -> None:
    from host_runtime.ops.gpu.mailbox import add_parts, adds_parts

    x, added = normal(1, 1, size), normal(2, parts, size)
    kernels = adds_parts(x)
    assert kernels is not None
    expected = x.double() + added.double().sum(0)
    add_parts(kernels, x, added)
    assert relative_error(x, expected) < 1e-6


def test_answers_are_waited_for_and_added() -> None:
    """Twenty calls, each answered by a thread after the kernel was started."""
    from host_runtime.ops.gpu.mailbox import (
        ANSWERED,
        FLAG_WORDS,
        SEQUENCE_WORDS,
        Answer,
        add_parts,
        adds_parts,
    )

    flags = pinned(torch.zeros(FLAG_WORDS, dtype=torch.int32))
    result = pinned(torch.zeros(1, SIZE))
    sequence = torch.zeros(SEQUENCE_WORDS, dtype=torch.int32, device=DEVICE)
    answered = ctypes.c_int32.from_address(flags[ANSWERED:].data_ptr())
    x, added = normal(1, 1, SIZE), normal(2, 2, SIZE)
    kernels = adds_parts(x)
    assert kernels is not None
    for call in range(1, 21):
        sequence[0] = call
        value = torch.full((1, SIZE), float(call))
        expected = x + (added.sum(0, keepdim=True) + value.to(DEVICE))
        finish()

        def answer(value: torch.Tensor = value, call: int = call) -> None:
            result.copy_(value)
            answered.value = call

        thread = threading.Timer(0.002, answer)
        thread.start()
        add_parts(kernels, x, added, Answer(sequence, flags, result))
        finish()
        thread.join()
        assert torch.equal(x, expected)
    assert sequence.tolist()[:3] == [20, 0, 20]


@needs_cuda
def test_old_cards_would_be_served_too() -> None:
    """The sources compile for every architecture that the capability check accepts."""
    from host_runtime.ops.gpu.compiled import SOURCES, compile_source, load_nvrtc

    nvrtc = load_nvrtc()
    assert nvrtc is not None
    for capability in ((8, 0), (8, 9), (9, 0), (12, 0)):
        for name in SOURCES:
            assert len(compile_source(nvrtc, name, capability)) > 0
