"""The step pipeline as a simulation: lanes, GPU, domains with their links, ducks.

One call of one layer: GPU work -> host port of each domain (one broadcast) -> link of each duck
-> kernel -> link of the duck back -> host port -> sum. Links and ports carry one message at a time
and cut through (the slower of two in a row decides). Each duck computes one call at a time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from duckctl.plan.catalogue import ModelShape
from duckctl.plan.events import Body, Delay, Process, Resource, Simulation, Slice, Use
from duckctl.plan.profile import Schedule
from duckctl.plan.setup import Setup

US = 1e-6
STEPS = 2  # decode steps of a prediction; they differ by less than 1 %
CHUNKS_SIMULATED_MAX = 4  # of a prompt; the rest is taken to run at their pace


@dataclass(frozen=True)
class Machine:
    """The resources of one simulation."""

    gpu: Resource
    host_out: tuple[Resource, ...]
    host_in: tuple[Resource, ...]
    duck_in: tuple[Resource, ...]
    duck_out: tuple[Resource, ...]
    ducks: tuple[Resource, ...]

    @classmethod
    def of(cls, setup: Setup) -> Machine:
        domains = range(1, setup.domain_count + 1)
        names = [f"d{index + 1:02d}" for index in range(setup.duck_count)]
        return cls(
            gpu=Resource("gpu"),
            host_out=tuple(Resource(f"domain{d} out") for d in domains),
            host_in=tuple(Resource(f"domain{d} in") for d in domains),
            duck_in=tuple(Resource(f"{name} in") for name in names),
            duck_out=tuple(Resource(f"{name} out") for name in names),
            ducks=tuple(Resource(name) for name in names),
        )


@dataclass(frozen=True)
class StepResult:
    """Means over the simulated steps; shares are busy time over step time."""

    step_s: float
    gpu_s: float
    duck_s: float  # of the busiest duck
    shares: dict[str, float]
    slices: tuple[Slice, ...] = ()


def expected_distinct(model: ModelShape, tokens: int) -> float:
    """Experts that ``tokens`` random choices of top-k touch, on the average."""
    missed = (1 - model.top_k / model.experts) ** tokens
    return model.experts * (1 - missed)


class Pipeline:
    """Work of one setup on one machine."""

    def __init__(self, setup: Setup, record: bool = False) -> None:
        self.setup = setup
        self.simulation = Simulation(record)
        self.machine = Machine.of(setup)
        self.random = random.Random(setup.seed)

    def distinct_experts(self, tokens: int) -> float:
        """Experts that a call touches: drawn for one or two tokens, expected for more."""
        model = self.setup.model
        if tokens > 2:
            return expected_distinct(model, tokens)
        everyone = range(model.experts)
        picks = [self.random.sample(everyone, model.top_k) for _ in range(tokens)]
        return float(len({expert for pick in picks for expert in pick}))

    def kernel_s(self, duck: int, distinct: float, tokens: int) -> float:
        """One duck's time for one call, with its jitter."""
        profile = self.setup.profile
        time_s = self.setup.kernel_s(duck, distinct, tokens)
        time_s *= max(0.5, self.random.gauss(1.0, profile.jitter))
        if self.random.random() < profile.straggler_chance:
            time_s += profile.straggler_us * US
        return time_s

    # ---- a call

    def call(self, tokens: int, label: str) -> Body:
        """Dispatch to all ducks, compute, combine."""
        distinct = self.distinct_experts(tokens)
        yield Delay(self.setup.profile.host_send_us * US)
        parts = [
            self.simulation.spawn(self._domain(domain, distinct, tokens, label))
            for domain in range(self.setup.domain_count)
        ]
        yield from self.simulation.join(parts)
        yield Delay(self.setup.profile.host_receive_us * US)

    def _domain(self, domain: int, distinct: float, tokens: int, label: str) -> Body:
        setup = self.setup
        out_s = setup.host_link_s(setup.dispatch_wire_bytes(tokens))
        yield Use(self.machine.host_out[domain], out_s, label)
        parts = [
            self.simulation.spawn(self._duck(duck, distinct, tokens, label))
            for duck in range(setup.duck_count)
            if setup.domain_of(duck) == domain
        ]
        yield from self.simulation.join(parts)

    def _duck(self, duck: int, distinct: float, tokens: int, label: str) -> Body:
        setup, profile, machine = self.setup, self.setup.profile, self.machine
        wire_bytes = setup.dispatch_wire_bytes(tokens)
        rest_s = max(0.0, setup.duck_link_s(wire_bytes) - setup.host_link_s(wire_bytes))
        switch_s = profile.switch_us * US
        yield Use(machine.duck_in[duck], rest_s, label, after_s=switch_s)
        work_s = self.kernel_s(duck, distinct, tokens)
        work_s += (profile.duck_receive_us + profile.launch_us + profile.duck_reply_us) * US
        yield Use(machine.ducks[duck], work_s, label)
        reply = setup.result_wire_bytes(tokens)
        port = machine.host_in[setup.domain_of(duck)]
        yield Use(
            machine.duck_out[duck],
            setup.duck_link_s(reply),
            label,
            after_s=switch_s,
            also=port,
            also_s=setup.host_link_s(reply),
        )

    # ---- layers

    def _shared(self, tokens: int, label: str) -> Body:
        if self.setup.profile.host_us_per_layer == 0:  # else launched together with attention
            yield Use(self.machine.gpu, self.setup.shared_s(tokens), f"{label} shared")

    def _start_experts(self, tokens: int, label: str) -> list[Process]:
        call = self.simulation.spawn(self.call(tokens, label))
        return [call, self.simulation.spawn(self._shared(tokens, label))]

    def moe_layer(self, tokens: int, label: str) -> Body:
        """One layer of one lane."""
        yield Use(self.machine.gpu, self.setup.attention_s(tokens), f"{label} attention")
        yield from self.simulation.join(self._start_experts(tokens, label))

    def dense_layer(self, tokens: int, label: str) -> Body:
        yield Use(self.machine.gpu, self.setup.dense_s(tokens), f"{label} dense")

    def lane(self, tokens: int, name: str) -> Body:
        """All main layers of one lane."""
        model = self.setup.model
        for layer in range(model.layers):
            label = f"{name} {layer}"
            if layer < model.dense_layers:
                yield from self.dense_layer(tokens, label)
            else:
                yield from self.moe_layer(tokens, label)

    def barrier_lanes(self, names: Sequence[str]) -> Body:
        """Lanes that wait for each other at the end of every layer."""
        model = self.setup.model
        for layer in range(model.layers):
            if layer < model.dense_layers:
                for name in names:
                    yield from self.dense_layer(1, f"{name} {layer}")
                continue
            started: list[Process] = []
            for name in names:
                label = f"{name} {layer}"
                yield Use(self.machine.gpu, self.setup.attention_s(1), f"{label} attention")
                started += self._start_experts(1, label)
            yield from self.simulation.join(started)

    # ---- steps

    def main_layers(self, schedule: Schedule | str) -> Body:
        """Both tokens of a step (one without MTP) through the main layers."""
        names = ("A", "B") if self.setup.mtp else ("A",)
        if schedule == "merged":
            yield from self.lane(len(names), "AB")
        elif schedule == "barrier":
            yield from self.barrier_lanes(names)
        elif schedule == "serial":
            for name in names:
                yield from self.lane(1, name)
        else:
            lanes = [self.simulation.spawn(self.lane(1, name)) for name in names]
            yield from self.simulation.join(lanes)

    def step(self, schedule: Schedule | str) -> Body:
        """One decode step: main layers, head, and the MTP layer that drafts for the next one."""
        yield from self.main_layers(schedule)
        yield Use(self.machine.gpu, self.setup.head_s(), "head")
        if not self.setup.mtp:
            return
        accepted = self.random.random() < self.setup.acceptance
        yield Use(self.machine.gpu, self.setup.mtp_entry_s(), "mtp")
        yield from self.moe_layer(2 if accepted else 1, "mtp")
        yield Use(self.machine.gpu, self.setup.head_s(), "mtp head")

    def run_steps(self, count: int, schedule: Schedule | str) -> StepResult:
        """``count`` decode steps, one after the other."""

        def steps() -> Body:
            for _ in range(count):
                yield from self.step(schedule)

        self.simulation.spawn(steps())
        total_s = self.simulation.run()
        return StepResult(
            step_s=total_s / count,
            gpu_s=self.machine.gpu.busy_s / count,
            duck_s=max(duck.busy_s for duck in self.machine.ducks) / count,
            shares=self._shares(total_s),
            slices=tuple(self.simulation.slices),
        )

    def _shares(self, total_s: float) -> dict[str, float]:
        machine = self.machine

        def share(resources: Sequence[Resource]) -> float:
            return max(resource.busy_s for resource in resources) / total_s

        return {
            "GPU": share([machine.gpu]),
            "duck kernels": share(machine.ducks),
            "duck links": max(share(machine.duck_in), share(machine.duck_out)),
            "host ports": max(share(machine.host_in), share(machine.host_out)),
        }


