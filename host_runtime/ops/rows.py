"""Decode rows one by one, so that a row's bits do not depend on how many rows go together.

A matrix library picks another algorithm for one row than for two, and so another summation order:
the same token would get other low bits in a two-row step (MTP: token and draft) than in a one-row
step, and a close argmax could tip. With few rows every row therefore runs alone, on tensors of the
same shapes and alignment as in a one-row step; greedy output is then the same with MTP on and off.
Prefill chunks are cut the same in both modes and go through whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

ROWS_ALONE_MAX = 8  # up to here rows run one by one; longer chunks only occur in prefill
_ALIGNMENT_BYTES = 64  # what the allocator gives a fresh tensor


def by_rows(
    function: Callable[..., tuple[torch.Tensor, ...]], *tensors: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """function(*tensors), called row by row if there are few rows; outputs joined along rows.

    All tensors share their first size n; each output of `function` has its input's rows first.
    Rows are visited in order: a function that appends to a cache sees them as single steps would.
    """
    count = tensors[0].shape[0]
    if count > ROWS_ALONE_MAX:
        return function(*tensors)
    return each_row([function] * count, *tensors)


def each_row(
    functions: Sequence[Callable[..., tuple[torch.Tensor, ...]]], *tensors: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Row i of all tensors through functions[i], each row alone; outputs joined along rows."""
    count = len(functions)
    outputs = [
        function(*(_alone(tensor, row, count) for tensor in tensors))
        for row, function in enumerate(functions)
    ]
    if count == 1:
        return outputs[0]
    return tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))


def _alone(tensor: torch.Tensor, row: int, count: int) -> torch.Tensor:
    single = tensor if count == 1 else tensor[row : row + 1]
    return single if single.data_ptr() % _ALIGNMENT_BYTES == 0 else single.clone()
