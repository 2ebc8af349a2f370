"""The boot service's logs become events of the right ducks, once, and unknown boxes sightings."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from lifecycle_kit import shelf

from duckctl.boot.events import BootEvent
from duckctl.boot.plan import boot_paths
from duckctl.inventory import Fleet
from duckctl.lifecycle.boot_log import Listener, life_event, listen, sighting_of, stage_of
from duckctl.lifecycle.machine import Event, Kind, State
from duckctl.lifecycle.store import Store, open_store

LOGGED_S = time.time()  # of every line: the store's clock is set by it, not by when a test runs
STAMP = time.strftime("%b %d %H:%M:%S", time.gmtime(LOGGED_S))
MAC = "a8:b8:e0:21:01:0b"
STRANGER = "a8:b8:e0:21:01:99"


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = shelf(tmp_path)
    boot_paths(made).root.mkdir()
    return made


def packet(kind: str, mac: str, xid: int, tags: str, address: str = "") -> str:
    """What dnsmasq writes of one packet, with log-dhcp."""
    head = f"{STAMP} dnsmasq-dhcp[7]: {xid}"
    place = f"{address} {mac}" if address else mac
    return f"{head} tags: {tags}\n{head} {kind}(nic0) {place} \n"


def write(fleet: Fleet, text: str) -> None:
    with boot_paths(fleet).dnsmasq_log.open("a") as file:
        file.write(text)


def boot_of_duck01(fleet: Fleet) -> None:
    tftp = boot_paths(fleet).tftp / "duckos/duckos.img"
    write(
        fleet,
        packet("DHCPDISCOVER", MAC, 11, "known, arch7, dom-domain1, nic0")
        + packet("DHCPREQUEST", MAC, 12, "known, arch7, dom-domain1, nic0", "10.21.1.11")
        + f"{STAMP} dnsmasq-tftp[7]: sent {tftp} to 10.21.1.11\n",
    )


def test_a_boot_is_followed(fleet: Fleet) -> None:
    """DISCOVER and a fetched image take the duck to booting(hello); others stay as they are."""
    boot_of_duck01(fleet)
    with open_store(fleet, clock=lambda: LOGGED_S - 60) as store:
        told = listen(fleet, store)
        assert [(duck, event.kind) for duck, event in told] == [
            ("duck01", Kind.DHCP),
            ("duck01", Kind.BOOT_FILE),
        ]
        assert store.state_of("duck01").describe() == "booting(hello)"
        assert store.state_of("duck02").state is State.REGISTERED


def test_nothing_is_told_twice_whoever_listens(fleet: Fleet) -> None:
    """Two listeners and a third after a restart share one position."""
    boot_of_duck01(fleet)
    with open_store(fleet, clock=lambda: LOGGED_S - 60) as store, open_store(fleet) as other:
        first, second = Listener(fleet, store), Listener(fleet, other)
        assert len(first.listen()) == 2
        assert second.listen() == []
        write(fleet, packet("DHCPDISCOVER", "a8:b8:e0:21:01:0c", 21, "known, arch0, dom-domain1"))
        write(fleet, packet("DHCPDISCOVER", STRANGER, 22, "arch0, dom-domain1"))
        assert [duck for duck, _ in second.listen()] == ["duck02"]
        assert first.listen() == []
    with open_store(fleet) as store:
        assert listen(fleet, store) == []


def test_a_killed_listener_loses_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Position and events move together: an error between them takes both back."""
    boot_of_duck01(fleet)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with open_store(fleet, clock=lambda: LOGGED_S - 60) as store:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "remember", die)
            with pytest.raises(KeyboardInterrupt):
                listen(fleet, store)
        assert store.state_of("duck01").state is State.REGISTERED
        assert len(listen(fleet, store)) == 2
        assert store.state_of("duck01").describe() == "booting(hello)"


