"""``duckctl doctor``: what of this host is not as a fleet needs it, and what to do about it."""

from duckctl.doctor.checks import CHECKS, run_checks
from duckctl.doctor.environment import Environment
from duckctl.doctor.finding import Finding, Level

__all__ = ["CHECKS", "Environment", "Finding", "Level", "run_checks"]
