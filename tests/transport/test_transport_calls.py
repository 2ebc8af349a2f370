"""Calls give the same bits whatever the arrival order, and end with a result or a named error."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from relay import relayed
from transport_kit import (
    BUSY,
    CRASH,
    ECHO,
    FOREVER,
    GENERATE,
    OPEN_MS,
    REFUSE,
    call,
    factor_of,
    let_pass,
    library,
    load,
    make_a_long_call,
    message,
    open_request,
    running_shelf,
    scale_call,
    scaled_sum,
    serving,
    submit,
    wait_sum,
)

from host_runtime import wire
from host_runtime.transport import (
    DeadlineError,
    DomainEndpoint,
    DuckEndpoint,
    DuckFaultError,
    DuckRefusedError,
    DuckUnreachableError,
    Faults,
    Transport,
    TransportCode,
    TransportError,
    TransportOptions,
)

QUICK = TransportOptions(silence_ms=800, ping_ms=100)


def test_sum_is_in_duck_order_whatever_arrives_first(tmp_path: Path, echo_kernel: bytes) -> None:
    """4 ducks in 2 domains, packets late by random times: each sum equals the ordered one."""
    generator = np.random.default_rng(3)
    with running_shelf(tmp_path, echo_kernel, [0, 0, 1, 1]) as shelf, serving(shelf) as transport:
        transport.set_faults(Faults(seed=5, delay_us=2000))
        slowest = set()
        for _ in range(60):
            values = generator.standard_normal(700).astype(np.float32)
            ticket = submit(transport, scale_call(values))
            out = np.empty(700, np.float32)
            timing = transport.wait_sum(ticket, wire.Dtype.F32, out.ctypes.data, 700)
            slowest.add(timing.slowest)
            np.testing.assert_array_equal(out, scaled_sum(values, range(4)))
        assert len(slowest) > 1, "the delays did not change who came last"
        assert transport.domain_stats(0).faults.delayed > 0


def test_bf16_outputs_are_added_as_float32(tmp_path: Path, echo_kernel: bytes) -> None:
    generator = np.random.default_rng(4)
    with running_shelf(tmp_path, echo_kernel, [0, 0, 0]) as shelf, serving(shelf) as transport:
        words = generator.integers(0x3000, 0x4800, 800).astype(np.uint16)
        content = message(ECHO, data=words.tobytes())
        whole = np.frombuffer(content, np.uint16).astype(np.uint32) << 16
        values = whole.view(np.float32)
        total = wait_sum(transport, submit(transport, content), len(values), wire.Dtype.BF16)
        np.testing.assert_array_equal(total, (values + values) + values)


def test_tickets_are_released_in_any_order(tmp_path: Path, echo_kernel: bytes) -> None:
    """Four calls are with the ducks at a time; eight may be unreleased, the ninth is refused."""
    with running_shelf(tmp_path, echo_kernel, [0, 0]) as shelf, serving(shelf) as transport:
        values = np.arange(100, dtype=np.float32)
        tickets = [submit(transport, scale_call(values * i)) for i in range(8)]
        with pytest.raises(TransportError, match="8 calls are not released") as caught:
            submit(transport, scale_call(values))
        assert caught.value.code is TransportCode.STATE
        transport.release(tickets[0])  # abandoned
        for i in (7, 3, 1, 2, 4, 6):  # the fifth stays
            out = wait_sum(transport, tickets[i], 100)
            np.testing.assert_array_equal(out, scaled_sum(values * np.float32(i), range(2)))
        with pytest.raises(TransportError, match="is not a call in flight"):
            wait_sum(transport, tickets[1], 100)
        for _ in range(20):
            np.testing.assert_array_equal(
                call(transport, scale_call(values), 100), scaled_sum(values, range(2))
            )
        out = wait_sum(transport, tickets[5], 100)
        np.testing.assert_array_equal(out, scaled_sum(values * np.float32(5), range(2)))


def test_a_domain_without_ducks_is_in_nobodys_way(tmp_path: Path, echo_kernel: bytes) -> None:
    """Faults, sessions and calls of a fleet whose second domain is empty, as in a spare one."""
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf:
        duck = shelf.ducks[0]
        domains = [DomainEndpoint(name, None, None, 1500) for name in ("domain1", "spare")]
        ducks = [DuckEndpoint("d01", duck.address, duck.port, 0)]
        with Transport(library(), domains, ducks, shelf.key) as transport:
            load(transport, 0, echo_kernel, factor_of(0))
            transport.set_faults(Faults())
            transport.session_open([0], open_request(), OPEN_MS)
            values = np.ones(10, np.float32)
            for _ in range(6):
                np.testing.assert_array_equal(
                    call(transport, scale_call(values), 10), scaled_sum(values, [0])
                )
            transport.session_open([0], open_request(), OPEN_MS)  # fresh domain keys
            call(transport, scale_call(values), 10)
            transport.session_close()


def test_a_duck_with_other_weights_refuses_the_session(tmp_path: Path, echo_kernel: bytes) -> None:
    """Each duck is told its own id; the one that holds another is named, zero is any."""
    with running_shelf(tmp_path, echo_kernel, [0, 0]) as shelf, serving(shelf) as transport:
        with shelf.transport() as onlooker:
            ids = {i: bytes(onlooker.hello(i, 3000).info.weights_id) for i in range(2)}
        assert ids[0] != ids[1]
        transport.session_open(range(2), open_request(), OPEN_MS, ids)
        transport.session_open(range(2), open_request(), OPEN_MS, {1: ids[1]})
        with pytest.raises(DuckRefusedError, match=r"d02.* other weights") as caught:
            transport.session_open(range(2), open_request(), OPEN_MS, {0: ids[0], 1: ids[0]})
        assert caught.value.ducks == (1,)
        assert caught.value.status == wire.Status.ERR_NOT_COMMITTED
        with pytest.raises(ValueError, match="32 bytes"):
            transport.session_open(range(2), open_request(), OPEN_MS, {0: b"short"})
        values = np.ones(10, np.float32)
        transport.session_open(range(2), open_request(), OPEN_MS, ids)
        np.testing.assert_array_equal(
            call(transport, scale_call(values), 10), scaled_sum(values, range(2))
        )


def test_each_ducks_bytes_can_be_read(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0, 0]) as shelf, serving(shelf) as transport:
        values = np.arange(50, dtype=np.float32)
        ticket = submit(transport, scale_call(values))
        timing = transport.wait(ticket)
        assert timing.total_ns >= timing.kernel_ns > 0
        for duck in range(2):
            expected = (values * np.float32(factor_of(duck))).tobytes()
            assert transport.result(ticket, duck) == expected
        transport.release(ticket)
        with pytest.raises(TransportError, match="is not a call in flight"):
            transport.result(ticket, 0)


def test_large_calls_and_results_arrive_whole(tmp_path: Path, echo_kernel: bytes) -> None:
    generator = np.random.default_rng(6)
    with running_shelf(tmp_path, echo_kernel, [0, 0]) as shelf, serving(shelf) as transport:
        values = generator.standard_normal((1 << 18) - 4).astype(np.float32)  # 1 MiB message
        np.testing.assert_array_equal(
            call(transport, scale_call(values), len(values)), scaled_sum(values, range(2))
        )
        count = 1 << 20
        ticket = submit(transport, message(GENERATE, count * 4, seed=9))  # 4 MiB results
        transport.wait(ticket)
        words = np.frombuffer(transport.result(ticket, 1), np.uint32)
        transport.release(ticket)
        assert len(words) == count
        seed = 9 + int(np.float32(factor_of(1)).view(np.uint32))
        first = (seed * 1664525 + 1013904223) & 0xFFFFFFFF
        assert words[0] == first
        follow = words[:-1].astype(np.uint64) * 1664525 + 1013904223
        np.testing.assert_array_equal(words[1:], (follow & 0xFFFFFFFF).astype(np.uint32))


@pytest.mark.parametrize("released", [0, 1])
def test_the_fourth_call_goes_out_whatever_was_released_first(
    tmp_path: Path, echo_kernel: bytes, released: int
) -> None:
    """Of two finished calls one keeps its ticket; then four more are with the duck at once."""
    values = np.ones(10, np.float32)
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, serving(shelf) as transport:
        tickets = [submit(transport, scale_call(values)) for _ in range(2)]
        for ticket in tickets:
            transport.wait(ticket)
        transport.release(tickets[released])
        before = transport.duck_status(0).calls
        for _ in range(3):
            submit(transport, message(BUSY, 0xFFFFFFFF))
        submit(transport, scale_call(values))
        assert transport.duck_status(0).calls == before, "it went out while three were computed"


@pytest.mark.parametrize("mtu", [1280, 1495, 1500])  # 1495: 1411 bytes are left, 3 over 22 x 64
def test_every_packet_fits_the_domains_mtu(tmp_path: Path, echo_kernel: bytes, mtu: int) -> None:
    """The duck's RESULT too, which takes the CALL's stride and puts a prefix in front."""
    values = np.arange(3000, dtype=np.float32)
    with (
        running_shelf(tmp_path, echo_kernel, [0], mtu) as shelf,
        relayed((shelf.ducks[0].address, shelf.ducks[0].port)) as relay,
    ):
        domains = [DomainEndpoint("domain1", None, None, mtu)]
        ducks = [DuckEndpoint("d01", "127.0.0.1", relay.port, 0)]
        with Transport(library(), domains, ducks, shelf.key) as transport:
            load(transport, 0, echo_kernel, factor_of(0))
            transport.session_open([0], open_request(), OPEN_MS)
            np.testing.assert_array_equal(
                call(transport, scale_call(values), len(values)), scaled_sum(values, [0])
            )
    full = {wire.MessageType.CALL, wire.MessageType.RESULT, wire.MessageType.WRITE}
    assert all(mtu - 28 - 64 - 8 < relay.largest[kind] for kind in full)
    assert max(relay.largest.values()) + 28 <= mtu, relay.largest


def test_calls_of_more_fragments_than_a_duck_keeps_are_refused_by_name(
    tmp_path: Path, echo_kernel: bytes
) -> None:
    """At MTU 1400 the stride is 1280, and 23,832 fragments hold less than the wire's 32 MiB."""
    room = 23832 * 1280
    with running_shelf(tmp_path, echo_kernel, [0], mtu=1400) as shelf:
        with (
            pytest.raises(TransportError) as caught,
            serving(shelf, request=open_request(call_bytes_max=room + 1)),
        ):
            pass
        assert caught.value.code is TransportCode.ARGUMENT
        told = "calls of 30504961 bytes: domain domain1 with its MTU of 1400 carries at most "
        assert caught.value.message == f"{told}30504960 (23832 fragments of 1280 bytes)"
        assert "MTU of 1500" in caught.value.hint
        with serving(shelf, request=open_request(room, result_bytes_max=room)) as transport:
            ticket = submit(transport, message(GENERATE, 16, data=bytes(room - 16)))
            transport.wait(ticket)  # the largest one is whole
            assert len(transport.result(ticket, 0)) == 16


