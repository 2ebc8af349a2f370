"""Sizes, times and orderings of the prediction agree with arithmetic done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_kit import CATALOGUE, make_setup

from duckctl.plan.catalogue import FORMAT_BITS
from duckctl.plan.predict import binding_limit, levers, load_s, predict, sweep, tokens_per_s
from duckctl.plan.profile import OURS, REFERENCE, gemm_efficiency
from duckctl.plan.setup import (
    GIB,
    PlanError,
    check_topology,
    memory_fit,
    require_fit,
    valid_duck_counts,
)
from duckctl.plan.simulate import Pipeline, decode, overlap_ratio, prefill_s, traced_step
from duckctl.shards.layout import FORMAT_CODES, PANEL_ROWS, panel_bytes

STILL = replace(OURS, jitter=0.0, straggler_chance=0.0)


def test_bytes_of_v32_on_32_ducks() -> None:
    setup = make_setup()
    # 59 layers x 256 experts x 3 x 7168 x 64 weights x 9 bits
    by_hand = 59 * 256 * 3 * 7168 * 64 * 9 / 8
    assert setup.duck_weight_bytes() == pytest.approx(by_hand, rel=0.002)
    fit = memory_fit(setup)
    assert fit.problems == ()
    # attention, shared experts, dense layers and head in FP8/bf16: about 18.4 GB
    assert 17.5e9 < setup.gpu_weight_bytes() < 19.5e9
    assert fit.context_max > 100_000


def test_ducklets_cache_is_what_the_converter_makes() -> None:
    """One slice of ducklet in fp8: 5 layers x 16 experts x 3 x 256 x 64 bytes, plus alignment."""
    setup = make_setup("ducklet", ducks=4, weight_format="fp8")
    assert setup.duck_weight_bytes() == pytest.approx(5 * 16 * 3 * 256 * 64, rel=0.01)


def test_bits_of_a_weight_are_those_of_the_packed_panels() -> None:
    """Row scales of q4 and q6 included; block scales are in RECORD_OVERHEAD."""
    columns = 32
    packed = {fmt: panel_bytes(fmt, columns) * 8 / (PANEL_ROWS * columns) for fmt in FORMAT_CODES}
    assert packed == FORMAT_BITS


def test_kernel_time_is_bytes_over_bandwidth() -> None:
    setup = make_setup(profile=STILL)
    rate = 25.6e9 * STILL.dram_read_share * STILL.kernel_share["fp9"]
    by_hand = 8 * 3 * 7168 * 64 * 9 / 8 / rate
    assert setup.kernel_s(0, distinct=8, tokens=1) == pytest.approx(by_hand)
    assert setup.kernel_s(0, distinct=15, tokens=2) == pytest.approx(by_hand * 15 / 8)


def test_reference_rate_is_the_published_one() -> None:
    """15.0 to 15.7 Gparam/s per duck in the system."""
    setup = make_setup(profile=REFERENCE)
    params = 8 * setup.expert_params(0)
    assert 15.0e9 < params / setup.kernel_s(0, distinct=8, tokens=1) < 15.7e9


def test_distinct_experts_of_two_tokens() -> None:
    """Two random choices of 8 of 256 share 0.25 experts on the average."""
    pipeline = Pipeline(make_setup())
    mean = sum(pipeline.distinct_experts(2) for _ in range(2000)) / 2000
    assert mean == pytest.approx(15.75, abs=0.05)
    assert pipeline.distinct_experts(512) == pytest.approx(256, rel=1e-3)


def test_same_seed_same_prediction_and_other_seed_another() -> None:
    setup = make_setup("ducklet", ducks=4)
    assert decode(setup) == decode(setup)
    assert decode(setup) != decode(replace(setup, seed=2))


def test_without_jitter_a_single_lane_is_the_sum_of_its_parts() -> None:
    setup = make_setup("qwen3-30b-a3b", ducks=24, profile=STILL, acceptance=0.0)
    layer_s = setup.attention_s(1) + setup.kernel_s(0, 8, 1)
    result = decode(setup, steps=1)
    wire_s = setup.duck_link_s(setup.dispatch_wire_bytes(1) + setup.result_wire_bytes(1))
    fixed_us = 5.0 + 6.0 + 1.0 + 5.0 + 6.0 + 2 * 3.0
    expected = 48 * (layer_s + wire_s + fixed_us * 1e-6) + setup.head_s()
    assert result.step_s == pytest.approx(expected, rel=0.02)


def test_smaller_formats_and_more_ducks_are_faster() -> None:
    def speed(ducks: int, weight_format: str) -> float:
        setup = make_setup(ducks=ducks, weight_format=weight_format)
        return tokens_per_s(setup, decode(setup, steps=1))

    speeds = [speed(32, name) for name in ("fp9", "fp8", "fp7", "q6", "q4")]
    assert speeds == sorted(speeds)
    assert speed(64, "fp8") > speed(32, "fp8")


def test_lanes_overlap_better_than_a_barrier_and_never_more_than_possible() -> None:
    free = overlap_ratio(make_setup(profile=STILL))
    barrier = overlap_ratio(make_setup(profile=replace(STILL, schedule="barrier")))
    assert 0 < barrier < free <= 1


def test_prefill_that_reuses_weights_is_faster() -> None:
    shared = prefill_s(make_setup(), 512)
    alone = prefill_s(make_setup(profile=replace(OURS, reuses_weights=False)), 512)
    assert shared < alone / 2


def test_gemm_efficiency_is_measured_points_and_lines_between() -> None:
    assert gemm_efficiency(1) == 0.27
    assert gemm_efficiency(5) == pytest.approx(0.555)
    assert gemm_efficiency(1000) == 0.90


def test_trace_has_every_duck_and_no_resource_twice_at_a_time() -> None:
    setup = make_setup("ducklet", ducks=4)
    slices = traced_step(setup).slices
    assert {f"d0{n}" for n in range(1, 5)} <= {s.resource for s in slices}
    for name in {s.resource for s in slices}:
        bars = sorted((s.start_s, s.duration_s) for s in slices if s.resource == name)
        ends = [start + duration for start, duration in bars]
        assert all(end <= bar[0] + 1e-12 for end, bar in zip(ends, bars[1:], strict=False))


def test_load_time_is_shared_by_a_domains_ducks() -> None:
    setup = make_setup()
    alone = load_s(setup)
    assert load_s(replace(setup, host_nic_mbps=10000)) == pytest.approx(2 * alone)


def test_limit_names_the_busiest_part_or_latency() -> None:
    assert binding_limit({"GPU": 0.3, "duck kernels": 0.9}).startswith("duck kernels, busy 90 %")
    assert binding_limit({"GPU": 0.3, "duck kernels": 0.5}).startswith("latency")


def test_uneven_slices_are_predicted_by_the_fullest_duck() -> None:
    setup = make_setup(ducks=24)
    assert sorted(set(setup.panels())) == [2, 3]
    assert sum(setup.panels()) == 64
    assert setup.duck_weight_bytes(0) > setup.duck_weight_bytes(23)


def test_valid_counts_of_each_model() -> None:
    assert valid_duck_counts(CATALOGUE.model("deepseek-v3.2")) == [1, 2, 4, 8, 16, 32, 64]
    assert 24 in valid_duck_counts(CATALOGUE.model("qwen3-30b-a3b"))
    assert valid_duck_counts(CATALOGUE.model("ducklet")) == [1, 2, 4, 8]


def test_impossible_topologies_are_refused() -> None:
    setup = make_setup()
    with pytest.raises(PlanError, match="cannot be spread over 65 ducks"):
        check_topology(replace(setup, duck_count=65))
    with pytest.raises(PlanError, match="2 ducks cannot form 4 domains"):
        check_topology(replace(setup, duck_count=2))
    with pytest.raises(PlanError, match="faster than the host's"):
        check_topology(replace(setup, nic_mbps=100000))
    with pytest.raises(PlanError, match="no MTP layer"):
        check_topology(make_setup("qwen3-30b-a3b", ducks=24, acceptance=0.5))


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(PlanError, match="does not fit: each duck needs") as refusal:
        require_fit(make_setup(ducks=16))
    assert "it fits on 32 ducks" in refusal.value.hint
    small_gpu = replace(CATALOGUE.gpu("rtx4090"), memory_gib=16)
    with pytest.raises(PlanError, match="the GPU needs"):
        require_fit(replace(make_setup(), gpu=small_gpu))
    assert memory_fit(make_setup()).gpu_available == 32 * GIB


def test_prediction_of_the_published_hardware() -> None:
    """The whole document; speed lies between the memory limit and half of it."""
    result = predict(make_setup(weight_format="fp8"), 512)
    assert 20 < result.decode_tokens_per_s < 40.1
    document = result.document()
    assert document["rows_per_duck"] == [64] * 32
    assert document["limit"].startswith("duck kernels")
    assert document["prefill_limit"] == "arithmetic of the ducks"
    assert document["costs"]["price"] is None


def test_other_numbers_of_measured_ducks_read_like_the_slowest() -> None:
    """Fleets of 2, 4 and 8 slow ducks: more are faster, and the lever is what the sweep says."""
    setup = replace(
        make_setup("ducklet", ducks=4, profile=STILL), duck_rates=(0.2e9, 0.3e9, 0.3e9, 0.3e9)
    )
    speeds = [point.decode_tokens_per_s or 0 for point in sweep(setup, [2, 4, 8])]
    assert speeds[1] == tokens_per_s(setup, decode(setup))
    assert speeds[0] < speeds[1] < speeds[2] < 2 * speeds[1]
    found = {lever.change: lever.decode_tokens_per_s for lever in levers(setup, CATALOGUE)}
    assert found["8 ducks"] == speeds[2]
