"""Log lines of the real dnsmasq (recorded) become events; what events mean."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from boot_kit import STRANGER, make_fleet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duckctl.boot.dnsmasq_log import BootLog
from duckctl.boot.events import BootEvent
from duckctl.boot.follow import LogReader, read_log
from duckctl.boot.plan import BootPaths
from duckctl.boot.service import DnsmasqProcess
from duckctl.boot.watch import BootWatch, WatchLimits
from duckctl.lifecycle.boot_log import life_event

NOW = datetime(2026, 11, 30, 9, 0, 0, tzinfo=UTC).timestamp()
CONVERSATION = """\
Nov 30 08:10:28 dnsmasq-dhcp[9]: 100 available DHCP range: 198.18.0.191 -- 198.18.0.254
Nov 30 08:10:28 dnsmasq-dhcp[9]: 100 vendor class: PXEClient:Arch:00007:UNDI:003000
Nov 30 08:10:28 dnsmasq[9]: LOUD WARNING: listening on 198.18.0.1 may accept requests via others
Nov 30 08:10:28 dnsmasq-dhcp[9]: 100 DHCPDISCOVER(nic0) 02:00:00:00:00:01
Nov 30 08:10:28 dnsmasq-dhcp[9]: 100 tags: dom-dom0, of-dom0, img-duckos, known, arch9, nic0
Nov 30 08:10:28 dnsmasq-dhcp[9]: 100 DHCPOFFER(nic0) 198.18.0.11 02:00:00:00:00:01
Nov 30 08:10:28 dnsmasq-dhcp[9]: 100 requested options: 1:netmask, 67:bootfile-name
Nov 30 08:10:28 dnsmasq-dhcp[9]: 100 next server: 198.18.0.1
Nov 30 08:10:28 dnsmasq-dhcp[9]: 100 sent size:  1 option: 53 message-type  2
Nov 30 08:10:28 dnsmasq-dhcp[9]: 100 sent size: 18 option: 67 bootfile-name  duckos/duckos.efi
Nov 30 08:10:29 dnsmasq-dhcp[9]: 100 available DHCP range: 198.18.0.191 -- 198.18.0.254
Nov 30 08:10:29 dnsmasq-dhcp[9]: 100 DHCPREQUEST(nic0) 198.18.0.11 02:00:00:00:00:01
Nov 30 08:10:29 dnsmasq-dhcp[9]: 100 tags: dom-dom0, of-dom0, img-duckos, known, arch9, nic0
Nov 30 08:10:29 dnsmasq-dhcp[9]: 100 DHCPACK(nic0) 198.18.0.11 02:00:00:00:00:01 duck01
Nov 30 08:10:29 dnsmasq-dhcp[9]: 100 sent size:  1 option: 53 message-type  5
Nov 30 08:10:29 dnsmasq-tftp[9]: error 8 User aborted the transfer received from 198.18.0.11
Nov 30 08:10:29 dnsmasq-tftp[9]: sent /b/tftp/duckos/duckos.efi to 198.18.0.11
Nov 30 08:10:30 dnsmasq-tftp[9]: sent /b/tftp/duckos/duckos.efi to 198.18.0.11
Nov 30 08:10:31 dnsmasq-tftp[9]: failed sending /b/tftp/duckos/duckos.efi to 198.18.0.11
Nov 30 08:10:31 dnsmasq-tftp[9]: file /b/tftp/none not found for 198.18.0.11
Nov 30 08:10:32 dnsmasq-dhcp[9]: 7 available DHCP subnet: 198.18.1.0/255.255.255.0
Nov 30 08:10:32 dnsmasq-dhcp[9]: 7 PXE(nic1) 02:00:00:00:00:05 proxy
Nov 30 08:10:32 dnsmasq-dhcp[9]: 7 tags: dom-dom1, of-dom1, img-duckos, known, arch0, ipxe, nic1
Nov 30 08:10:32 dnsmasq-dhcp[9]: 7 bootfile name: duckos/duckos.img
Nov 30 08:10:32 dnsmasq-dhcp[9]: 7 sent size:  1 option: 53 message-type  2
Nov 30 08:10:33 dnsmasq-dhcp[9]: 8 available DHCP subnet: 198.18.1.0/255.255.255.0
Nov 30 08:10:33 dnsmasq-dhcp[9]: 8 PXE(nic1) 198.18.1.40 02:00:00:00:00:05 proxy
Nov 30 08:10:33 dnsmasq-dhcp[9]: 8 tags: dom-dom1, of-dom1, img-duckos, known, arch7, nic1
Nov 30 08:10:33 dnsmasq-dhcp[9]: 8 bootfile name: duckos/duckos.efi
Nov 30 08:10:33 dnsmasq-dhcp[9]: 8 sent size:  1 option: 53 message-type  5
Nov 30 08:10:34 dnsmasq-tftp[9]: sent /b/tftp/duckos/duckos.efi to 198.18.1.40
Nov 30 08:10:35 dnsmasq-dhcp[9]: 9 available DHCP subnet: 198.18.0.0/255.255.255.0
Nov 30 08:10:35 dnsmasq-dhcp[9]: 9 DHCPDISCOVER(nic0) 02:00:00:00:00:99 no address available
"""


@pytest.fixture
def log(tmp_path: Path) -> BootLog:
    return BootLog(make_fleet(tmp_path, "dhcp", "proxy"), "/b/tftp", lambda: NOW)


def read(log: BootLog, text: str) -> list[BootEvent]:
    events = [event for line in text.splitlines() for event in log.line(line)]
    return events + log.flush()


def test_a_whole_conversation_is_read(log: BootLog) -> None:
    """Full DHCP, TFTP, proxy on both ports, an exhausted pool: kind, duck, arch, file."""
    found = [(e.kind, e.duck or e.mac, e.arch, e.file) for e in read(log, CONVERSATION)]
    assert found == [
        ("discover", "duck01", 9, None),
        ("offer", "duck01", 9, "duckos/duckos.efi"),
        ("request", "duck01", 9, None),
        ("ack", "duck01", 9, None),
        ("tftp_abort", "duck01", None, "duckos/duckos.efi"),
        ("tftp", "duck01", None, "duckos/duckos.efi"),
        ("tftp_failed", "duck01", None, "duckos/duckos.efi"),
        ("tftp_missing", "duck01", None, "none"),
        ("proxy", "duck05", 0, "duckos/duckos.img"),
        ("boot_server", "duck05", 7, "duckos/duckos.efi"),
        ("tftp", "duck05", None, "duckos/duckos.efi"),
        ("no_address", "02:00:00:00:00:99", None, None),
    ]


def test_times_domains_and_stages(log: BootLog) -> None:
    """Seconds since 1970 in this year's past; domain by tag; iPXE by its tag."""
    events = read(log, CONVERSATION)
    assert events[0].time == datetime(2026, 11, 30, 8, 10, 28, tzinfo=UTC).timestamp()
    assert {e.domain for e in events if e.duck == "duck01"} == {"dom0"}
    assert [e.ipxe for e in events if e.kind == "proxy"] == [True]
    late = CONVERSATION.splitlines()[-1].replace("Nov 30", "Dec 31")
    (event,) = read(log, late)
    assert datetime.fromtimestamp(event.time, UTC).year == 2025


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is five hours behind UTC."""
    monkeypatch.setenv("TZ", "XYZ5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
def test_the_readers_time_zone_means_nothing(log: BootLog) -> None:
    """Who reads the log may be in another zone than who writes it: its times are UTC."""
    assert read(log, CONVERSATION)[0].time == NOW - 49 * 60 - 32


@pytest.mark.usefixtures("elsewhere")
def test_dnsmasq_writes_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The boot service sets the zone of the process that writes the log."""
    pid_file, program = tmp_path / "pid", tmp_path / "dnsmasq"
    program.write_text(f'#!/bin/sh\necho "$TZ" > {tmp_path}/zone\n: > {pid_file}\nexec sleep 60\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    process = DnsmasqProcess()
    process.start(tmp_path / "config", "", pid_file)
    process.stop()
    assert (tmp_path / "zone").read_text() == "UTC\n"


@pytest.mark.parametrize(
    ("now", "year"),
    [((2028, 3, 1), 2028), ((2029, 3, 1), 2028), ((2031, 1, 1), 2028), ((2028, 2, 27), 2024)],
)
def test_february_29_is_in_the_last_leap_year(
    tmp_path: Path, now: tuple[int, int, int], year: int
) -> None:
    """A log that is read in a year without that day; a day that no year has breaks nothing."""
    clock = datetime(*now, tzinfo=UTC).timestamp()
    log = BootLog(make_fleet(tmp_path), "/b/tftp", lambda: clock)
    rest = "10:00:00 dnsmasq-tftp[9]: sent /b/tftp/duckos/duckos.efi to 198.18.0.11"
    (event,) = log.line(f"Feb 29 {rest}")
    assert datetime.fromtimestamp(event.time, UTC) == datetime(year, 2, 29, 10, tzinfo=UTC)
    (event,) = log.line(f"Feb 30 {rest}")
    assert event.time == clock


def test_a_folder_with_a_space_hides_no_transfer(tmp_path: Path) -> None:
    """Paths of TFTP's lines may have spaces, and words of dnsmasq's own in them."""
    log = BootLog(make_fleet(tmp_path), "/my rack to 1/b/tftp", lambda: NOW)
    tftp = [line for line in CONVERSATION.splitlines() if "tftp[9]" in line and "error" not in line]
    text = "\n".join(tftp).replace("/b/tftp", "/my rack to 1/b/tftp").replace("none", "not found")
    assert [(e.kind, e.file) for e in read(log, text)] == [
        ("tftp", "duckos/duckos.efi"),
        ("tftp", "duckos/duckos.efi"),
        ("tftp_failed", "duckos/duckos.efi"),
        ("tftp_missing", "not found"),
        ("tftp", "duckos/duckos.efi"),
    ]


def test_t23_error_8_is_no_failure(log: BootLog) -> None:
    """Only error 8 is an abort; another error is a failure with its text (T23)."""
    lines = CONVERSATION.splitlines()
    aborted = read(log, "\n".join(lines[15:17]))
    assert [e.kind for e in aborted] == ["tftp_abort"]
    failed = read(log, "\n".join(lines[15:17]).replace("error 8 User aborted", "error 3 Disk full"))
    assert [(e.kind, "error 3" in e.text) for e in failed] == [("tftp_failed", True)]


def test_http_requests_are_events(log: BootLog) -> None:
    """Method and status decide the kind; the box is known by its script's name or its address."""

    def event(**changes: object) -> BootEvent:
        entry = {"time": 5.5, "domain": "dom0", "address": "198.18.0.12", "method": "GET",
                 "path": "/images/linux/vmlinuz", "status": 200, "bytes": 1,
                 "problem": ""}  # fmt: skip
        (found,) = log.request(json.dumps({**entry, **changes}))
        return found

    assert (event().kind, event().duck, event().time) == ("http", "duck02", 5.5)
    assert event(method="HEAD").kind == "http_head"
    assert event(status=404).kind == "http_missing"
    assert event(problem="ended after 3 of 9 bytes").kind == "http_failed"
    script = "/duck/02-00-00-00-00-03.ipxe"
    own = event(path=script, address="198.18.0.13")
    assert (own.duck, own.is_claimed) == ("duck03", False)
    by_name = event(path=script, address="198.18.0.200")
    assert (by_name.duck, by_name.is_claimed) == ("duck03", True)
    assert log.request("no json") == log.request('{"time": 1}') == []


def script_event(log: BootLog, address: str, mac: str = "02-00-00-00-00-03") -> BootEvent:
    entry = {"time": 5.5, "domain": "dom0", "address": address, "method": "GET",
             "path": f"/duck/{mac}.ipxe", "status": 200, "bytes": 1, "problem": ""}  # fmt: skip
    (found,) = log.request(json.dumps(entry))
    return found


@pytest.mark.parametrize(
    ("address", "duck"),
    [
        ("198.18.0.13", "duck03"),  # its own
        ("198.18.0.12", "duck02"),  # another duck's
        ("198.18.0.1", None),  # this host's
        ("198.18.0.200", "duck03"),  # nobody's, in the duck's subnet: claimed
        ("198.18.1.200", None),  # in another domain
        ("203.0.113.9", None),
        ("nonsense", None),
    ],
)
def test_a_script_may_be_asked_for_by_anybody(log: BootLog, address: str, duck: str | None) -> None:
    """Whose script it is tells who asks only where the address does not tell otherwise, and only a
    duck at its own address can be found to loop by it."""
    event = script_event(log, address)
    assert event.duck == duck
    watch = BootWatch(WatchLimits())
    found = [finding.duck for _ in range(9) for finding in watch.event(event)]
    is_known = address in ("198.18.0.12", "198.18.0.13")
    assert found == ([duck] if is_known else [])
    assert life_event(replace(event, is_claimed=False)) is not None
    assert (life_event(event) is None) == event.is_claimed


def test_leases_tell_who_asks_for_a_script(tmp_path: Path) -> None:
    """A stranger with a lease is itself, whatever it asks for; a box of ours may have a lease."""
    leases = {"198.18.0.200": STRANGER, "198.18.0.201": "02:00:00:00:00:03"}
    log = BootLog(make_fleet(tmp_path), "/b/tftp", lambda: NOW, leases)
    stranger = script_event(log, "198.18.0.200")
    assert (stranger.duck, stranger.mac, stranger.is_claimed) == (None, STRANGER, False)
    leased = script_event(log, "198.18.0.201")
    assert (leased.duck, leased.is_claimed) == ("duck03", False)
    assert script_event(log, "198.18.0.202", STRANGER.replace(":", "-")).mac is None


def test_nothing_of_a_log_steers_a_terminal(log: BootLog) -> None:
    """Control characters of a path, a problem and a line of dnsmasq's are gone when it is read."""
    bad = "/\x1bc\x9b2J\n\x7f\u00e4"
    entry = {"time": 5.5, "domain": "dom0", "address": "198.18.0.12", "method": "GET",
             "path": bad, "status": 404, "bytes": 1, "problem": bad}  # fmt: skip
    (event,) = log.request(json.dumps(entry))
    assert (event.file, event.text) == ("/?c?2J??\u00e4", "/?c?2J??\u00e4")
    line = "Nov 30 08:10:31 dnsmasq-tftp[9]: file /b/tftp/no\x1bc\x9bne not found for 198.18.0.11"
    (event,) = log.line(line)
    assert event.file == "no?c?ne"


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.text(max_size=120), max_size=8))
def test_no_line_breaks_the_reader(log: BootLog, lines: list[str]) -> None:
    """Any text, also behind a genuine beginning, is read or passed over."""
    for line in lines:
        log.line(line)
        log.line(f"Nov 30 08:10:28 dnsmasq-dhcp[9]: 1 {line}")
        log.line(f"Nov 30 08:10:28 dnsmasq-tftp[9]: {line}")
        log.request(line)
    log.flush()


