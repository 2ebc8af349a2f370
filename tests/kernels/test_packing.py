"""Packing is exact, refuses bad values by their place, and rounds bf16 to nearest even."""

from __future__ import annotations

import numpy as np
import packing
import pytest
from packing import FP7, FP8, FP9, Q4, Q6

SEED = 20260101
SHAPES = [  # hidden, moe, first_row, rows
    (128, 32, 0, 32),
    (256, 256, 0, 64),
    (256, 256, 32, 96),
    (256, 256, 96, 160),
    (640, 160, 96, 64),
    (384, 576, 480, 96),
    (7168, 192, 64, 64),
]


def bits(values: packing.F32) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    return values.view(np.uint32)


@pytest.mark.parametrize("fmt", [FP8, FP9])
@pytest.mark.parametrize(("hidden", "moe", "first_row", "rows"), SHAPES)
def test_unpack_gives_the_source_back(
    fmt: int, hidden: int, moe: int, first_row: int, rows: int
) -> None:
    rng = np.random.default_rng(SEED)
    expert = packing.random_expert(rng, hidden, moe)
    record, report = packing.pack(expert, fmt, first_row, rows)
    end = first_row + rows
    wanted = [packing.dequantise(d, s) for d, s in zip(expert.data, expert.scale, strict=True)]
    gate, up, down = packing.unpack(record, fmt, hidden, first_row, rows)
    assert np.array_equal(bits(gate), bits(wanted[0][first_row:end]))
    assert np.array_equal(bits(up), bits(wanted[1][first_row:end]))
    assert np.array_equal(bits(down), bits(np.ascontiguousarray(wanted[2][:, first_row:end])))
    assert list(report.squared_error) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("fmt", [FP8, FP9])
def test_every_finite_code_in_every_row_of_a_panel(fmt: int) -> None:
    codes = np.resize(packing.FINITE_CODES, (32 * 8, 128))
    scale = np.ones((2, 1), np.float32)
    down_scale = np.ones((1, 2), np.float32)
    down = np.ascontiguousarray(np.resize(packing.FINITE_CODES[::-1], (128, 256)))
    expert = packing.Expert((codes, codes, down), (scale, scale, down_scale), packing.SOURCE_E4M3)
    record, _ = packing.pack(expert, fmt, 0, 256)
    gate, up, down_back = packing.unpack(record, fmt, 128, 0, 256)
    assert np.array_equal(bits(gate), bits(packing.E4M3[codes]))
    assert np.array_equal(bits(up), bits(packing.E4M3[codes]))
    assert np.array_equal(bits(down_back), bits(packing.E4M3[down]))


def test_padding_is_zero_and_the_layout_is_the_documented_one() -> None:
    rng = np.random.default_rng(SEED)
    expert = packing.random_expert(rng, 256, 64)
    record, _ = packing.pack(expert, FP8, 0, 64)
    header = 4 * (2 * 2 * 2 + 2 * 1)
    assert not record[header:64].any()
    used = 64 + 3 * 64 * 256
    assert not record[used:].any()
    assert len(record) % 4096 == 0
    # Row r = 8 v + l of column k is byte 4 l + (3 - v) of the column.
    for row, column in ((0, 0), (9, 3), (31, 255), (24, 128)):
        at = 64 + column * 32 + 4 * (row % 8) + 3 - row // 8
        assert record[at] == expert.data[0][row, column]
    down = 64 + 2 * 64 * 256
    at = down + 2 * 64 * 32 + 5 * 32 + 4 * (17 % 8) + 3 - 17 // 8  # panel 2, row 17, column 5
    assert record[at] == expert.data[2][2 * 32 + 17, 5]


@pytest.mark.parametrize("fmt", [Q4, Q6, FP7, FP8, FP9])
@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize(
    ("matrix", "row", "column"), [(0, 32, 0), (1, 95, 255), (2, 255, 95), (2, 0, 32)]
)
def test_nan_codes_are_refused_with_their_position(
    fmt: int, code: int, matrix: int, row: int, column: int
) -> None:
    expert = packing.random_expert(np.random.default_rng(SEED), 256, 128)
    expert.data[matrix][row, column] = code
    with pytest.raises(packing.PackError) as caught:
        packing.pack(expert, fmt, 32, 64)
    report = caught.value.report
    assert (report.matrix, report.row, report.column, report.value) == (matrix, row, column, code)
    assert str(caught.value) == (
        f"{('gate', 'up', 'down')[matrix]} row {row}, column {column} is not finite"
    )


