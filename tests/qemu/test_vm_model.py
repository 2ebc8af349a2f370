"""ducklet on virtual ducks gives the tokens of its reference: boxes, and boxes beside processes.

TCG runs AVX2 100 to 250 times slower than the machine: few tokens, two ducks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lab_kit import SHAPE, boot, inside, lab_folder, why_not

from duckctl.fleet_file import fleet_document, write_json
from duckctl.inventory import load_inventory
from duckctl.lab.state import LabFolder
from duckctl.lab.vm.shape import VmShape
from duckctl.model_dir import resolve_model_dir
from duckctl.native import native_path
from host_runtime.engine import Engine, FinishedEvent, SamplingParams, TokenEvent
from host_runtime.experts.remote import RemoteExperts
from host_runtime.fleet.config import load_fleet
from host_runtime.models import load_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not(SHAPE)), reason=why_not(SHAPE)),
]
TOKENS = 12
STEPS_MAX = 1000
BOXES = replace(SHAPE, ducks=2, memory_mib=(256,), cores=(2,))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LabFolder]:
    with lab_folder(tmp_path / "lab") as folder:
        yield folder


def reference() -> dict[str, Any]:
    """The shortest prompt of ducklet's reference.json."""
    text = (resolve_model_dir("ducklet") / "reference.json").read_text()
    prompts: list[dict[str, Any]] = json.loads(text)["prompts"]
    return min(prompts, key=lambda prompt: len(prompt["prompt_ids"]))


def shard(folder: LabFolder) -> Path:
    command = [sys.executable, "-m", "duckctl", "shard-weights", "ducklet", "--json"]
    command += ["--inventory", str(folder.inventory), "--format", "fp9"]
    command += ["--cache-dir", str(folder.root / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (found,) = sorted((folder.root / "cache").glob("**/cache.json"))
    return found


def tokens_of(folder: LabFolder, cache_file: Path) -> tuple[list[int], FinishedEvent]:
    """Greedy tokens by the real engine; must be called inside the lab's network."""
    fleet_file = folder.root / "fleet.json"
    write_json(fleet_file, fleet_document(load_inventory(folder.inventory)))
    torch.set_num_threads(1)
    model = load_model(resolve_model_dir("ducklet"), routed_experts="remote").model
    experts = RemoteExperts(
        load_fleet(fleet_file),
        cache_file,
        native_path("experts-avx2.elf"),
        native_path("libduckhost.so"),
    )
    try:
        experts.start()
        engine = Engine(model, experts, mtp=True)
        params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
        handle = engine.submit(reference()["prompt_ids"], params)
        for _ in range(STEPS_MAX):
            if not engine.step():
                break
        *tokens, last = list(handle.events())
    finally:
        experts.close()
    assert isinstance(last, FinishedEvent)
    return [event.token_id for event in tokens if isinstance(event, TokenEvent)], last


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(BOXES, id="two-boxes"),
        pytest.param(replace(BOXES, kinds=("qemu", "process")), id="box-and-process"),
        pytest.param(
            replace(BOXES, nics=("e1000e",), mtu=9000, dispatch="unicast"), id="e1000e-jumbo"
        ),
    ],
)
def test_tokens_equal_the_reference(folder: LabFolder, shape: VmShape) -> None:
    """Weights loaded, sessions opened and experts called over the lab's wires."""
    state, _ = boot(folder, shape)
    cache_file = shard(folder)
    with inside(state):
        tokens, finished = tokens_of(folder, cache_file)
    assert finished.error is None
    assert tokens == reference()["greedy_ids"][:TOKENS]
