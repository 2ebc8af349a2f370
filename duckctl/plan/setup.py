"""One fleet with one model: who holds what, what fits, how long each piece of work takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from duckctl.errors import UsageError
from duckctl.plan.catalogue import FORMAT_BITS, DuckType, GpuType, ModelShape
from duckctl.plan.profile import Profile, gemm_efficiency

PANEL_ROWS = 32
DUCKS_MAX = 64  # of a fleet file
DOMAINS_MAX = 16
GIB = float(1 << 30)
RECORD_OVERHEAD = 1.001  # scales and alignment of a record, against its codes
FRAGMENT_BYTES = {1500: 1408, 9000: 8896}
# Per packet: preamble and gap 20, Ethernet 18, IPv4 20, UDP 8, packet header with its MAC 56 bytes.
PACKET_OVERHEAD_BYTES = 122
GPU_WORKSPACE_GIB = 1.5  # CUDA context, graphs, activations: unsure
EMBEDDING_ON_HOST = True  # rows are gathered from host memory: no table on the GPU


class PlanError(UsageError):
    """The fleet that was asked for cannot work."""


@dataclass(frozen=True)
class Setup:
    """Everything a prediction depends on."""

    model: ModelShape
    duck: DuckType
    duck_count: int
    domain_count: int
    nic_mbps: float
    host_nic_mbps: float
    gpu: GpuType
    weight_format: str
    profile: Profile
    acceptance: float = 0.0  # of MTP drafts; 0 = no MTP
    context: int = 2048  # tokens in the cache while decoding
    mtu: int = 9000
    seed: int = 1
    duck_rates: tuple[float, ...] = ()  # read bandwidth of each duck, bytes/s, where measured

    @property
    def mtp(self) -> bool:
        return self.acceptance > 0

    def with_ducks(self, count: int) -> Setup:
        """Another number of the same ducks; of measured ones, all read like the slowest."""
        if count == self.duck_count:
            return self
        rates = (min(self.duck_rates),) * count if self.duck_rates else ()
        return replace(self, duck_count=count, duck_rates=rates)

    def panels(self) -> tuple[int, ...]:
        """32-row panels of every expert that each duck holds; the first ducks get the rest."""
        total = self.model.moe_intermediate // PANEL_ROWS
        base, rest = divmod(total, self.duck_count)
        return tuple(base + (1 if index < rest else 0) for index in range(self.duck_count))

    def expert_params(self, duck: int) -> int:
        """Weights of one expert on a duck: rows of gate and up, columns of down."""
        return 3 * self.model.hidden * self.panels()[duck] * PANEL_ROWS

    @property
    def expert_layers(self) -> int:
        return self.model.moe_layers + (self.model.mtp_layers if self.mtp else 0)

    def domain_of(self, duck: int) -> int:
        return duck % self.domain_count

    # ---- ducks

    def duck_weight_bytes(self, duck: int = 0) -> float:
        """Bytes of routed experts on a duck."""
        bits = FORMAT_BITS[self.weight_format]
        experts = self.model.experts * self.expert_layers
        return experts * self.expert_params(duck) * bits / 8 * RECORD_OVERHEAD

    def read_rate(self, duck: int) -> float:
        """Bytes of weights per second that the kernel of a duck reads."""
        share = self.profile.kernel_share[self.weight_format]
        if self.duck_rates:
            return self.duck_rates[duck] * share
        return self.duck.memory_gb_s * 1e9 * self.profile.dram_read_share * share

    def kernel_s(self, duck: int, distinct: float, tokens: int) -> float:
        """Seconds for a call of ``tokens`` tokens that touch ``distinct`` experts."""
        return max(self.memory_s(duck, distinct, tokens), self.compute_s(duck, distinct, tokens))

    def memory_s(self, duck: int, distinct: float, tokens: int) -> float:
        """The same, if only reading weights took time."""
        read = distinct if self.profile.reuses_weights else tokens * self.model.top_k
        bits = FORMAT_BITS[self.weight_format]
        return read * self.expert_params(duck) * bits / 8 / self.read_rate(duck)

    def compute_s(self, duck: int, distinct: float, tokens: int) -> float:
        """The same, if only arithmetic took time."""
        params = tokens * self.model.top_k * self.expert_params(duck)
        rate = self.duck.compute_params_per_s(self.weight_format, 1) * self.profile.compute_share
        if not self.profile.reuses_weights or tokens <= 2:
            return params / rate
        efficiency = gemm_efficiency(tokens * self.model.top_k / distinct)
        return min(params / rate, 2 * params / (self.duck.flops_per_s * efficiency))

    # ---- wire

    def wire_bytes(self, payload: float) -> float:
        """Bytes on the cable, with the overhead of every packet."""
        return payload * (1 + PACKET_OVERHEAD_BYTES / FRAGMENT_BYTES[self.mtu])

    def dispatch_wire_bytes(self, tokens: int) -> float:
        ids = tokens * self.model.top_k * 6 + 64  # experts.h: id 2 B, weight 4 B, header
        return self.wire_bytes(tokens * self.model.hidden * self.profile.dispatch_bytes + ids)

    def result_wire_bytes(self, tokens: int) -> float:
        return self.wire_bytes(tokens * self.model.hidden * self.profile.result_bytes)

    def duck_link_s(self, wire_bytes: float) -> float:
        return wire_bytes * 8 / (self.nic_mbps * 1e6)

    def host_link_s(self, wire_bytes: float) -> float:
        return wire_bytes * 8 / (self.host_nic_mbps * 1e6)

    # ---- GPU

    def gpu_s(self, params: float, rows: int, extra_bytes: float = 0.0) -> float:
        """Seconds for matrices of ``params`` weights times ``rows`` rows."""
        moved = params * self.model.gpu_bytes_per_param + extra_bytes
        memory_s = moved * self.profile.gpu_over_floor / (self.gpu.memory_gb_s * 1e9)
        flops_s = 2 * params * rows / (self.gpu.tflops * 1e12 * self.profile.gpu_flops_share)
        return max(memory_s, flops_s)

    def cache_bytes_read(self) -> float:
        """KV and indexer cache that one row reads in one layer."""
        model = self.model
        tokens = min(self.context, model.kv_read_tokens_max or self.context)
        index = model.index_bytes_per_token_layer * self.context
        return float(tokens * model.kv_bytes_per_token_layer + index)

    def attention_s(self, rows: int) -> float:
        """Attention and router of one layer, until the call can leave."""
        router = self.model.hidden * self.model.experts * 2.0
        work = self.gpu_s(self.model.attention_params, rows, self.cache_bytes_read() + router)
        return max(self.profile.host_us_per_layer * 1e-6, work) + self.profile.flag_us * 1e-6

    def shared_s(self, rows: int) -> float:
        """The shared expert; the host launches it together with attention."""
        return self.gpu_s(3 * self.model.hidden * self.model.shared_intermediate, rows)

    def dense_s(self, rows: int) -> float:
        """One dense layer."""
        model = self.model
        work = self.gpu_s(
            model.attention_params + 3 * model.hidden * model.dense_intermediate, rows
        )
        return max(self.profile.host_us_per_layer * 1e-6, work)

    def head_s(self) -> float:
        """Final norm and the head, bf16."""
        size = self.model.vocabulary * self.model.hidden * 2.0
        return self.gpu_s(0, 1, size)

    def mtp_entry_s(self) -> float:
        """eh_proj of the MTP layer, bf16."""
        return self.gpu_s(0, 1, 4.0 * self.model.hidden**2)

    def gpu_weight_bytes(self) -> float:
        """Everything that is not a routed expert, without the embedding table."""
        model = self.model
        per_layer = model.attention_params * model.gpu_bytes_per_param
        layers = model.layers + (model.mtp_layers if self.mtp else 0)
        shared = 3 * model.hidden * model.shared_intermediate * model.gpu_bytes_per_param
        dense = 3 * model.hidden * model.dense_intermediate * model.gpu_bytes_per_param
        head = model.vocabulary * model.hidden * 2
        total = layers * per_layer + self.expert_layers * (
            shared + 2 * model.hidden * model.experts
        )
        total += model.dense_layers * dense + head
        return float(total + (4 * model.hidden**2 if self.mtp else 0))

    def kv_bytes_per_token(self) -> float:
        model = self.model
        layers = model.layers + (model.mtp_layers if self.mtp else 0)
        return float(layers * (model.kv_bytes_per_token_layer + model.index_bytes_per_token_layer))


@dataclass(frozen=True)
class Fit:
    """Bytes against what there is."""

    duck_needed: float
    duck_available: float
    gpu_needed: float
    gpu_available: float
    context_max: int  # tokens of cache that fit beside the weights

    @property
    def problems(self) -> tuple[str, ...]:
        """What does not fit."""
        found = []
        if self.duck_needed > self.duck_available:
            found.append(
                f"each duck needs {self.duck_needed / GIB:.1f} GiB of weights and has "
                f"{max(0.0, self.duck_available) / GIB:.1f} GiB for them"
            )
        if self.gpu_needed > self.gpu_available:
            found.append(
                f"the GPU needs {self.gpu_needed / GIB:.1f} GiB and has "
                f"{self.gpu_available / GIB:.1f} GiB"
            )
        return tuple(found)


def memory_fit(setup: Setup) -> Fit:
    """Weights on the fullest duck; weights, cache of ``context`` and workspace on the GPU."""
    duck_available = (setup.duck.memory_gib - setup.profile.runtime_gib) * GIB
    gpu_available = setup.gpu.memory_gib * GIB
    fixed = setup.gpu_weight_bytes() + GPU_WORKSPACE_GIB * GIB
    per_token = setup.kv_bytes_per_token()
    left = max(0.0, gpu_available - fixed)
    return Fit(
        duck_needed=setup.duck_weight_bytes(),
        duck_available=duck_available,
        gpu_needed=fixed + setup.context * per_token,
        gpu_available=gpu_available,
        context_max=min(setup.model.context, int(left / per_token)),
    )


def valid_duck_counts(model: ModelShape) -> Sequence[int]:
    """Counts that give every duck the same rows."""
    panels = model.moe_intermediate // PANEL_ROWS
    return [n for n in range(1, min(panels, DUCKS_MAX) + 1) if panels % n == 0]


def check_topology(setup: Setup) -> None:
    """Raises PlanError for a fleet that cannot be cabled or sliced."""
    panels = setup.model.moe_intermediate // PANEL_ROWS
    limit = min(panels, DUCKS_MAX)
    if not 1 <= setup.duck_count <= limit:
        why = (
            f"its experts have {panels} panels of {PANEL_ROWS} rows, and a fleet {DUCKS_MAX} ducks"
        )
        raise PlanError(
            f"{setup.model.title} cannot be spread over {setup.duck_count} ducks: {why}",
            f"ducks with equal slices: {', '.join(map(str, valid_duck_counts(setup.model)))}",
        )
    if not 1 <= setup.domain_count <= min(setup.duck_count, DOMAINS_MAX):
        raise PlanError(
            f"{setup.duck_count} ducks cannot form {setup.domain_count} domains",
            f"a domain has at least one duck, and a host at most {DOMAINS_MAX} domains",
        )
    if setup.nic_mbps > setup.host_nic_mbps:
        raise PlanError(
            f"the ducks' links ({setup.nic_mbps:g} Mbit/s) are faster than the host's "
            f"({setup.host_nic_mbps:g})",
            "give the host's port of a domain with --host-nic",
        )
    if setup.mtp and not setup.model.mtp_layers:
        raise PlanError(f"{setup.model.title} has no MTP layer", "leave --mtp out")


def require_fit(setup: Setup) -> Fit:
    """The fit, or PlanError with the formats and duck counts that would do."""
    fit = memory_fit(setup)
    if not fit.problems:
        return fit
    hints = []
    if fit.duck_available <= 0:
        hints.append(f"a duck must have more than {setup.profile.runtime_gib:g} GiB")
    elif fit.duck_needed > fit.duck_available:
        share = fit.duck_needed / fit.duck_available * setup.duck_count
        enough = [n for n in valid_duck_counts(setup.model) if n >= share]
        hints.append(f"it fits on {enough[0]} ducks" if enough else "no number of these ducks do")
        bits = FORMAT_BITS[setup.weight_format] * fit.duck_available / fit.duck_needed
        smaller = [name for name, size in FORMAT_BITS.items() if size <= bits]
        if smaller:
            hints.append(f"or in the format {smaller[0]}")
    if fit.gpu_needed > fit.gpu_available:
        hints.append(
            f"--context {fit.context_max} would fit on the GPU"
            if fit.context_max > 0
            else f"the GPU must have {fit.gpu_needed / GIB:.0f} GiB or more"
        )
    raise PlanError(
        f"{setup.model.title} in {setup.weight_format} does not fit: {'; '.join(fit.problems)}",
        "; ".join(hints),
    )
