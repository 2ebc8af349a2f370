"""The last check of a run: do the ducks' memories give what they should? (duckctl.selftest)"""

from __future__ import annotations

from collections.abc import Sequence

from duckctl.inventory import Duck, Fleet
from duckctl.lifecycle.store import Store
from duckctl.provision.show import Show


class BandwidthTest:
    """Measures ducks that were not measured since they booted; others keep their figure."""

    def __init__(self, fleet: Fleet, store: Store) -> None:
        self._fleet, self._store = fleet, store

    def run(self, ducks: Sequence[Duck], show: Show) -> dict[str, str]:
        """A note per duck: its rate, or why it could not be measured."""
        return {}
