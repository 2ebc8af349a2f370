"""From nothing: a BIOS and a UEFI box boot by the generated configuration and serve ducklet."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from lab_kit import SHAPE, inside, lab_folder, say, why_not

from duckctl.chat_client import ChatClient
from duckctl.demo.prompts import Prompt, ask, reference_tokens
from duckctl.demo.transcript import Transcript
from duckctl.lab.state import LabFolder
from duckctl.lab.vm import lab
from duckctl.lab.vm.shape import VmShape
from duckctl.model_dir import resolve_model_dir
from duckctl.process import die_with_parent, read_ready_line

PAIR = replace(SHAPE, ducks=2, boot="pxe", firmware=("bios", "uefi"), memory_mib=(256,), cores=(2,))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not(PAIR)), reason=why_not(PAIR)),
]
READY_TIMEOUT_S = 120.0
PROMPT = Prompt("Is 97 prime?", 12, must_end=False, reference="en-prime-97")


@contextmanager
def server(folder: LabFolder) -> Iterator[str]:
    """`duckctl serve`, with the conversion that it needs; gives its address."""
    command = [
        *(sys.executable, "-P", "-m", "duckctl", "--quiet", "serve", "ducklet", "--shard"),
        *("--inventory", str(folder.inventory), "--cache-dir", str(folder.root / "cache")),
        *("--port", "0", "--log-level", "warning"),
    ]
    with (folder.root / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, preexec_fn=die_with_parent
        )
    try:
        assert process.stdout is not None
        line = read_ready_line(process.stdout, READY_TIMEOUT_S)
        assert line and line.startswith("ready http"), (folder.root / "serve.log").read_text()
        yield line.split()[1]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def provision(folder: LabFolder) -> None:
    """`duckctl provision` switches the boxes on and follows them to `ready`; events are printed."""
    command = [sys.executable, "-P", "-m", "duckctl"]
    inventory = ["--inventory", str(folder.inventory)]
    leave = ["--skip-host", "--skip-images", "--skip-self-test", "--yes", "--json"]
    done = subprocess.run(
        [*command, "provision", *inventory, *leave],
        capture_output=True,
        text=True,
        check=False,
        timeout=READY_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    ducks = json.loads(done.stdout)["ducks"]
    assert [duck["state"] for duck in ducks] == ["ready"] * len(ducks)
    subprocess.run([*command, "events", *inventory], check=True)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(PAIR, id="dhcp"),
        pytest.param(replace(PAIR, boot="proxy"), id="proxy"),
    ],
)
def test_from_nothing_to_an_answer(tmp_path: Path, shape: VmShape) -> None:
    """Boxes without power, provisioned to ready; weights, sessions, the reference's tokens."""
    with lab_folder(tmp_path / "lab") as folder:
        state = lab.up(folder, shape, "duckos", power=False)
        with inside(state):
            provision(folder)
            with server(folder) as url, ChatClient(url) as client:
                answer = ask(client, "ducklet", PROMPT, Transcript(lambda _text: None, False))
        say(f"first token after {answer.ttft_s:.2f} s, then {answer.tpot_s} s each")
        expected = reference_tokens(resolve_model_dir("ducklet"), "en-prime-97")
        offers = (folder.root / "boot/dnsmasq.log").read_text().count("DHCPOFFER")
        assert (offers == 0) == (shape.boot == "proxy")  # else the host gives the addresses
        assert list(answer.token_ids) == expected[: PROMPT.max_tokens]
