"""A prediction with its reasons: speed, times per layer, what limits, what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from duckctl.plan.catalogue import FORMAT_BITS, LOSSLESS_FORMATS, Catalogue
from duckctl.plan.profile import Profile
from duckctl.plan.setup import (
    GIB,
    Fit,
    Setup,
    check_topology,
    memory_fit,
    require_fit,
    valid_duck_counts,
)
from duckctl.plan.simulate import (
    StepResult,
    decode,
    expected_distinct,
    overlap_ratio,
    prefill_s,
    round_trip_s,
)

LIMIT_SHARE = 0.7  # a part that is busy for less than this does not limit the whole by itself
LEVERS_SHOWN = 3
LATENCY = "latency: every layer waits for a call's round trip"
# How far the constants that nobody has measured on the hardware yet may be off.
DRAM_SHARE_BAND = 0.05
KERNEL_SHARE_BAND = 0.04
GPU_BAND = 0.25
CALL_BAND = 0.5


@dataclass(frozen=True)
class LayerTimes:
    """One token in one layer on idle ducks; bytes and microseconds of the fullest duck."""

    weight_bytes: float
    kernel_us: float
    dispatch_us: float
    result_us: float
    gap_us: float  # round trip minus kernel: wire both ways and handling
    gpu_us: float


@dataclass(frozen=True)
class Lever:
    """A change and what it would give."""

    change: str
    decode_tokens_per_s: float
    gain: float


@dataclass(frozen=True)
class Costs:
    """Watts of ducks and GPU; money only where every price is known."""

    idle_w: float | None
    load_w: float
    wh_per_1000_tokens: float
    price: float | None


@dataclass(frozen=True)
class Prediction:
    """Everything that ``duckctl plan`` says of one fleet."""

    setup: Setup
    fit: Fit
    layer: LayerTimes
    decode_tokens_per_s: float
    step_ms: float
    overlap: float | None  # None without a second lane
    shares: Mapping[str, float]
    prompt_tokens: int
    prefill_tokens_per_s: float
    ttft_s: float
    prefill_limit: str
    load_s: float
    boot_s: float
    costs: Costs
    limit: str
    band: tuple[float, float] | None = None
    levers: tuple[Lever, ...] = ()

    def document(self) -> dict[str, Any]:
        """For --json."""
        setup = self.setup
        return {
            "model": setup.model.name,
            "ducks": setup.duck_count,
            "duck": setup.duck.name,
            "domains": setup.domain_count,
            "nic_mbps": setup.nic_mbps,
            "host_nic_mbps": setup.host_nic_mbps,
            "gpu": setup.gpu.name,
            "format": setup.weight_format,
            "acceptance": setup.acceptance,
            "context": setup.context,
            "rows_per_duck": [32 * panels for panels in setup.panels()],
            "fit": {**asdict(self.fit), "problems": list(self.fit.problems)},
            "layer": asdict(self.layer),
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "decode_band": list(self.band) if self.band else None,
            "step_ms": self.step_ms,
            "overlap_ratio": self.overlap,
            "busy_shares": dict(self.shares),
            "prompt_tokens": self.prompt_tokens,
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "ttft_s": self.ttft_s,
            "prefill_limit": self.prefill_limit,
            "boot_s": self.boot_s,
            "load_s": self.load_s,
            "costs": asdict(self.costs),
            "limit": self.limit,
            "levers": [asdict(lever) for lever in self.levers],
        }


def tokens_per_s(setup: Setup, result: StepResult) -> float:
    """A step gives its token and, if the draft was right, one more."""
    return (1 + setup.acceptance) / result.step_s


def predict(setup: Setup, prompt_tokens: int) -> Prediction:
    """Everything but levers and band. Raises PlanError when it cannot work."""
    check_topology(setup)
    fit = require_fit(setup)
    result = decode(setup)
    speed = tokens_per_s(setup, result)
    ttft_s = prefill_s(setup, prompt_tokens)
    return Prediction(
        setup=setup,
        fit=fit,
        layer=layer_times(setup),
        decode_tokens_per_s=speed,
        step_ms=1000 * result.step_s,
        overlap=overlap_ratio(setup) if setup.mtp else None,
        shares=result.shares,
        prompt_tokens=prompt_tokens,
        prefill_tokens_per_s=prompt_tokens / ttft_s,
        ttft_s=ttft_s,
        prefill_limit=prefill_limit(setup, prompt_tokens),
        load_s=load_s(setup),
        boot_s=setup.profile.boot_s,
        costs=costs(setup, speed),
        limit=binding_limit(result.shares),
    )


def layer_times(setup: Setup) -> LayerTimes:
    """Where the time of one token in one layer goes."""
    round_trip, kernel_s = round_trip_s(setup)
    params = setup.model.top_k * setup.expert_params(0)
    return LayerTimes(
        weight_bytes=params * FORMAT_BITS[setup.weight_format] / 8,
        kernel_us=kernel_s * 1e6,
        dispatch_us=setup.duck_link_s(setup.dispatch_wire_bytes(1)) * 1e6,
        result_us=setup.duck_link_s(setup.result_wire_bytes(1)) * 1e6,
        gap_us=(round_trip - kernel_s) * 1e6,
        gpu_us=(setup.attention_s(1) + setup.shared_s(1)) * 1e6,
    )


def prefill_limit(setup: Setup, prompt_tokens: int) -> str:
    """What takes longest of one chunk in one layer; the rest hides behind it."""
    tokens = min(prompt_tokens, setup.profile.prefill_chunk)
    distinct = expected_distinct(setup.model, tokens)
    times = {
        "memory of the ducks": setup.memory_s(0, distinct, tokens),
        "arithmetic of the ducks": setup.compute_s(0, distinct, tokens),
        "links of the ducks": setup.duck_link_s(setup.result_wire_bytes(tokens)),
        "GPU": setup.attention_s(tokens) + setup.shared_s(tokens),
    }
    return max(times, key=lambda name: times[name])


def load_s(setup: Setup) -> float:
    """All ducks load at once; a domain's ducks share the host's port."""
    per_domain = -(-setup.duck_count // setup.domain_count)
    rate_mbps = min(setup.nic_mbps, setup.host_nic_mbps / per_domain)
    return setup.duck_weight_bytes() * 8 / (rate_mbps * 1e6 * setup.profile.load_share)


def costs(setup: Setup, speed: float) -> Costs:
    """Power at the wall (the host without its GPU is not counted) and price."""
    load_w = setup.duck_count * setup.duck.load_w + setup.gpu.load_w
    price = None
    if setup.duck.price is not None and setup.gpu.price is not None:
        price = setup.duck_count * setup.duck.price + setup.gpu.price
    return Costs(
        idle_w=setup.duck_count * setup.duck.idle_w,
        load_w=load_w,
        wh_per_1000_tokens=load_w * 1000 / speed / 3600,
        price=price,
    )


def binding_limit(shares: Mapping[str, float]) -> str:
    """The part that is busy nearly all the time, or latency when none is."""
    name, share = max(shares.items(), key=lambda item: item[1])
    return f"{name}, busy {100 * share:.0f} % of a step" if share >= LIMIT_SHARE else LATENCY


def levers(setup: Setup, catalogue: Catalogue) -> tuple[Lever, ...]:
    """The changes that would speed up decoding most, best first."""
    base = tokens_per_s(setup, decode(setup))
    found = []
    for change, changed in _candidates(setup, catalogue):
        if memory_fit(changed).problems:
            continue
        speed = tokens_per_s(changed, decode(changed))
        found.append(Lever(change, speed, speed / base - 1))
    found.sort(key=lambda lever: -lever.gain)
    return tuple(lever for lever in found if lever.gain > 0.01)[:LEVERS_SHOWN]


def _candidates(setup: Setup, catalogue: Catalogue) -> list[tuple[str, Setup]]:
    model, profile = setup.model, setup.profile
    found: list[tuple[str, Setup]] = []
    smaller = _smaller_format(setup.weight_format)
    if smaller:
        cost = "lossless" if smaller in LOSSLESS_FORMATS else "changes the weights"
        text = f"--format {smaller} ({cost})"
        found.append((text, replace(setup, weight_format=smaller)))
    more = [n for n in valid_duck_counts(model) if n > setup.duck_count]
    if more:
        found.append((f"{more[0]} ducks", setup.with_ducks(more[0])))
    if setup.duck.memory_gb_s < 38.4 and not setup.duck_rates:
        faster = replace(setup.duck, memory_gb_s=38.4)
        found.append(("ducks with one channel DDR5-4800", replace(setup, duck=faster)))
    links = sorted(link.mbps for link in catalogue.links.values())
    nic = next((mbps for mbps in links if setup.nic_mbps < mbps <= setup.host_nic_mbps), None)
    if nic:
        found.append((f"ducks' links at {nic / 1000:g} Gbit/s", replace(setup, nic_mbps=nic)))
    gpus = sorted(catalogue.gpus.values(), key=lambda gpu: gpu.memory_gb_s)
    gpu = next((gpu for gpu in gpus if gpu.memory_gb_s > setup.gpu.memory_gb_s), None)
    if gpu:
        found.append((f"--gpu {gpu.name}", replace(setup, gpu=gpu)))
    if model.mtp_layers and not setup.mtp:
        with_mtp = replace(setup, acceptance=model.acceptance)
        found.append((f"--mtp {model.acceptance:g}", with_mtp))
    tuned = replace(profile, gpu_over_floor=min(profile.gpu_over_floor, 1.1))
    found.append(("GPU work at 1.1 x its bandwidth floor", replace(setup, profile=tuned)))
    return found


def _smaller_format(name: str) -> str | None:
    """The next smaller format, lossless ones first."""
    order = sorted(FORMAT_BITS, key=lambda item: -FORMAT_BITS[item])
    later = order[order.index(name) + 1 :]
    return later[0] if later else None


def band(setup: Setup) -> tuple[float, float]:
    """Decode speed when everything unmeasured is at its bad end, and at its good end."""
    slow = tokens_per_s(setup, decode(replace(setup, profile=_shifted(setup.profile, -1))))
    fast = tokens_per_s(setup, decode(replace(setup, profile=_shifted(setup.profile, +1))))
    return slow, fast


def _shifted(profile: Profile, sign: int) -> Profile:
    kernel = {
        name: min(1.0, share + sign * KERNEL_SHARE_BAND)
        for name, share in profile.kernel_share.items()
    }
    call = 1 - sign * CALL_BAND
    return replace(
        profile,
        dram_read_share=profile.dram_read_share + sign * DRAM_SHARE_BAND,
        kernel_share=kernel,
        gpu_over_floor=max(1.0, profile.gpu_over_floor * (1 - sign * GPU_BAND)),
        host_send_us=profile.host_send_us * call,
        duck_receive_us=profile.duck_receive_us * call,
        duck_reply_us=profile.duck_reply_us * call,
        host_receive_us=profile.host_receive_us * call,
        jitter=profile.jitter * (1 - sign * 0.7),
    )


@dataclass(frozen=True)
class SweepPoint:
    """One fleet size; ``decode_tokens_per_s`` is None when the model does not fit."""

    ducks: int
    decode_tokens_per_s: float | None
    limit: str


def sweep(setup: Setup, counts: Sequence[int]) -> list[SweepPoint]:
    """The same fleet with other numbers of ducks; where they were measured, like the slowest."""
    points = []
    for count in counts:
        domains = min(setup.domain_count, count)
        changed = replace(setup.with_ducks(count), domain_count=domains)
        check_topology(changed)
        fit = memory_fit(changed)
        if fit.problems:
            needed = f"{fit.duck_needed / GIB:.1f} GiB per duck"
            points.append(SweepPoint(count, None, f"does not fit: {needed}"))
            continue
        result = decode(changed)
        speed = tokens_per_s(changed, result)
        points.append(SweepPoint(count, speed, binding_limit(result.shares)))
    return points
