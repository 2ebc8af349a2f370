"""Exports the host's part of a model: runs host_runtime's exporter as a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from duckctl.console import talk
from duckctl.errors import DuckError


class ExportError(DuckError):
    """The host's weights could not be exported."""


def export_host_weights(model_dir: Path, folder: Path) -> None:
    """Attention, shared experts, norms, embedding and head into one file (gpu-runtime.md).

    Its progress goes to stderr. Raises ExportError with its last words.
    """
    target = folder.expanduser().absolute()
    arguments = [sys.executable, "-P", "-m", "host_runtime.cuda.export", str(model_dir)]
    process = subprocess.Popen(
        [*arguments, str(target)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    last, hint = "", ""
    try:
        for line in process.stderr:
            text = line.rstrip()
            if text.strip().startswith("hint:"):
                hint = text.strip().removeprefix("hint:").strip()
            else:
                last = text
                if not text.startswith("error:"):
                    talk(text)
    except BaseException:
        process.terminate()  # it removes what it has not finished
        raise
    finally:
        code = process.wait()
    if code != 0:
        raise ExportError(last.removeprefix("error:").strip() or f"exit code {code}", hint)
    talk(f"host weights in {target}")