def test_a_nan_code_outside_of_the_slice_is_not_looked_at() -> None:
    expert = packing.random_expert(np.random.default_rng(SEED), 256, 128)
    expert.data[0][31, 0] = 0x7F
    expert.data[2][0, 96] = 0x7F
    packing.pack(expert, FP8, 32, 64)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, 2.0**61])
def test_bad_scales_are_refused_with_their_position(scale: float) -> None:
    expert = packing.random_expert(np.random.default_rng(SEED), 256, 256)
    expert.scale[2][1, 1] = scale
    with pytest.raises(packing.PackError) as caught:
        packing.pack(expert, FP8, 96, 64)
    assert caught.value.status == 3
    assert (caught.value.report.matrix, caught.value.report.row, caught.value.report.column) == (
        2,
        1,
        1,
    )


@pytest.mark.parametrize(
    ("fmt", "first_row", "rows", "text"),
    [
        (5, 0, 32, "format is 5"),
        (FP8, 16, 32, "first_row is 16"),
        (FP8, 0, 48, "rows is 48"),
        (FP8, 0, 0, "rows is 0"),
        (FP8, 96, 64, "moe_intermediate_size is 128, expected 160"),
    ],
)
def test_impossible_slices_are_refused(fmt: int, first_row: int, rows: int, text: str) -> None:
    expert = packing.random_expert(np.random.default_rng(SEED), 128, 128)
    with pytest.raises(packing.PackError, match=text):
        packing.pack(expert, fmt, first_row, rows)


# ---- bf16 sources --------------------------------------------------------------------------------


