"""Checks of CPU isolation: asked for is not the same as active."""

from __future__ import annotations

from duckctl.doctor.finding import Finding
from duckctl.doctor.machine import cpu_numbers, kernel_arguments, processes
from duckctl.doctor.question import Question

CPU = "/sys/devices/system/cpu"
IRQS_SHOWN = 4


def isolated_cpus(question: Question) -> set[int]:
    return cpu_numbers(question.environment.read(f"{CPU}/isolated"))


def check_isolation(question: Question) -> list[Finding]:
    """Kernels without CONFIG_NO_HZ_FULL take ``nohz_full=`` and ignore it (T64)."""
    environment = question.environment
    arguments = kernel_arguments(environment)
    findings = []
    for argument, file in (("isolcpus", "isolated"), ("nohz_full", "nohz_full")):
        # isolcpus=managed_irq,domain,2-5: flags stand before the list
        wanted = cpu_numbers(arguments.get(argument, ""))
        active = cpu_numbers(environment.read(f"{CPU}/{file}"))
        if wanted == active:
            text = environment.read(f"{CPU}/{file}").replace("(null)", "")
            if wanted:
                findings.append(Finding("isolation", "ok", argument, f"CPUs {text} are active"))
            continue
        findings.append(
            Finding(
                *("isolation", "fail", argument),
                found=f"{argument}={arguments.get(argument, '')} on the command line, but "
                f"{CPU}/{file} says {sorted(active) or 'none'}",
                expected="what was asked for is active",
                next_step="use a kernel with CONFIG_NO_HZ_FULL and CONFIG_CPU_ISOLATION; "
                "grep NO_HZ_FULL /boot/config-$(uname -r)",
            )
        )
    if not findings:
        findings.append(
            Finding(
                *("isolation", question.dpdk_level, "CPU isolation"),
                found="no CPU is isolated",
                expected="one CPU per domain and one for control",
                next_step="give each domain its domain_cpu in the inventory; duckctl host setup",
            )
        )
    return findings


def check_irq_placement(question: Question) -> list[Finding]:
    """Interrupts on the CPUs of polling threads cost microseconds; irqbalance moves them (T65)."""
    environment = question.environment
    isolated = isolated_cpus(question)
    if not isolated:
        return []
    findings = []
    placed = []
    for irq in environment.names("/proc/irq"):
        where = cpu_numbers(environment.read(f"/proc/irq/{irq}/effective_affinity_list"))
        if irq.isdigit() and where and where <= isolated:
            placed.append(irq)
    if placed:
        more = " ..." if len(placed) > IRQS_SHOWN else ""
        findings.append(
            Finding(
                *("irq", "warn", "interrupts"),
                found=f"{len(placed)} interrupts on isolated CPUs: {', '.join(placed[:IRQS_SHOWN])}"
                + more,
                expected="none",
                next_step="start the kernel with irqaffinity= (duckctl host setup), and see below",
            )
        )
    running = [pid for pid, name in processes(environment) if name == "irqbalance"]
    if running:
        banned = _banned(question, running[0])
        if not isolated <= banned:
            findings.append(
                Finding(
                    *("irq", "warn", "irqbalance"),
                    found=f"irqbalance runs (pid {running[0]}), banned CPUs: "
                    f"{sorted(banned) or 'none'}",
                    expected=f"it leaves CPUs {sorted(isolated)} alone",
                    next_step="duckctl host setup writes IRQBALANCE_BANNED_CPULIST; or: "
                    "sudo systemctl disable --now irqbalance",
                )
            )
    return findings or [Finding("irq", "ok", "interrupts", "none on isolated CPUs")]


def _banned(question: Question, pid: int) -> set[int]:
    for word in question.environment.read(f"/proc/{pid}/environ").split("\0"):
        if word.startswith("IRQBALANCE_BANNED_CPULIST="):
            return cpu_numbers(word.partition("=")[2])
    return set()
