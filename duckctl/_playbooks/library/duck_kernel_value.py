"""Ansible module: writes values of /sys and /proc/sys and reads them back.

The kernel may take less than was asked for without an error (hugepages): then the old value is
written again and the task fails with both figures. ``compare: at_least`` leaves a larger one alone.
When one value of several fails, those already written are set back as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule


class KernelValueError(Exception):
    """A value could not be had; the text has both figures."""


def is_reached(found: str, wanted: str, compare: str) -> bool:
    if compare == "at_least":
        return found.isdigit() and int(found) >= int(wanted)
    return found.split() == wanted.split()


def write_value(path: Path, wanted: str, compare: str) -> None:
    """Writes and reads back. Raises KernelValueError when the kernel refused or gave less."""
    try:
        path.write_text(wanted)
    except OSError as error:
        raise KernelValueError(f"cannot write {wanted} to {path}: {error.strerror}") from error
    found = path.read_text().strip()
    if not is_reached(found, wanted, compare):
        raise KernelValueError(f"{path}: {wanted} wanted, the kernel gave {found}")


def write_all(changing: dict[Path, str], before: dict[Path, str], compare: str) -> None:
    written: list[Path] = []
    try:
        for path, wanted in changing.items():
            written.append(path)
            write_value(path, wanted, compare)
    except KernelValueError as error:
        for path in reversed(written):
            path.write_text(before[path])
        raise KernelValueError(f"{error}; set back to what was before") from error


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "values": {"type": "dict", "required": True},
            "compare": {"choices": ["equal", "at_least"], "default": "equal"},
            "if_missing": {"choices": ["fail", "skip"], "default": "fail"},
            "advice": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    compare, advice = module.params["compare"], module.params["advice"]
    hint = f"; {advice}" if advice else ""
    wanted = {Path(path): str(value) for path, value in module.params["values"].items()}
    missing = [str(path) for path in wanted if not path.exists()]
    if missing and module.params["if_missing"] == "fail":
        module.fail_json(msg=f"this kernel has no {', '.join(missing)}{hint}")
    before = {path: path.read_text().strip() for path in wanted if path.exists()}
    changing = {p: wanted[p] for p in before if not is_reached(before[p], wanted[p], compare)}
    if changing and not module.check_mode:
        try:
            write_all(changing, before, compare)
        except KernelValueError as error:
            module.fail_json(msg=f"{error}{hint}")
    diff: dict[str, Any] = {
        "before": "".join(f"{path} = {before[path]}\n" for path in changing),
        "after": "".join(f"{path} = {value}\n" for path, value in changing.items()),
    }
    module.exit_json(changed=bool(changing), missing=missing, diff=diff)


if __name__ == "__main__":
    main()