def test_used_up_call_numbers_end_the_session_until_it_is_opened_again(
    tmp_path: Path, echo_kernel: bytes
) -> None:
    """Calls under way finish; the error names all ducks of the session, not the third one."""
    values = np.ones(10, np.float32)
    options = TransportOptions(session_calls_max=5)
    with (
        running_shelf(tmp_path, echo_kernel, [0, 1, 0]) as shelf,
        serving(shelf, options) as transport,
    ):
        for _ in range(2):
            transport.session_open([0, 1], open_request(), OPEN_MS)
            for _ in range(4):
                call(transport, scale_call(values), 10)
            last = submit(transport, scale_call(values))
            for words in ("^all 5 call numbers", "the compute session has ended: all 5 call numb"):
                with pytest.raises(TransportError, match=words) as caught:
                    submit(transport, scale_call(values))
                assert caught.value.code is TransportCode.USED_UP
                assert (caught.value.duck, caught.value.ducks) == (-1, (0, 1))
            np.testing.assert_array_equal(
                wait_sum(transport, last, 10), scaled_sum(values, range(2))
            )


def test_wrong_result_size_is_named(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, serving(shelf) as transport:
        with pytest.raises(TransportError, match=r"d01 .* with 400 bytes, expected 404"):
            call(transport, scale_call(np.zeros(100, np.float32)), 101)
        with pytest.raises(TransportError, match="a call of 1048577 bytes"):
            submit(transport, bytes((1 << 20) + 1))


def test_a_refused_call_leaves_the_session_alive(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0, 0]) as shelf, serving(shelf) as transport:
        with pytest.raises(DuckFaultError, match="seven is refused") as caught:
            call(transport, message(REFUSE), 4)
        assert caught.value.status == wire.Status.ERR_BAD_REQUEST
        assert "d01" in caught.value.message or "d02" in caught.value.message
        values = np.ones(10, np.float32)
        for _ in range(6):
            np.testing.assert_array_equal(
                call(transport, scale_call(values), 10), scaled_sum(values, range(2))
            )