def test_a_rotated_log_is_read_from_its_beginning(fleet: Fleet) -> None:
    """The boot service moves a full log away and begins a new one."""
    boot_of_duck01(fleet)
    with open_store(fleet, clock=lambda: LOGGED_S - 60) as store:
        listen(fleet, store)
        log = boot_paths(fleet).dnsmasq_log
        log.rename(log.with_suffix(".log.1"))
        write(fleet, packet("DHCPDISCOVER", "a8:b8:e0:21:01:0c", 31, "known, arch0, dom-domain1"))
        write(fleet, packet("DHCPDISCOVER", STRANGER, 32, "arch0, dom-domain1"))
        assert [duck for duck, _ in listen(fleet, store)] == ["duck02"]


def test_unknown_boxes_are_sighted(fleet: Fleet) -> None:
    """A card that no duck has is kept with its domain and firmware, and counted."""
    for xid in (41, 42, 43):
        write(fleet, packet("DHCPDISCOVER", STRANGER, xid, "arch7, dom-domain2, nic1"))
    write(fleet, packet("DHCPDISCOVER", MAC, 44, "known, arch7, dom-domain1"))
    with open_store(fleet) as store:
        listen(fleet, store)
        (card,) = store.sightings()
    assert (card.mac, card.place, card.count, card.detail) == (STRANGER, "domain2", 3, "arch 7")


def test_http_boot_is_followed(fleet: Fleet) -> None:
    """A file that our HTTP server has sent whole counts as TFTP's does; HEAD counts nothing."""
    entry = {"time": time.time(), "address": "10.21.1.11", "method": "HEAD", "status": 200}
    entry["path"] = "/images/duckos/duckos.efi"
    lines = [json.dumps(entry), json.dumps({**entry, "method": "GET"})]
    boot_paths(fleet).http_log.write_text("\n".join(lines) + "\n")
    with open_store(fleet, clock=lambda: LOGGED_S - 60) as store:
        listen(fleet, store)
        assert store.state_of("duck01").describe() == "booting(hello)"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("duckos/duckos.img", (Kind.BOOT_FILE, True)),
        ("/images/duckos/duckos.efi", (Kind.BOOT_FILE, True)),
        ("/images/linux/linux.efi", (Kind.BOOT_FILE, True)),
        ("snponly.efi", (Kind.BOOT_FILE, False)),
        ("/ipxe/ipxe.efi", (Kind.BOOT_FILE, False)),
        ("undionly.kpxe", (Kind.BOOT_FILE, False)),
        ("/boot.ipxe", (Kind.BOOT_FILE, False)),
        ("/images/linux/vmlinuz", None),
        ("/images/linux/initrd.img", (Kind.IMAGE, True)),
        ("/favicon.ico", None),
    ],
)
def test_what_a_file_means(file: str, expected: tuple[Kind, bool] | None) -> None:
    """Boot loaders are not the image; of kernel and initramfs the second ends the step."""
    assert stage_of(file) == expected


def test_t23_an_aborted_size_query_is_no_failure() -> None:
    """UEFI asks for the size and aborts: normal. What is missing or failed is noted."""
    assert life_event(BootEvent(1.0, "tftp_abort", file="duckos/duckos.efi")) is None
    missing = life_event(BootEvent(1.0, "tftp_missing", file="duckos/x.efi"))
    assert missing == Event(Kind.NOTE, 1.0, "tftp_missing: duckos/x.efi")


def test_a_system_that_is_up_may_ask_for_an_address() -> None:
    """Without option 93 and without iPXE a DISCOVER is no boot; firmware's and iPXE's are."""
    assert life_event(BootEvent(1.0, "discover")) is None
    assert life_event(BootEvent(1.0, "discover", arch=7)) == Event(Kind.DHCP, 1.0)
    assert life_event(BootEvent(1.0, "discover", ipxe=True)) == Event(Kind.DHCP, 1.0)


def test_only_requests_of_unknown_cards_are_sightings() -> None:
    """Answers, files and known ducks are none."""
    assert sighting_of(BootEvent(1.0, "offer", mac=STRANGER)) is None
    assert sighting_of(BootEvent(1.0, "discover", mac=MAC, duck="duck01")) is None
    seen = sighting_of(BootEvent(1.0, "no_address", mac=STRANGER, domain="domain1", text="full"))
    assert seen is not None
    assert (seen.place, seen.detail) == ("domain1", "full")
