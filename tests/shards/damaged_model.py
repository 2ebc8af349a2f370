"""A copy of a good checkpoint, and ways to damage it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthetic_checkpoint import header_bytes

INDEX = "model.safetensors.index.json"


@dataclass
class Model:
    """A copy of a good checkpoint that a test damages."""

    path: Path

    def json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())

    def write_json(self, name: str, value: object) -> None:
        (self.path / name).write_text(json.dumps(value))

    def file_of(self, tensor: str) -> Path:
        return self.path / str(self.json(INDEX)["weight_map"][tensor])

    def edit_config(self, **values: object) -> None:
        self.write_json("config.json", self.json("config.json") | values)

    def rewrite(self, file: Path, edit: Callable[[dict[str, Any], bytearray], None]) -> None:
        """Changes a file's header entries and payload through ``edit``."""
        raw = file.read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        entries = json.loads(raw[8 : 8 + length])
        entries.pop("__metadata__")
        payload = bytearray(raw[8 + length :])
        edit(entries, payload)
        file.write_bytes(header_bytes(entries) + payload)

    def add_to_index(self, tensor: str, file: str) -> None:
        index = self.json(INDEX)
        index["weight_map"][tensor] = file
        self.write_json(INDEX, index)

    def drop(self, tensor: str) -> None:
        """Removes a tensor from its file and from the index."""

        def edit(entries: dict[str, Any], payload: bytearray) -> None:
            begin, end = entries.pop(tensor)["data_offsets"]
            del payload[begin:end]
            for entry in entries.values():
                if entry["data_offsets"][0] >= end:
                    entry["data_offsets"] = [at - (end - begin) for at in entry["data_offsets"]]

        self.rewrite(self.file_of(tensor), edit)
        index = self.json(INDEX)
        del index["weight_map"][tensor]
        self.write_json(INDEX, index)

    def append(self, file: Path, tensor: str, dtype: str, shape: list[int], size: int) -> None:
        def edit(entries: dict[str, Any], payload: bytearray) -> None:
            offsets = [len(payload), len(payload) + size]
            entries[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
            payload += bytes(size)

        self.rewrite(file, edit)

    def edit_entry(self, tensor: str, **values: object) -> None:
        self.rewrite(self.file_of(tensor), lambda entries, _: entries[tensor].update(values))

    def poke(self, tensor: str, offset: int, data: bytes) -> None:
        def edit(entries: dict[str, Any], payload: bytearray) -> None:
            at = entries[tensor]["data_offsets"][0] + offset
            payload[at : at + len(data)] = data

        self.rewrite(self.file_of(tensor), edit)