def test_a_crashing_kernel_is_named_and_can_be_opened_again(
    tmp_path: Path, echo_kernel: bytes
) -> None:
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, serving(shelf) as transport:
        with pytest.raises(DuckFaultError, match=r"d01 .*memory access at 0x40") as caught:
            call(transport, message(CRASH, 0x40), 4)
        assert caught.value.status == wire.Status.ERR_KERNEL_FAULT
        assert caught.value.detail == wire.FaultKind.MEMORY
        with pytest.raises(DuckFaultError, match="the compute session has ended: d01"):
            submit(transport, message(ECHO))
        transport.session_open([0], open_request(), OPEN_MS)
        values = np.ones(10, np.float32)
        np.testing.assert_array_equal(
            call(transport, scale_call(values), 10), scaled_sum(values, [0])
        )


def test_a_runaway_kernel_is_a_time_limit(tmp_path: Path, echo_kernel: bytes) -> None:
    request = open_request(time_limit_ms=300)
    with (
        running_shelf(tmp_path, echo_kernel, [0]) as shelf,
        serving(shelf, request=request) as transport,
    ):
        with pytest.raises(DuckFaultError, match=r"d01 .*time limit") as caught:
            call(transport, message(FOREVER), 4)
        assert caught.value.status == wire.Status.ERR_TIME_LIMIT


