"""Proves duckos' network on the host, under the address and undefined-behaviour sanitizers: PCI,
each NIC driver against a model of its registers, each protocol, the whole with fuzzed frames."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DUCKOS = ROOT / "images/duckos"
FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-DDUCKOS_REGISTER_MODEL",
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wconversion",
    "-Wshadow",
    "-Wvla",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
]
INCLUDES = [f"-I{path}" for path in (DUCKOS, HERE, ROOT / "tests/duckd")]
MODELS = ["machine", "model", "model_intel", "model_realtek", "model_virtio", "lan"]
# The cable stands in for net.c and its NICs where a protocol is tested alone.
ALONE = ["test_net_protocols", "test_net_dhcp", "fuzz_net_frames"]
WHOLE = ["test_nic_drivers", "test_pci_devices", "test_net_whole"]
LAYERS = ["ethernet", "arp", "ipv4", "icmp", "udp", "dhcp", "all"]


def network_sources() -> list[Path]:
    return [path for part in ("pci", "nic", "net") for path in sorted((DUCKOS / part).glob("*.c"))]


def compile_one(folder: Path, source: Path) -> Path:
    target = folder / f"{source.stem}.o"
    command: list[str | Path] = ["gcc", *FLAGS, *INCLUDES, "-c", source, "-o", target]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("duckos_net")
    sources = [
        path for part in ("pci", "nic", "net") for path in sorted((DUCKOS / part).glob("*.c"))
    ]
    own = {path.stem: compile_one(folder, path) for path in sources}
    names = [*MODELS, *ALONE, *WHOLE, "cable"]
    test = {name: compile_one(folder, HERE / f"{name}.c") for name in names}
    built = {}
    for name in [*ALONE, *WHOLE]:
        parts = [test[model] for model in MODELS]
        if name in ALONE:
            parts += [own[stem] for stem in own if stem not in ("net", "health")] + [test["cable"]]
        else:
            parts += list(own.values())
        built[name] = folder / name
        command: list[str | Path] = ["gcc", "-fsanitize=address,undefined", *parts, test[name]]
        subprocess.run([*command, "-o", built[name]], check=True)
    return built


def run(program: Path, *words: str, timeout_s: int = 120) -> str:
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, (
        f"{program.name} {words}: {done.stdout[-500:]}{done.stderr[-2000:]}"
    )
    return done.stdout


@pytest.mark.parametrize("name", ["test_net_protocols", "test_net_dhcp", "test_pci_devices"])
def test_rules_of_one_part(programs: dict[str, Path], name: str) -> None:
    """Every rule of the protocols, of the DHCP client and of PCI holds."""
    run(programs[name])


def test_network_as_a_whole(programs: dict[str, Path]) -> None:
    """From the first look at PCI to a NIC that fails: net.c on the register models."""
    run(programs["test_net_whole"])


@pytest.mark.parametrize("seed", [1, 2])
def test_t07_drivers_against_register_models(programs: dict[str, Path], seed: int) -> None:
    """A card that the firmware left running is reset in full; ring wrap, overrun, full rings,
    damaged, short and oversized frames, link flaps and resets in flight, for each driver."""
    run(programs["test_nic_drivers"], str(seed))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.slow
def test_fuzz_same_seed(programs: dict[str, Path], layer: str) -> None:
    """Almost-right frames at one layer harm nothing and do not stop the answers."""
    run(programs["fuzz_net_frames"], "1", "1", layer)


@pytest.mark.slow
def test_fuzz_new_seed(programs: dict[str, Path]) -> None:
    """The same with a new seed (named when it fails) and for longer."""
    run(programs["fuzz_net_frames"], str(secrets.randbits(40)), "15", "all")


@pytest.mark.slow
def test_needs_nothing_but_its_neighbours(tmp_path: Path) -> None:
    """Freestanding: the network asks duckos for memory, time, log and options, for nothing else."""
    objects = []
    for source in network_sources():
        objects.append(tmp_path / f"{source.stem}.o")
        flags = ["-std=c11", "-O2", "-ffreestanding", "-fno-stack-protector", "-fpie"]
        command: list[str | Path] = ["gcc", *flags, *INCLUDES, "-c", source, "-o", objects[-1]]
        subprocess.run(command, check=True)
    joined = tmp_path / "joined.o"
    subprocess.run(["ld", "-r", *objects, "-o", joined], check=True)
    listed = subprocess.run(["nm", "-u", joined], check=True, capture_output=True, text=True)
    needed = {line.split()[-1] for line in listed.stdout.splitlines()} - {"_GLOBAL_OFFSET_TABLE_"}
    assert needed <= {
        *("memcpy", "memset", "memcmp", "memmove"),
        *("memory_take", "memory_arena_left", "memory_map_device"),
        *("timer_now_ns", "timer_wait_ns", "klog", "panic", "acpi_facts", "options_set"),
    }