def test_a_log_is_read_in_pieces(tmp_path: Path) -> None:
    """Cut anywhere, gone on from a saved position or not: the same events, none twice.

    But for one: the box of a proxy's TFTP transfer is known by the lines of a packet before it, as
    the address is not ours; a reader that starts behind those cannot know it.
    """
    fleet = make_fleet(tmp_path, "dhcp", "proxy")
    paths = BootPaths(tmp_path / "b")
    paths.root.mkdir()
    late = "Nov 30 08:10:36 dnsmasq-tftp[9]: sent /b/tftp/duckos/duckos.efi to 198.18.1.40\n"
    text = (CONVERSATION + late).replace("/b/tftp", str(paths.tftp)).encode()
    behind = text.index(b"Nov 30 08:10:35")  # the packet that names 198.18.1.40 is complete
    paths.dnsmasq_log.write_bytes(text)
    whole = read_log(fleet, paths)
    assert len(whole) == 13
    assert whole[-1].duck == "duck05"
    nameless = [*whole[:-1], replace(whole[-1], mac=None, duck=None, domain=None)]
    starts = [place.start() for place in re.finditer(b"^", text, re.M)]
    for cut in sorted({*starts, *range(0, len(text), 61), len(text)}):
        paths.dnsmasq_log.write_bytes(text[:cut])
        first = LogReader(fleet, paths)
        events = first.read()
        with paths.dnsmasq_log.open("ab") as file:
            file.write(text[cut:])
        second = LogReader(fleet, paths, first.position)
        known = nameless if behind <= cut < len(text) else whole
        assert events + second.read(at_end=True) == known, cut