@pytest.mark.slow
def test_a_slow_call_is_a_deadline_though_the_duck_is_alive(
    tmp_path: Path, echo_kernel: bytes
) -> None:
    options = TransportOptions(silence_ms=800, ping_ms=100, call_ms=1500)
    request = open_request(time_limit_ms=20_000)
    with (
        running_shelf(tmp_path, echo_kernel, [0]) as shelf,
        serving(shelf, options, request) as transport,
    ):
        with pytest.raises(DeadlineError, match=r"d01 .*is alive, but did not finish call 1"):
            call(transport, message(FOREVER), 4)
        assert transport.duck_status(0).heard_age_ns < 800_000_000


def test_a_killed_duck_is_named_in_time_and_comes_back(tmp_path: Path, echo_kernel: bytes) -> None:
    with (
        running_shelf(tmp_path, echo_kernel, [0, 0, 1]) as shelf,
        serving(shelf, QUICK) as transport,
    ):
        tickets = [submit(transport, message(BUSY, 50_000_000)) for _ in range(2)]
        shelf.ducks[1].kill()
        begin = time.monotonic()
        with pytest.raises(DuckUnreachableError) as caught:
            wait_sum(transport, tickets[0], 4)
        assert time.monotonic() - begin < 3
        assert caught.value.ducks == (1,)
        address = f"d02 (127.0.0.1:{shelf.ducks[1].port})"
        assert caught.value.message.startswith(f"{address} does not answer: nothing received for")
        assert "during call" in caught.value.message
        with pytest.raises(TransportError, match="d02"):
            wait_sum(transport, tickets[1], 4)
        assert transport.duck_status(0).heard_age_ns < 800_000_000
        assert transport.duck_status(2).heard_age_ns < 800_000_000
        shelf.ducks[1].start()
        load(transport, 1, shelf.kernel, factor_of(1))
        transport.session_open(range(3), open_request(), OPEN_MS)
        values = np.ones(10, np.float32)
        np.testing.assert_array_equal(
            call(transport, scale_call(values), 10), scaled_sum(values, range(3))
        )


def test_all_dead_ducks_are_named(tmp_path: Path, echo_kernel: bytes) -> None:
    with (
        running_shelf(tmp_path, echo_kernel, [0, 0, 1]) as shelf,
        serving(shelf, QUICK) as transport,
    ):
        ticket = submit(transport, message(BUSY, 50_000_000))
        for duck in (0, 2):
            shelf.ducks[duck].kill()
        with pytest.raises(DuckUnreachableError) as caught:
            wait_sum(transport, ticket, 4)
        assert caught.value.ducks == (0, 2)
        assert "d01" in caught.value.message and "d03" in caught.value.message


