"""Ansible module: text files with given contents, several in one visit.

A file is written whole or not at all, its folder is made if it is missing. Result: ``written``.

Files mean nothing until somebody has read them (update-grub, networkctl reload), and a run may end
between the two. ``pending``: a file that is written before the others and names those that change;
the role removes it when they have been read. The result's ``pending`` names what this run and
earlier ones have changed and nobody has read.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule


def read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else None


def write(module: AnsibleModule, path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=module.tmpdir, delete=False
    ) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    module.atomic_move(file.name, str(path))
    path.chmod(0o644)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "dict", "required": True},
            "absent": {"type": "list", "elements": "path", "default": []},
            "pending": {"type": "path"},
        },
        supports_check_mode=True,
    )
    wanted: dict[Path, str | None] = {Path(p): str(t) for p, t in module.params["files"].items()}
    wanted |= {Path(path): None for path in module.params["absent"]}
    before = {path: read(path) for path in wanted}
    changing = [path for path in wanted if before[path] != wanted[path]]
    marker = Path(module.params["pending"]) if module.params["pending"] else None
    noted = (read(marker) or "").splitlines() if marker is not None else []
    pending = sorted({*noted, *(str(path) for path in changing)})
    if marker is not None and changing and not module.check_mode:
        write(module, marker, "".join(f"{path}\n" for path in pending))
    for path in changing if not module.check_mode else ():
        text = wanted[path]
        if text is None:
            path.unlink()
        else:
            write(module, path, text)
    diff = [
        {
            "before": before[path] or "",
            "after": wanted[path] or "",
            "before_header": str(path) if before[path] is not None else f"{path} (absent)",
            "after_header": str(path) if wanted[path] is not None else f"{path} (absent)",
        }
        for path in changing
    ]
    written = [str(path) for path in changing]
    module.exit_json(changed=bool(changing), written=written, pending=pending, diff=diff)


if __name__ == "__main__":
    main()