MAC = "02:00:00:00:00:02"


def fetch(
    at: float, file: str = "snponly.efi", kind: Literal["tftp", "http"] = "tftp"
) -> BootEvent:
    return BootEvent(at, kind, MAC, "duck02", "dom0", file=file)


def test_t11_loops_are_found() -> None:
    """More than five fetches of one first stage in ten minutes; not fewer, not slower (T11)."""
    watch = BootWatch(WatchLimits(loop_fetches=5, loop_minutes=10))
    for second in range(5):
        assert watch.event(fetch(float(second))) == []
    (found,) = watch.event(fetch(6.0))
    assert (found.kind, found.duck) == ("loop", "duck02")
    assert "fetched snponly.efi 6 times in 10 minutes" in found.text
    slow = BootWatch(WatchLimits(5, 10))
    assert [f for i in range(50) for f in slow.event(fetch(i * 125.0))] == []


def test_later_files_of_a_boot_are_no_loop() -> None:
    """Loader, script, kernel, initramfs of one boot; a hello between boots starts anew."""
    watch = BootWatch(WatchLimits(5, 10))
    files = ["/boot.ipxe", "/duck/02-00-00-00-00-02.ipxe", "/images/linux/vmlinuz",
             "/images/linux/initrd.img"]  # fmt: skip
    for boot in range(20):
        events = [fetch(float(boot))] + [fetch(float(boot), file, "http") for file in files]
        assert [found for event in events for found in watch.event(event)] == []
        watch.hello(MAC)