def test_a_cut_duck_is_like_a_dead_one_until_it_returns(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0, 1]) as shelf, serving(shelf, QUICK) as transport:
        transport.set_faults(Faults(cut_ducks=(1,)))
        values = np.ones(10, np.float32)
        with pytest.raises(DuckUnreachableError, match="d02"):
            call(transport, scale_call(values), 10)
        transport.set_faults(Faults())
        transport.session_open(range(2), open_request(), OPEN_MS)
        np.testing.assert_array_equal(
            call(transport, scale_call(values), 10), scaled_sum(values, range(2))
        )


@pytest.mark.slow
def test_a_new_session_with_a_duck_ends_the_compute_session(
    tmp_path: Path, echo_kernel: bytes
) -> None:
    with running_shelf(tmp_path, echo_kernel, [0, 0]) as shelf, serving(shelf) as transport:
        values = np.ones(10, np.float32)
        for action, words in (
            (lambda: transport.hello(1, 5000), r"has ended: d02 \(.*\) began a new session"),
            (lambda: transport.detach(0), r"has ended: d01 \(.*\) was detached"),
        ):
            action()
            with pytest.raises(TransportError, match=words):
                submit(transport, scale_call(values))
            if not transport.duck_status(0).attached:
                with pytest.raises(TransportError, match=r"d01 .*needs a HELLO first"):
                    transport.session_open(range(2), open_request(), OPEN_MS)
                transport.hello(0, 5000)
            transport.session_open(range(2), open_request(), OPEN_MS)
            np.testing.assert_array_equal(
                call(transport, scale_call(values), 10), scaled_sum(values, range(2))
            )


@pytest.mark.slow
def test_a_host_that_was_stopped_blames_no_duck(tmp_path: Path, echo_kernel: bytes) -> None:
    """A host process stopped for longer than silence_ms goes on where it was."""
    context = multiprocessing.get_context("spawn")
    with running_shelf(tmp_path, echo_kernel, [0, 0]) as shelf:
        ours, theirs = context.Pipe()
        ports = [duck.port for duck in shelf.ducks]
        host = context.Process(
            target=make_a_long_call, args=(ports, shelf.key, echo_kernel, theirs)
        )
        host.start()
        try:
            assert host.pid is not None
            assert ours.poll(60) and ours.recv() == "calling"
            for _ in range(2):
                let_pass(0.2)
                os.kill(host.pid, signal.SIGSTOP)
                let_pass(1.2)
                os.kill(host.pid, signal.SIGCONT)
            assert ours.poll(30)
            assert ours.recv() == "finished"
            host.join(10)
            assert host.exitcode == 0
        finally:
            host.kill()
            host.join()


def test_sessions_of_some_ducks_and_of_another_host(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0, 0]) as shelf, serving(shelf) as transport:
        values = np.ones(10, np.float32)
        transport.session_open([1], open_request(), OPEN_MS)
        np.testing.assert_array_equal(
            call(transport, scale_call(values), 10), scaled_sum(values, [1])
        )
        with shelf.transport() as other:
            other.hello(1, 2000)
            request = open_request()
            request.flags = 0
            with pytest.raises(TransportError, match="another host owns") as caught:
                other.session_open([1], request, OPEN_MS)
            assert caught.value.status == wire.Status.ERR_BUSY
        transport.session_close()
        with pytest.raises(TransportError, match="no compute session is open"):
            submit(transport, scale_call(values))


@pytest.mark.parametrize("policy", list(wire.PollPolicy))
def test_every_poll_policy_works(
    tmp_path: Path, echo_kernel: bytes, policy: wire.PollPolicy
) -> None:
    options = TransportOptions(poll_policy=policy)
    values = np.ones(300, np.float32)
    with (
        running_shelf(tmp_path, echo_kernel, [0, 0]) as shelf,
        serving(shelf, options) as transport,
    ):
        for _ in range(20):
            np.testing.assert_array_equal(
                call(transport, scale_call(values), 300), scaled_sum(values, range(2))
            )


def test_closing_ends_a_call_under_way(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, serving(shelf) as transport:
        ticket = submit(transport, message(BUSY, 0xFFFFFFFF))
        transport.session_open([0], open_request(), OPEN_MS)  # the old call is over
        with pytest.raises(TransportError, match="not a call in flight"):
            wait_sum(transport, ticket, 4)