def decode(setup: Setup, steps: int = STEPS, schedule: Schedule | str | None = None) -> StepResult:
    """Decoding with the schedule of the profile, or another one."""
    return Pipeline(setup).run_steps(steps, schedule or setup.profile.schedule)


def traced_step(setup: Setup) -> StepResult:
    """One decode step with every use of every resource."""
    return Pipeline(setup, record=True).run_steps(1, setup.profile.schedule)


def overlap_ratio(setup: Setup) -> float:
    """Time saved by overlapping, over the time that could be saved.

    At best the busier of GPU and ducks hides all the rest.
    """
    serial = decode(setup, schedule="serial")
    actual = decode(setup)
    possible = serial.step_s - max(serial.gpu_s, serial.duck_s)
    if possible <= 0:  # one part takes so long that nothing else can be seen beside it
        return 0.0
    return (serial.step_s - actual.step_s) / possible


def round_trip_s(setup: Setup, tokens: int = 1) -> tuple[float, float]:
    """One call on idle ducks: round trip, and the longest kernel in it, in seconds."""
    pipeline = Pipeline(setup)
    pipeline.simulation.spawn(pipeline.call(tokens, "call"))
    total_s = pipeline.simulation.run()
    profile = setup.profile
    fixed_s = (profile.duck_receive_us + profile.launch_us + profile.duck_reply_us) * US
    return total_s, max(duck.busy_s for duck in pipeline.machine.ducks) - fixed_s