def test_t13_discovers_without_request_are_recognised() -> None:
    """Four DISCOVERs in a row, once per silence; a REQUEST ends it (T13)."""
    watch = BootWatch(WatchLimits())
    event = BootEvent(1.0, "discover", MAC, "duck02", "dom0")
    found = [finding for _ in range(9) for finding in watch.event(event)]
    assert [finding.kind for finding in found] == ["no_request"]
    assert "4 DISCOVERs and no REQUEST" in found[0].text
    assert "domain_boot: dhcp" in found[0].text
    watch.event(BootEvent(2.0, "request", MAC, "duck02", "dom0"))
    assert [f.kind for _ in range(4) for f in watch.event(event)] == ["no_request"]


def test_t30_a_full_pool_warns_at_80_percent() -> None:
    """Once at 80 %, again only after it was below (T30)."""
    watch = BootWatch(WatchLimits(), {"dom0": 10})
    assert watch.leases(1.0, {"dom0": 7}) == []
    (found,) = watch.leases(2.0, {"dom0": 8})
    assert (found.kind, found.domain) == ("pool", "dom0")
    assert watch.leases(3.0, {"dom0": 9}) == []
    assert watch.leases(4.0, {"dom0": 2}) == []
    assert len(watch.leases(5.0, {"dom0": 10})) == 1


def test_many_boxes_need_bounded_memory() -> None:
    """Random MACs without end: the oldest are forgotten."""
    watch = BootWatch(WatchLimits())
    for number in range(20_000):
        watch.event(BootEvent(1.0, "discover", f"{number:012x}", None, "dom0"))
    assert len(watch._boxes) <= 8192
