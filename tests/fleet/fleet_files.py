"""Fleet, key and cache files for tests of the fleet area."""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import Any

from duckctl.keys import make_key
from host_runtime import wire

LAYERS = (1, 2)


def write_key(folder: Path) -> Path:
    path = folder / "fleet.key"
    path.unlink(missing_ok=True)
    path.with_suffix(".pub").unlink(missing_ok=True)
    make_key(path)
    return path


def fleet_content(key_file: Path, ports: list[int]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": "test",
        "key_file": str(key_file),
        "domains": [
            {
                "name": "domain1",
                "bind_address": "127.0.0.1",
                "call_address": None,
                "mtu": 1500,
            }
        ],
        "ducks": [
            {
                "name": f"d{slot + 1:02}",
                "domain": "domain1",
                "address": "127.0.0.1",
                "port": port,
                "slot": slot,
            }
            for slot, port in enumerate(ports)
        ],
    }


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content, indent=1))
    return path


def cut(total_rows: int, ducks: int) -> list[tuple[int, int]]:
    """(first_row, rows) of each duck: whole panels, the first ducks take what does not divide."""
    panels = total_rows // wire.PANEL_ROWS
    shares = [panels // ducks + (slot < panels % ducks) for slot in range(ducks)]
    firsts = [sum(shares[:slot]) for slot in range(ducks)]
    return [
        (first * wire.PANEL_ROWS, share * wire.PANEL_ROWS)
        for first, share in zip(firsts, shares, strict=True)
    ]


def write_pieces(folder: Path, slot: int, parts: list[tuple[int | None, bytes]]) -> dict[str, Any]:
    """Write the pieces of one slice; the returned entry lacks first_row and rows."""
    pieces: list[dict[str, Any]] = []
    offset = 0
    (folder / f"slice-{slot:02}").mkdir(parents=True, exist_ok=True)
    for layer, data in parts:
        name = "directory.bin" if layer is None else f"layer-{layer:03}.bin"
        file = f"slice-{slot:02}/{name}"
        (folder / file).write_bytes(data)
        piece: dict[str, Any] = {
            "file": file,
            "offset": offset,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        pieces.append(piece if layer is None else {**piece, "layer": layer})
        offset += len(data)
    digests = b"".join(bytes.fromhex(piece["sha256"]) for piece in pieces)
    set_id = hashlib.sha256(digests).hexdigest()
    return {"slice": slot, "region_bytes": offset, "set_id": set_id, "pieces": pieces}


def cache_content(
    *, hidden: int, intermediate: int, experts: int, slices: list[dict[str, Any]], layout: str
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "cache_key": "00" * 16,
        "model": {
            "name": "random",
            "model_type": "deepseek_v32",
            "revision": None,
            "config_sha256": "00" * 32,
        },
        "format": layout,
        "layout_version": wire.LAYOUT_VERSION,
        "converter_version": 1,
        "hidden_size": hidden,
        "moe_intermediate_size": intermediate,
        "expert_count": experts,
        "layers": list(LAYERS),
        "slices": slices,
        "report": {},
    }


def meaningless_cache(folder: Path, ducks: int = 2) -> dict[str, Any]:
    """A cache whose sizes add up and whose bytes mean nothing; enough for everything but calls."""
    hidden, intermediate, experts = 128, 128, 2
    slices = []
    for slot, (first_row, rows) in enumerate(cut(intermediate, ducks)):
        segment = experts * wire.record_bytes(wire.Format.FP8, hidden, first_row, rows)
        parts: list[tuple[int | None, bytes]] = [(None, secrets.token_bytes(wire.DIRECTORY_BYTES))]
        parts.extend((layer, secrets.token_bytes(segment)) for layer in LAYERS)
        entry = write_pieces(folder, slot, parts)
        slices.append({**entry, "first_row": first_row, "rows": rows})
    return cache_content(
        hidden=hidden, intermediate=intermediate, experts=experts, slices=slices, layout="fp8"
    )