def prefill_s(setup: Setup, prompt_tokens: int) -> float:
    """Seconds from the request to the first token."""
    chunk = setup.profile.prefill_chunk
    whole, rest = divmod(prompt_tokens, chunk)
    if setup.profile.remainder_token_by_token:
        single_s = _chunks_s(setup, [1], overlap=False) if rest else 0.0
        head_s = setup.head_s()
        return _chunks_s(setup, [chunk] * whole, overlap=False) + rest * single_s + head_s
    chunks = [chunk] * whole + ([rest] if rest else [])
    return _chunks_s(setup, chunks, overlap=True) + setup.head_s()


def _chunks_s(setup: Setup, chunks: Sequence[int], overlap: bool) -> float:
    """Chunks of a prompt; with overlap two are on their way at any time."""
    if not chunks:
        return 0.0
    part = list(chunks[-CHUNKS_SIMULATED_MAX:])
    pipeline = Pipeline(setup)

    def lane(sizes: Sequence[int], name: str) -> Body:
        for size in sizes:
            yield from pipeline.lane(size, name)

    if overlap:
        pipeline.simulation.spawn(lane(part[::2], "A"))
        pipeline.simulation.spawn(lane(part[1::2], "B"))
    else:
        pipeline.simulation.spawn(lane(part, "A"))
    return pipeline.simulation.run() * sum(chunks) / sum(part)
