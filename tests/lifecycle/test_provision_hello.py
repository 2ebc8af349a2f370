"""A provision run that may not write the boot service's files goes on, and says so once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

import pytest
from lifecycle_kit import shelf

from duckctl.boot.intents import Intents
from duckctl.inventory import Duck
from duckctl.lifecycle.machine import DuckRecord, State
from duckctl.lifecycle.store import Store
from duckctl.provision.run import Runner, Survey
from duckctl.provision.show import Show


class Told:
    """A display that keeps what it is shown, and a survey that found nothing."""

    def __init__(self) -> None:
        self.ready: list[str] = []
        self.records: dict[str, DuckRecord] = {}

    def change(self, duck: Duck, record: DuckRecord) -> None:
        self.ready.append(duck.name)


def test_a_hello_that_cannot_be_written_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each duck is shown as ready; one warning, not one a duck."""
    fleet = shelf(tmp_path)
    told = Told()

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with Store(tmp_path / "state.db") as store:
        runner = Runner(fleet, store, cast(Survey, told), cast(Show, told))
        monkeypatch.setattr(Path, "open", refuse)
        with caplog.at_level(logging.WARNING):
            for duck in fleet.ducks:
                runner._changed(duck, DuckRecord(duck.name, State.READY))
        monkeypatch.undo()
        runner._changed(fleet.ducks[0], DuckRecord("duck01", State.READY))
        assert Intents(tmp_path / "boot/intents.json").take_hellos() == ["duck01"]
    assert told.ready == [*(duck.name for duck in fleet.ducks), "duck01"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "is not told which ducks came up: cannot write" in line
