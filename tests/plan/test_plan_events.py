"""The discrete-event engine serves in order, waits for what it is told to, and repeats itself."""

from __future__ import annotations

from duckctl.plan.events import Body, Delay, Resource, Simulation, Use


def test_resource_serves_one_at_a_time_in_order() -> None:
    simulation, gpu = Simulation(record=True), Resource("gpu")

    def user(label: str, wait_s: float) -> Body:
        yield Delay(wait_s)
        yield Use(gpu, 2.0, label)

    for label, wait_s in (("second", 0.5), ("first", 0.0), ("third", 0.5)):
        simulation.spawn(user(label, wait_s))
    assert simulation.run() == 6.0
    assert [(s.label, s.start_s) for s in simulation.slices] == [
        ("first", 0.0),
        ("second", 2.0),
        ("third", 4.0),
    ]
    assert gpu.busy_s == 6.0


def test_use_of_two_resources_ends_with_the_later_one() -> None:
    simulation, link, port = Simulation(), Resource("link"), Resource("port")
    ends = []

    def message() -> Body:
        yield Use(link, 1.0, also=port, also_s=3.0, after_s=0.5)
        ends.append(simulation.now)

    simulation.spawn(message())
    simulation.spawn(message())
    simulation.run()
    assert ends == [3.5, 6.5]


def test_join_waits_for_all_and_passes_when_they_have_ended() -> None:
    simulation = Simulation()
    times = []

    def part(duration_s: float) -> Body:
        yield Delay(duration_s)

    def whole() -> Body:
        parts = [simulation.spawn(part(duration_s)) for duration_s in (3.0, 1.0)]
        yield from simulation.join(parts)
        times.append(simulation.now)
        yield from simulation.join(parts)
        times.append(simulation.now)

    simulation.spawn(whole())
    simulation.run()
    assert times == [3.0, 3.0]
