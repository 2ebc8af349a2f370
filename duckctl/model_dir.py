"""Where a model is: a folder, or the name of the model that comes with duckctl."""

from __future__ import annotations

from pathlib import Path

import duckctl
from duckctl.errors import UsageError

SHIPPED_MODELS = ("ducklet",)


def resolve_model_dir(text: str) -> Path:
    """The absolute folder of MODEL_DIR; ``ducklet`` names the shipped model.

    Raises UsageError when there is no such folder or it has no config.json.
    """
    path = Path(text).expanduser()
    if not path.exists() and text in SHIPPED_MODELS:
        for root in duckctl.__path__:
            shipped = Path(root) / "models" / text
            if (shipped / "config.json").exists():
                return shipped.absolute()
        raise UsageError(f"the shipped model '{text}' is not in this installation of duckctl")
    if not path.is_dir():
        raise UsageError(
            f"there is no model folder {text}",
            "give a Hugging Face model folder (config.json, tokenizer.json, *.safetensors), or "
            "'ducklet' for the small model that comes with duckctl",
        )
    if not (path / "config.json").is_file():
        raise UsageError(
            f"{text} is not a model folder: it has no config.json",
            "give the folder that holds config.json and the *.safetensors files",
        )
    return path.absolute()