def bf16_value(data: packing.U16) -> packing.F32:
    return (data.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values: packing.F32) -> packing.U16:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def code_values(fmt: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """All non-negative finite values of a format, in code order."""
    if fmt == FP8:
        return packing.E4M3[:0x7F].astype(np.float64)
    if fmt == FP7:
        codes = np.arange(64)
        return np.where(codes < 8, codes, (8 + codes % 8) * 2.0 ** (codes // 8 - 1))
    halves = (np.arange(0xF8, dtype=np.uint16) << 7).view(np.float16)
    return halves.astype(np.float64)


def nearest_even(fmt: int, values: packing.F32) -> packing.F32:
    """Round to the nearest value of the format, ties to the even code, saturating."""
    table = code_values(fmt)
    magnitude = np.abs(values.astype(np.float64))
    upper = np.clip(np.searchsorted(table, magnitude), 1, len(table) - 1)
    below, above = magnitude - table[upper - 1], table[upper] - magnitude
    take_upper = (above < below) | ((above == below) & (upper % 2 == 0))
    rounded = np.where(take_upper, table[upper], table[upper - 1])
    return np.copysign(rounded, values).astype(np.float32)


def bf16_expert(rng: np.random.Generator, fmt: int, hidden: int, moe: int) -> packing.Expert:
    data: list[packing.U16] = []
    for shape in ((moe, hidden), (moe, hidden), (hidden, moe)):
        spread = rng.normal(0, 0.02, shape) * 2.0 ** rng.integers(-20, 3, shape)
        data.append(to_bf16(spread.astype(np.float32)))
    data[0][:128, :128] = 0  # a block of zeros
    return packing.Expert(
        tuple(data), tuple(packing.bf16_scales(fmt, d) for d in data), packing.SOURCE_BF16
    )


@pytest.mark.parametrize("fmt", [FP7, FP8, FP9])
def test_bf16_rounds_to_nearest_even_and_reports_the_error(fmt: int) -> None:
    hidden, moe, first_row, rows = 256, 160, 96, 64
    expert = bf16_expert(np.random.default_rng(SEED), fmt, hidden, moe)
    record, report = packing.pack(expert, fmt, first_row, rows)
    unpacked = packing.unpack(record, fmt, hidden, first_row, rows)
    part = slice(first_row, first_row + rows)
    for m, index in enumerate(((part,), (part,), (slice(None), part))):
        source = bf16_value(expert.data[m])  # type: ignore[arg-type]
        scale = expert.scale[m]
        blocks = np.repeat(np.repeat(scale, 128, 0)[: source.shape[0]], 128, 1)
        blocks = blocks[:, : source.shape[1]]
        wanted = nearest_even(fmt, source / blocks) * blocks
        assert np.array_equal(unpacked[m], wanted[index])
        error = (wanted[index].astype(np.float64) - source[index]) ** 2
        assert report.squared_error[m] == pytest.approx(float(error.sum()), rel=1e-4)
        square = source[index].astype(np.float64) ** 2
        assert report.squared_sum[m] == pytest.approx(float(square.sum()), rel=1e-4)


def gaussian_e4m3(rng: np.random.Generator, hidden: int, moe: int) -> packing.Expert:
    """Gaussian weights as an FP8 checkpoint has them: block scale amax / 448."""
    data: list[packing.U8] = []
    scales: list[packing.F32] = []
    for rows, columns in ((moe, hidden), (moe, hidden), (hidden, moe)):
        values = rng.normal(0, 0.02, (rows, columns)).astype(np.float32)
        tall, wide = packing.grid_shape(rows, columns)
        padded = np.zeros((tall * 128, wide * 128), np.float32)
        padded[:rows, :columns] = np.abs(values)
        scale = padded.reshape(tall, 128, wide, 128).max((1, 3)) / np.float32(448)
        blocks = np.repeat(np.repeat(scale, 128, 0)[:rows], 128, 1)[:, :columns]
        magnitude = np.abs(nearest_even(FP8, values / blocks))
        codes = np.searchsorted(packing.E4M3[:0x7F], magnitude).astype(np.uint8)
        data.append(codes | np.where(values < 0, 0x80, 0).astype(np.uint8))
        scales.append(scale)
    return packing.Expert(tuple(data), tuple(scales), packing.SOURCE_E4M3)


@pytest.mark.parametrize(
    ("fmt", "low", "high"), [(FP7, 0.0002, 0.0004), (Q6, 0.015, 0.026), (Q4, 0.07, 0.09)]
)
def test_lossy_formats_cost_what_the_documentation_says(fmt: int, low: float, high: float) -> None:
    """Relative RMS error of Gaussian FP8 weights; the report agrees with the unpacked values."""
    hidden, moe, first_row, rows = 256, 320, 96, 160
    expert = gaussian_e4m3(np.random.default_rng(SEED), hidden, moe)
    record, report = packing.pack(expert, fmt, first_row, rows)
    unpacked = packing.unpack(record, fmt, hidden, first_row, rows)
    part = slice(first_row, first_row + rows)
    for m, index in enumerate(((part,), (part,), (slice(None), part))):
        source = packing.dequantise(expert.data[m], expert.scale[m])[index].astype(np.float64)
        error, square = float(((unpacked[m] - source) ** 2).sum()), float((source**2).sum())
        assert low < (error / square) ** 0.5 < high
        assert report.squared_error[m] == pytest.approx(error, rel=1e-3)
        assert report.squared_sum[m] == pytest.approx(square, rel=1e-3)


@pytest.mark.parametrize("fmt", [Q4, Q6, FP7, FP8, FP9])
def test_a_slice_holds_what_the_whole_holds(fmt: int) -> None:
    """How an expert is cut does not change its weights: rounding looks at whole source blocks."""
    expert = gaussian_e4m3(np.random.default_rng(SEED), 256, 256)
    whole = packing.unpack(packing.pack(expert, fmt, 0, 256)[0], fmt, 256, 0, 256)
    for first_row, rows in ((0, 64), (64, 96), (160, 96)):
        record, _ = packing.pack(expert, fmt, first_row, rows)
        gate, up, down = packing.unpack(record, fmt, 256, first_row, rows)
        part = slice(first_row, first_row + rows)
        assert np.array_equal(gate, whole[0][part])
        assert np.array_equal(up, whole[1][part])
        assert np.array_equal(down, whole[2][:, part])


def test_fp7_keeps_the_upper_exponents_exactly() -> None:
    """Codes whose exponent is within 6 of the block's largest come back unchanged."""
    rng = np.random.default_rng(SEED)
    expert = packing.random_expert(rng, 128, 128)
    expert.data[0][0, 0] = 0x7E
    record, _ = packing.pack(expert, FP7, 0, 128)
    gate, _, _ = packing.unpack(record, FP7, 128, 0, 128)
    source = packing.dequantise(expert.data[0], expert.scale[0])
    exact = (expert.data[0].astype(np.uint8) & 0x7F) >= (15 - 6) << 3
    assert np.array_equal(gate[exact], source[exact])
    half_unit = 0.25 * float(expert.scale[0][0, 0])
    assert float(np.max(np.abs(gate - source))) <= half_unit * (1 + 2**-20)


def test_fp9_scales_are_powers_of_two_near_the_top_of_the_range() -> None:
    rng = np.random.default_rng(SEED)
    data = to_bf16((rng.normal(0, 1, (256, 384)) * 2.0 ** -rng.integers(0, 30)).astype(np.float32))
    scale = packing.bf16_scales(FP9, data)
    mantissa, _ = np.frexp(scale)
    assert np.all(mantissa == 0.5)
    amax = np.abs(bf16_value(data)).reshape(2, 128, 3, 128).max((1, 3))
    assert np.all((amax / scale >= 2**14) & (amax / scale < 2**15))


def test_fp8_scales_are_amax_over_448_and_one_for_zero_blocks() -> None:
    rng = np.random.default_rng(SEED)
    data = to_bf16(rng.normal(0, 1, (160, 256)).astype(np.float32))
    data[:128, 128:] = 0
    scale = packing.bf16_scales(FP8, data)
    values = np.abs(bf16_value(data))
    assert scale[0, 0] == values[:128, :128].max() / np.float32(448)
    assert scale[1, 1] == values[128:, 128:].max() / np.float32(448)
    assert scale[0, 1] == 1.0


@pytest.mark.parametrize("fmt", [FP8, FP9])
@pytest.mark.parametrize("value", [0x7F80, 0xFF80, 0x7FC0])
def test_bf16_nan_and_infinity_are_refused(fmt: int, value: int) -> None:
    expert = bf16_expert(np.random.default_rng(SEED), fmt, 128, 128)
    expert.data[1][70, 3] = value
    up_scale = packing.bf16_scales(fmt, expert.data[1].astype(np.uint16))
    scales = (expert.scale[0], up_scale, expert.scale[2])
    broken = packing.Expert(expert.data, scales, packing.SOURCE_BF16)
    with pytest.raises(packing.PackError, match="up row 70, column 3 is not finite"):
        packing.pack(broken, fmt, 64, 64)


@pytest.mark.parametrize("fmt", [FP8, FP9])
@pytest.mark.parametrize("exponent", [-126, -120, -60, 0, 60, 70])
def test_bf16_extremes_of_range(fmt: int, exponent: int) -> None:
    """Tiny and huge blocks keep scales normal; what the scale limit forbids is refused."""
    value = np.full((128, 128), 1.5 * 2.0**exponent, np.float32)
    data = to_bf16(value)
    scale = packing.bf16_scales(fmt, data)
    assert scale[0, 0] >= 2.0**-126
    expert = packing.Expert((data,) * 3, (scale,) * 3, packing.SOURCE_BF16)
    if scale[0, 0] > 2.0**60:
        with pytest.raises(packing.PackError, match="gate scale at block row 0"):
            packing.pack(expert, fmt, 0, 128)
        return
    record, _ = packing.pack(expert, fmt, 0, 128)
    gate, _, _ = packing.unpack(record, fmt, 128, 0, 128)
    assert np.allclose(gate, value, rtol=2.0**-4, atol=2.0**-126)


# ---- directory -----------------------------------------------------------------------------------


def test_directory_round_trip() -> None:
    data = packing.directory(FP9, 256, 256, 64, 64, 16, [1, 2, 3, 4, 5])
    record = packing.record_bytes(FP9, 256, 64, 64)
    packing.check_directory(data, 4096 + 5 * 16 * record)
    with pytest.raises(packing.PackError, match="size of the weights region"):
        packing.check_directory(data, 4096 + 5 * 16 * record - 1)
    with pytest.raises(packing.PackError, match="at least 4096"):
        packing.check_directory(data, 4095)


@pytest.mark.parametrize("layers", [[], [2, 1], [3, 3], list(range(257))])
def test_directories_with_bad_layers_are_refused(layers: list[int]) -> None:
    with pytest.raises(packing.PackError):
        packing.directory(FP8, 256, 256, 0, 32, 16, layers)


def test_every_changed_directory_byte_is_noticed_or_harmless() -> None:
    """Only the layer numbers, moe_intermediate_size and the slice's place may change unnoticed."""
    data = packing.directory(FP8, 256, 512, 64, 64, 16, [3, 9])
    region = 4096 + 2 * 16 * packing.record_bytes(FP8, 256, 64, 64)
    unnoticed = []
    for at in range(4096):
        changed = bytearray(data)
        changed[at] ^= 0x80
        try:
            packing.check_directory(bytes(changed), region)
        except packing.PackError:
            continue
        unnoticed.append(at)
    harmless = {16, *range(56, 60), *range(128, 132)}
    assert set(unnoticed) <= harmless
