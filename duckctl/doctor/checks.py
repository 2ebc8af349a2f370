"""The list of checks, and what they share. Every check is a pure function of what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duckctl.doctor.checks_boot import check_ipxe, check_port_owners
from duckctl.doctor.checks_cpu import check_irq_placement, check_isolation
from duckctl.doctor.checks_dpdk import (
    check_ddp,
    check_hugepages,
    check_iommu,
    check_stale_hugepage_files,
)
from duckctl.doctor.checks_machine import check_disk, check_gpu
from duckctl.doctor.checks_net import (
    check_arp,
    check_firmware,
    check_kernel_log,
    check_links,
    check_mtu,
    check_names,
    check_neighbours,
    check_subnets,
)
from duckctl.doctor.environment import Environment
from duckctl.doctor.finding import Finding
from duckctl.doctor.machine import VFIO, domain_ports
from duckctl.doctor.question import Question
from duckctl.inventory import Fleet

Check = Callable[[Question], Sequence[Finding]]
CHECKS: dict[str, Check] = {
    "names": check_names,
    "links": check_links,
    "mtu": check_mtu,
    "subnets": check_subnets,
    "arp": check_arp,
    "neighbours": check_neighbours,
    "firmware": check_firmware,
    "kernel-log": check_kernel_log,
    "ports": check_port_owners,
    "ipxe": check_ipxe,
    "iommu": check_iommu,
    "hugepages": check_hugepages,
    "hugepage-files": check_stale_hugepage_files,
    "ddp": check_ddp,
    "isolation": check_isolation,
    "irq": check_irq_placement,
    "gpu": check_gpu,
    "disk": check_disk,
}


def run_checks(
    environment: Environment, fleet: Fleet | None, dpdk: bool | None, only: Sequence[str] = ()
) -> list[Finding]:
    """All checks, or those in ``only``. ``dpdk`` None: if a domain's port is for DPDK, by the
    inventory or because vfio-pci has it."""
    ports = domain_ports(environment, fleet) if fleet is not None else []
    if dpdk is None:
        dpdk = any(
            entry.domain.device == "pci" or (entry.port is not None and entry.port.driver == VFIO)
            for entry in ports
        )
    question = Question(environment, fleet, tuple(ports), dpdk)
    return [
        finding
        for name, check in CHECKS.items()
        if not only or name in only
        for finding in check(question)
    ]
