"""Ansible module: gives network ports to vfio-pci, all or none, or back to the kernel.

``state: bound`` binds and verifies, and on a failure leads back to where it began;
``state: possible`` only says whether binding would work; ``state: released`` gives ports back.
"""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.duck_pci import (
    VFIO,
    PciError,
    Sysfs,
    bind_ports,
    binding_problems,
    read_port,
    release_ports,
    unbound_ports,
)


def would_change(sysfs: Sysfs, state: str, pcis: list[str], keep: set[str]) -> list[str]:
    """What a run would do; raises PciError where it would fail."""
    if state == "released":
        return [pci for pci in pcis if read_port(sysfs, pci).driver == VFIO]
    problems = binding_problems(sysfs, pcis, keep)
    if problems:
        raise PciError("; ".join(problems))
    return unbound_ports(sysfs, pcis, VFIO) if state == "bound" else []


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "ports": {"type": "list", "elements": "str", "required": True},
            "state": {"choices": ["bound", "possible", "released"], "default": "bound"},
            "keep_interfaces": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    sysfs = Sysfs(Path(module.params["root"]))
    pcis, keep = module.params["ports"], set(module.params["keep_interfaces"])
    state = module.params["state"]
    try:
        before = {pci: read_port(sysfs, pci).driver for pci in pcis}
        changed = would_change(sysfs, state, pcis, keep)
        if not module.check_mode and state != "possible":
            if state == "bound":
                changed = bind_ports(sysfs, pcis, keep)
            else:
                changed = release_ports(sysfs, pcis)
    except (PciError, OSError) as error:
        module.fail_json(msg=str(error))
    after = dict.fromkeys(changed, VFIO if state == "bound" else "kernel")
    lines = [
        "".join(f"{pci}: {drivers[pci]}\n" for pci in changed)
        for drivers in (before, {**before, **after})
    ]
    module.exit_json(
        changed=bool(changed), ports=changed, diff={"before": lines[0], "after": lines[1]}
    )


if __name__ == "__main__":
    main()
