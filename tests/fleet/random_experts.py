"""Random experts: packed for any number of ducks by libduckpack, and computed in float64."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from fleet_files import LAYERS, cache_content, cut, write_json, write_pieces

from duckctl.native import native_path
from host_runtime import wire

SOURCE_E4M3 = 1


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("row_stride", ctypes.c_uint64),
        ("scale", ctypes.c_void_p),
        ("scale_stride", ctypes.c_uint64),
    ]


class Slice(ctypes.Structure):
    _fields_ = [
        ("format", ctypes.c_uint32),
        ("source", ctypes.c_uint32),
        ("hidden_size", ctypes.c_uint32),
        ("moe_intermediate_size", ctypes.c_uint32),
        ("first_row", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
    ]


class Report(ctypes.Structure):
    _fields_ = [
        ("squared_error", ctypes.c_double * 3),
        ("squared_sum", ctypes.c_double * 3),
        ("matrix", ctypes.c_uint32),
        ("row", ctypes.c_uint32),
        ("column", ctypes.c_uint32),
        ("value", ctypes.c_uint32),
        ("text", ctypes.c_char * 192),
    ]


def e4m3_values() -> torch.Tensor:
    """[256] float64: the value of each code, NaN for the two codes that are none."""
    codes = torch.arange(256, dtype=torch.int64)
    exponent, mantissa = (codes >> 3) & 15, (codes & 7).double()
    normal = torch.ldexp(1 + mantissa / 8, exponent - 7)
    subnormal = torch.ldexp(mantissa / 8, torch.tensor(-6))
    value = torch.where(exponent == 0, subnormal, normal)
    value = torch.where((codes & 127) == 127, torch.nan, value)
    return torch.where(codes >= 128, -value, value)


class RandomExperts:
    """Experts with random E4M3 codes and block scales, the same for the same seed."""

    def __init__(
        self, seed: int, *, hidden: int = 256, intermediate: int = 256, experts: int = 4
    ) -> None:
        self.hidden, self.intermediate, self.experts = hidden, intermediate, experts
        generator = torch.Generator().manual_seed(seed)
        self._codes: dict[tuple[int, int, int], torch.Tensor] = {}
        self._scales: dict[tuple[int, int, int], torch.Tensor] = {}
        for layer in LAYERS:
            for expert in range(experts):
                for which in range(3):
                    shape = (intermediate, hidden) if which < 2 else (hidden, intermediate)
                    # Exponents up to 9 of 15 keep sums in a comfortable range.
                    codes = torch.randint(0, 80, shape, generator=generator, dtype=torch.uint8)
                    sign = torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8)
                    blocks = [(size + wire.BLOCK - 1) // wire.BLOCK for size in shape]
                    scales = torch.rand(blocks, generator=generator) * 0.05 + 0.01
                    self._codes[layer, expert, which] = codes + 128 * sign
                    self._scales[layer, expert, which] = scales

    def weights(self, layer: int, expert: int, which: int) -> torch.Tensor:
        """The matrix in float64: 0 gate [I, H], 1 up [I, H], 2 down [H, I]."""
        codes, scales = self._codes[layer, expert, which], self._scales[layer, expert, which]
        grid = scales.double().repeat_interleave(wire.BLOCK, 0).repeat_interleave(wire.BLOCK, 1)
        rows, columns = codes.shape
        return e4m3_values()[codes.long()] * grid[:rows, :columns]

    def reference(
        self, layer: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """[T, H] float64, straight from the formula of experts.h."""
        result = torch.zeros(hidden.shape, dtype=torch.float64)
        for token in range(len(hidden)):
            x = hidden[token].double()
            for place in range(ids.shape[1]):
                expert = int(ids[token, place])
                gate, up, down = (self.weights(layer, expert, which) for which in range(3))
                inner = torch.nn.functional.silu(gate @ x) * (up @ x)
                result[token] += weights[token, place].double() * (down @ inner)
        return result

    def write_cache(self, folder: Path, ducks: int, layout: str = "fp8") -> Path:
        """Pack for this many ducks; returns the path of cache.json."""
        library = ctypes.CDLL(str(native_path("libduckpack.so")))
        slices: list[dict[str, Any]] = []
        for slot, (first_row, rows) in enumerate(cut(self.intermediate, ducks)):
            weight_format = {"fp8": 8, "fp9": 9}[layout]
            part = Slice(
                weight_format, SOURCE_E4M3, self.hidden, self.intermediate, first_row, rows
            )
            parts: list[tuple[int | None, bytes]] = [(None, self._directory(library, part))]
            for layer in LAYERS:
                records = (self._record(library, part, layer, e) for e in range(self.experts))
                parts.append((layer, b"".join(records)))
            entry = write_pieces(folder, slot, parts)
            slices.append({**entry, "first_row": first_row, "rows": rows})
        content = cache_content(
            hidden=self.hidden,
            intermediate=self.intermediate,
            experts=self.experts,
            slices=slices,
            layout=layout,
        )
        return write_json(folder / "cache.json", content)

    def _directory(self, library: ctypes.CDLL, part: Slice) -> bytes:
        out, report = ctypes.create_string_buffer(wire.DIRECTORY_BYTES), Report()
        layers = (ctypes.c_uint16 * len(LAYERS))(*LAYERS)
        status = library.duck_pack_directory(
            ctypes.byref(part), self.experts, len(LAYERS), layers, out, ctypes.byref(report)
        )
        assert status == 0, report.text
        return out.raw

    def _record(self, library: ctypes.CDLL, part: Slice, layer: int, expert: int) -> bytes:
        matrices = (Matrix * 3)()
        for which in range(3):
            codes, scales = self._codes[layer, expert, which], self._scales[layer, expert, which]
            matrices[which] = Matrix(
                codes.data_ptr(), codes.shape[1], scales.data_ptr(), scales.shape[1]
            )
        size = wire.record_bytes(part.format, part.hidden_size, part.first_row, part.rows)
        out, report = ctypes.create_string_buffer(size), Report()
        status = library.duck_pack_record(ctypes.byref(part), matrices, out, ctypes.byref(report))
        assert status == 0, report.text
        return out.raw


def random_call(
    experts: RandomExperts, seed: int, tokens: int, top_k: int = 3
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """hidden [T, H] float32, ids [T, k] int64 without repeats, weights [T, k] float32."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, experts.hidden, generator=generator)
    ids = torch.stack(
        [torch.randperm(experts.experts, generator=generator)[:top_k] for _ in range(tokens)]
    )
    weights = torch.rand(tokens, top_k, generator=generator) + 0.1
    return hidden, ids, weights
