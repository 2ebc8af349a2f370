"""What a run says when it cannot build an image can be typed as it stands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NoReturn

import pytest
from lifecycle_kit import shelf

from duckctl.cli import run as duckctl
from duckctl.errors import UsageError
from duckctl.keys import make_key
from duckctl.provision.images import ImageStep
from duckctl.provision.make_images import make_images


def test_the_hint_is_a_command_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command takes its options, and comes as far as the building."""

    def no_kernel(*_words: object, **_more: object) -> NoReturn:
        raise UsageError("this kernel has no modules")

    monkeypatch.setattr("duckctl.image.linux.build_linux", no_kernel)
    fleet = shelf(tmp_path)
    make_key(fleet.key_file)
    with pytest.raises(UsageError, match="cannot be built") as caught:
        make_images(fleet, [ImageStep("linux", "there is none")])
    program, *words = shlex.split(caught.value.hint.partition(": ")[2])
    assert program == "duckctl"
    assert duckctl(words) == 2
    assert "this kernel has no modules" in capsys.readouterr().err
