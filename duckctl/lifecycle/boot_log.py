"""What the boot service saw, as events of the ducks' lives; boxes that nobody knows as sightings.

Whoever works on the fleet reads on where the last one stopped: the position is kept in the store
and moves in the same transaction as the events, so nothing is told twice and nothing is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duckctl.boot.events import BootEvent
from duckctl.boot.follow import LogReader
from duckctl.boot.plan import boot_paths
from duckctl.inventory import Fleet
from duckctl.lifecycle.machine import Event, Kind
from duckctl.lifecycle.store import Sighting, Store

POSITION = "boot-log-position"
PORTIONS_MAX = 1_000  # the reader's portions are bounded: a log of weeks is caught up with in steps
# The one file of duckos is the whole image; what boots Linux by iPXE fetches more afterwards.
WHOLE_IMAGES = (".img", ".efi")


def life_event(event: BootEvent) -> Event | None:
    """What a boot event means for the duck's life; None: nothing, or anybody may have done it."""
    if event.is_claimed:
        return None
    if event.kind == "discover":
        # Without option 93 it is a system that is up, not firmware or a boot loader.
        is_boot = event.arch is not None or event.ipxe
        return Event(Kind.DHCP, event.time) if is_boot else None
    if event.kind in ("no_address", "nak"):
        return Event(Kind.NOTE, event.time, event.text or f"DHCP: {event.kind}")
    if event.kind in ("tftp_missing", "tftp_failed", "http_missing", "http_failed"):
        return Event(Kind.NOTE, event.time, event.text or f"{event.kind}: {event.file}")
    if event.kind not in ("tftp", "http") or not event.file:
        return None
    stage = stage_of(event.file)
    if stage is None:
        return None
    kind, is_image = stage
    return Event(kind, event.time, is_image=is_image)


def stage_of(file: str) -> tuple[Kind, bool] | None:
    """Which step of a boot a fetched file ends: (step, the file is the whole image)."""
    name = file.rsplit("/", 1)[-1]
    if "ipxe" in name or name.endswith((".kpxe", ".pxe")) or "snponly" in name:
        return Kind.BOOT_FILE, False
    if "initrd" in name or "initramfs" in name:
        return Kind.IMAGE, True
    if name.startswith("vmlinuz") or name == "kernel":
        return None  # the initramfs follows; only both are the image
    if "uki" in name or name.endswith(WHOLE_IMAGES):
        return Kind.BOOT_FILE, True
    return None


def sighting_of(event: BootEvent) -> Sighting | None:
    """A box that asked for an address and that the inventory does not name."""
    if event.duck is not None or event.mac is None or event.kind not in ("discover", "no_address"):
        return None
    arch = f"arch {event.arch}" if event.arch is not None else ""
    detail = ", ".join(part for part in (arch, "iPXE" if event.ipxe else "", event.text) if part)
    return Sighting(event.mac, event.time, event.time, 1, event.domain or "", detail)


class Listener:
    """Reads on in the boot service's logs of one fleet and writes down what is new."""

    def __init__(self, fleet: Fleet, store: Store) -> None:
        self._fleet, self._store = fleet, store
        self._paths = boot_paths(fleet)
        self._reader: LogReader | None = None

    def listen(self) -> list[tuple[str, Event]]:
        """The ducks' events since the last time that anybody listened."""
        told: list[tuple[str, Event]] = []
        if not self._paths.root.is_dir():
            return told
        for _ in range(PORTIONS_MAX):
            with self._store.writing():
                reader = self._reader_at(self._store.fact(POSITION))
                found = reader.read()
                told += self._write_down(found, reader.position)
            if not found:
                break
        return told

    def _reader_at(self, position: str) -> LogReader:
        """The reader of before, unless somebody else has read on meanwhile."""
        if self._reader is None or self._reader.position != position:
            self._reader = LogReader(self._fleet, self._paths, position)
        return self._reader

    def _write_down(self, found: Sequence[BootEvent], position: str) -> list[tuple[str, Event]]:
        events = [(e.duck, life) for e in found if e.duck and (life := life_event(e))]
        self._store.record_all(events)
        self._store.sight(merge([sighting for e in found if (sighting := sighting_of(e))]))
        if position != self._store.fact(POSITION):
            self._store.remember({POSITION: position})
        return events


def listen(fleet: Fleet, store: Store) -> list[tuple[str, Event]]:
    """Listens once."""
    return Listener(fleet, store).listen()


def merge(sightings: Sequence[Sighting]) -> list[Sighting]:
    """One per card: a looping box asks every few seconds."""
    found: dict[str, Sighting] = {}
    for new in sightings:
        old = found.get(new.mac)
        found[new.mac] = new if old is None else _joined(old, new)
    return list(found.values())


def _joined(old: Sighting, new: Sighting) -> Sighting:
    return Sighting(
        old.mac,
        min(old.first_s, new.first_s),
        max(old.last_s, new.last_s),
        old.count + new.count,
        new.place or old.place,
        new.detail or old.detail,
    )


def unknown_cards(store: Store, known: Mapping[str, str]) -> list[Sighting]:
    """Sightings whose card is still no duck's; ``known``: duck by MAC."""
    return [sighting for sighting in store.sightings() if sighting.mac not in known]
