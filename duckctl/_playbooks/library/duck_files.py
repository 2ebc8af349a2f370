"""Ansible module: text files with given contents, several in one visit.

A file is written whole or not at all, its folder is made if it is missing. Result: ``written``.
"""

from __future__ import annotations

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
    module.atomic_move(file.name, str(path))
    path.chmod(0o644)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "dict", "required": True},
            "absent": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    wanted: dict[Path, str | None] = {Path(p): str(t) for p, t in module.params["files"].items()}
    wanted |= {Path(path): None for path in module.params["absent"]}
    before = {path: read(path) for path in wanted}
    changing = [path for path in wanted if before[path] != wanted[path]]
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
    module.exit_json(changed=bool(changing), written=[str(path) for path in changing], diff=diff)


if __name__ == "__main__":
    main()
