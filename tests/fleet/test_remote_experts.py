"""Random experts computed by real ducks equal the formula, for any number of ducks and tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from duck_process import Duck, running_ducks
from fleet_files import fleet_content, write_json
from random_experts import RandomExperts, random_call

from duckctl.native import native_path
from host_runtime import wire
from host_runtime.errors import HostError
from host_runtime.experts.call_trace import CallRecorder, DuckPlace, ticket_of
from host_runtime.experts.remote import (
    CallMessage,
    MessageLayout,
    RemoteExperts,
    RemoteOptions,
    quantise_fp8,
)
from host_runtime.fleet.config import load_fleet
from host_runtime.transport import Faults, native

SEED = 11
# float32 sums of a few hundred terms; measured errors are 20 times smaller.
F32_BOUND = 2e-5


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def remote_experts(
    folder: Path,
    count: int,
    experts: RandomExperts,
    options: RemoteOptions | None = None,
    *,
    layout: str = "fp8",
    kernel: str = "experts-avx2.elf",
) -> Iterator[tuple[list[Duck], RemoteExperts]]:
    cache_file = experts.write_cache(folder / "cache", count, layout)
    with running_ducks(folder, count) as (ducks, fleet):
        remote = RemoteExperts(
            fleet, cache_file, native_path(kernel), native_path("libduckhost.so"), options
        )
        try:
            remote.start()
            yield ducks, remote
        finally:
            remote.close()


def assert_close(actual: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    """Largest difference against the largest value; ``bound`` is that quotient."""
    assert actual.dtype == torch.float32 and actual.shape == expected.shape
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error <= bound, f"error {error:.2e}, bound {bound:.0e}"


@pytest.mark.parametrize(
    ("ducks", "layout"), [(1, "fp8"), (1, "fp9"), (2, "fp8"), (3, "fp8"), (4, "fp9"), (8, "fp8")]
)
def test_results_equal_the_formula(tmp_path: Path, ducks: int, layout: str) -> None:
    experts = RandomExperts(SEED)
    with remote_experts(tmp_path, ducks, experts, layout=layout) as (_, remote):
        for number, tokens in enumerate((1, 2, 7, 40)):
            layer = 1 + number % 2
            call = random_call(experts, SEED + number, tokens)
            actual = remote.submit(layer, *call).wait()
            assert_close(actual, experts.reference(layer, *call), F32_BOUND)
        assert [(s.name, s.ready, s.state) for s in remote.status()] == [
            (f"d{slot + 1:02}", True, "serving") for slot in range(ducks)
        ]


def test_two_domains(tmp_path: Path) -> None:
    """Each domain has a port and a thread of its own; the sum runs over all ducks."""
    experts = RandomExperts(SEED)
    call = random_call(experts, SEED, 3)
    cache_file = experts.write_cache(tmp_path / "cache", 4)
    with running_ducks(tmp_path, 4) as (ducks, fleet):
        content = fleet_content(fleet.key_file, [duck.port for duck in ducks])
        content["domains"].append({**content["domains"][0], "name": "domain2"})
        for duck in content["ducks"][2:]:
            duck["domain"] = "domain2"
        files = (cache_file, native_path("experts-avx2.elf"), native_path("libduckhost.so"))
        remote = RemoteExperts(load_fleet(write_json(tmp_path / "two.json", content)), *files)
        try:
            remote.start()
            actual = remote.submit(1, *call).wait()
        finally:
            remote.close()
    assert_close(actual, experts.reference(1, *call), F32_BOUND)


def test_scalar_and_avx2_kernels_give_the_same_bits(tmp_path: Path) -> None:
    experts = RandomExperts(SEED)
    call = random_call(experts, SEED, 3)
    results = []
    for kernel in ("experts-scalar.elf", "experts-avx2.elf"):
        with remote_experts(tmp_path, 2, experts, kernel=kernel) as (_, remote):
            results.append(remote.submit(2, *call).wait())
    assert torch.equal(*results)


def test_a_row_does_not_depend_on_the_others(tmp_path: Path) -> None:
    experts = RandomExperts(SEED)
    hidden, ids, weights = random_call(experts, SEED, 9)
    with remote_experts(tmp_path, 2, experts) as (_, remote):
        together = remote.submit(1, hidden, ids, weights).wait()
        for row in range(9):
            one = slice(row, row + 1)
            alone = remote.submit(1, hidden[one], ids[one], weights[one]).wait()
            assert torch.equal(alone, together[one])


def test_long_calls_are_cut_into_messages(tmp_path: Path) -> None:
    experts = RandomExperts(SEED, hidden=128, intermediate=64, experts=2)
    call = random_call(experts, SEED, 29, top_k=2)
    with remote_experts(tmp_path, 2, experts) as (_, remote):
        whole = remote.submit(1, *call).wait()
    with remote_experts(tmp_path, 2, experts, RemoteOptions(tokens_max=8)) as (_, remote):
        assert torch.equal(remote.submit(1, *call).wait(), whole)
        # four messages (8 + 8 + 8 + 5 tokens) went to each duck
        assert [int(status.counters["calls"]) for status in remote.status()] == [4, 4]
    assert_close(whole, experts.reference(1, *call), F32_BOUND)


def test_more_tokens_than_one_message_may_have(tmp_path: Path) -> None:
    experts = RandomExperts(SEED, hidden=128, intermediate=32, experts=2)
    tokens = 2 * wire.EXPERTS_TOKENS_MAX + 1
    call = random_call(experts, SEED, tokens, top_k=1)
    with remote_experts(tmp_path, 1, experts) as (_, remote):
        actual = remote.submit(1, *call).wait()
    some = [0, 511, 512, 1023, 1024]
    assert_close(actual[some], experts.reference(1, *(part[some] for part in call)), F32_BOUND)


def test_several_calls_in_flight(tmp_path: Path) -> None:
    experts = RandomExperts(SEED)
    calls = [(1 + n % 2, random_call(experts, SEED + n, 1 + n)) for n in range(4)]
    with remote_experts(tmp_path, 2, experts) as (_, remote):
        alone = [remote.submit(layer, *call).wait() for layer, call in calls]
        for _ in range(20):
            pending = [remote.submit(layer, *call) for layer, call in calls]
            for result, one in zip(reversed(alone), reversed(pending), strict=True):
                assert torch.equal(one.wait(), result)


def test_abandoned_calls_give_their_credit_back(tmp_path: Path) -> None:
    experts = RandomExperts(SEED)
    call = random_call(experts, SEED, 2)
    with remote_experts(tmp_path, 2, experts) as (_, remote):
        first = remote.submit(1, *call).wait()
        for _ in range(3 * wire.WIRE_CALLS_IN_FLIGHT_MAX):
            remote.submit(1, *call)  # nobody waits
        assert torch.equal(remote.submit(1, *call).wait(), first)


def test_calls_from_several_threads(tmp_path: Path) -> None:
    experts = RandomExperts(SEED)
    calls = [random_call(experts, SEED + n, 2) for n in range(3)]
    wrong: list[int] = []
    with remote_experts(tmp_path, 2, experts) as (_, remote):
        alone = [remote.submit(1, *call).wait() for call in calls]

        def work(number: int) -> None:
            for _ in range(40):
                if not torch.equal(remote.submit(1, *calls[number]).wait(), alone[number]):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_bf16_on_the_wire(tmp_path: Path) -> None:
    experts = RandomExperts(SEED)
    hidden, ids, weights = random_call(experts, SEED, 5)
    rounded = hidden.bfloat16().float()
    options = RemoteOptions(activation_dtype=wire.Dtype.BF16)
    with remote_experts(tmp_path, 2, experts, options) as (_, remote):
        actual = remote.submit(1, hidden, ids, weights).wait()
        assert_close(actual, experts.reference(1, rounded, ids, weights), F32_BOUND)
    both = RemoteOptions(activation_dtype=wire.Dtype.BF16, result_dtype=wire.Dtype.BF16)
    with remote_experts(tmp_path, 2, experts, both) as (_, remote):
        # two partial sums, each rounded to 8 bits: at most 2 * 2^-9 of the larger partial sums
        actual = remote.submit(1, hidden, ids, weights).wait()
        assert_close(actual, experts.reference(1, rounded, ids, weights), 2**-7)


def test_fp8_on_the_wire(tmp_path: Path) -> None:
    """Ducks compute with exactly the E4M3 values and scales that were sent, on both kernels alike;
    a row of zeros, one of tiny and one of large values among them."""
    experts = RandomExperts(SEED)
    hidden, ids, weights = random_call(experts, SEED, 6)
    hidden[1] = 0
    hidden[2] *= 1e-6
    hidden[3] *= 100
    rows, scales = quantise_fp8(hidden)
    sent = rows.float() * scales.repeat_interleave(128, dim=1)
    assert (sent - hidden).abs().max() <= hidden.abs().max() / 16  # half of 2^-3
    assert wire.experts_activation_bytes(6, experts.hidden, wire.Dtype.FP8) == (
        6 * experts.hidden * 33 // 32
    )
    options = RemoteOptions(activation_dtype=wire.Dtype.FP8)
    with remote_experts(tmp_path, 2, experts, options) as (_, remote):
        actual = remote.submit(1, hidden, ids, weights).wait()
    expected = experts.reference(1, sent, ids, weights)
    assert torch.equal(actual[1], torch.zeros_like(actual[1]))
    for row in (0, 2, 3, 4, 5):
        assert_close(actual[row : row + 1], expected[row : row + 1], F32_BOUND)


def test_packet_faults_change_nothing(tmp_path: Path) -> None:
    """Loading and calls under loss, duplication, reordering and damage give the same bits."""
    experts = RandomExperts(SEED)
    calls = [random_call(experts, SEED + n, 1 + n % 3) for n in range(30)]
    with remote_experts(tmp_path, 4, experts) as (_, remote):
        expected = [remote.submit(1, *call).wait() for call in calls]
    faults = Faults(seed=SEED, drop=0.05, duplicate=0.05, reorder=0.05, corrupt=0.02)
    with remote_experts(tmp_path, 4, experts, RemoteOptions(faults=faults)) as (_, remote):
        for call, result in zip(calls, expected, strict=True):
            assert torch.equal(remote.submit(1, *call).wait(), result)
        assert sum(status.counters["resent"] for status in remote.status()) > 0


def test_wrong_calls_are_refused_before_they_travel(tmp_path: Path) -> None:
    experts = RandomExperts(SEED, hidden=128, intermediate=32, experts=2)
    hidden, ids, weights = random_call(experts, SEED, 2, top_k=2)
    with remote_experts(tmp_path, 1, experts) as (_, remote):
        for arguments, message in (
            ((9, hidden, ids, weights), "layer 9 has no experts"),
            ((1, hidden[:, :64], ids, weights), r"hidden has shape \[2, 64\]"),
            ((1, hidden[:0], ids[:0], weights[:0]), r"hidden has shape \[0, 128\]"),
            ((1, hidden, ids[:1], weights), "must be"),
            ((1, hidden, ids, weights[:, :1]), "must be"),
            ((1, hidden, ids + 1, weights), "expert ids 1 to 2, the cache has 2"),
            ((1, hidden, ids - 1, weights), "expert ids -1 to 0"),
            ((1, hidden, ids.repeat(1, 9), weights.repeat(1, 9)), "18 experts per token"),
        ):
            with pytest.raises(HostError, match=message):
                remote.submit(*arguments)
        assert all(status.ready for status in remote.status())


def test_message_layout() -> None:
    """Bytes of a message as experts.h draws them, read back field by field, filled twice."""
    layout = MessageLayout(tokens=3, top_k=3, hidden=128, dtype=wire.Dtype.F32)
    message = CallMessage(layout, wire.Dtype.BF16)
    generator = torch.Generator().manual_seed(SEED)
    hidden = torch.randn(3, 128, generator=generator)
    ids = torch.tensor([[0, 1, 2], [40000, 3, 4], [5, 6, 65534]])
    weights = torch.rand(3, 3, generator=generator)
    message.fill(1, torch.full((3, 128), -1.0), torch.full((3, 3), 9), torch.full((3, 3), -1.0))
    message.fill(77, hidden, ids, weights)
    raw = message.raw()
    header = wire.ExpertsCall.from_buffer_copy(raw)
    assert (header.magic, header.layer) == (wire.EXPERTS_CALL_MAGIC, 77)
    assert (header.token_count, header.top_k, header.hidden_size) == (3, 3, 128)
    assert (header.activation_dtype, header.result_dtype) == (wire.Dtype.F32, wire.Dtype.BF16)
    assert (header.body, header.reserved) == (0, 0)
    assert header.activation_offset == 128
    assert raw[32:50] == ids.to(torch.uint16).numpy().tobytes()
    assert raw[50:56] == bytes(6)
    assert raw[56:92] == weights.numpy().tobytes()
    assert raw[92:128] == bytes(36)
    assert raw[128:] == hidden.numpy().tobytes()
    assert message.address % 64 == 0


def test_a_trace_joins_calls_of_the_same_session_only() -> None:
    """Call 1 of the second session is not call 1 of the first: each has its layer and ducks."""
    recorder = CallRecorder(8)
    entries = []
    for session, layer in ((1, 3), (2, 57)):
        recorder.submitted(ticket_of(session, 1), layer, 1)
        recorder.waited(ticket_of(session, 1), session + 0.1, session + 0.2)
        times = {"submit_ns": session * 10**9, "sent_ns": 0, "done_ns": 0}
        entries.append(native.TraceEntry(call=1, duck=0, session=session, **times))
    calls = recorder.document(entries, [DuckPlace("d01", "a")])
    assert [(call["layer"], call["submit_s"]) for call in calls] == [(3, 1.0), (57, 2.0)]
    assert [call["wait_begin_s"] for call in calls] == [1.1, 2.1]
    assert [len(call["ducks"]) for call in calls] == [1, 1]
