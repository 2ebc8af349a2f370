"""Setups for the tests of the plan."""

from __future__ import annotations

from duckctl.plan.catalogue import load_catalogue
from duckctl.plan.profile import OURS, Profile
from duckctl.plan.setup import Setup

CATALOGUE = load_catalogue()


def make_setup(
    model: str = "deepseek-v3.2",
    ducks: int = 32,
    weight_format: str = "fp9",
    profile: Profile = OURS,
    acceptance: float | None = None,
) -> Setup:
    """The published hardware with our software."""
    shape = CATALOGUE.model(model)
    return Setup(
        model=shape,
        duck=CATALOGUE.duck("n100"),
        duck_count=ducks,
        domain_count=4,
        nic_mbps=2500,
        host_nic_mbps=25000,
        gpu=CATALOGUE.gpu("rtx5090"),
        weight_format=weight_format,
        profile=profile,
        acceptance=shape.acceptance if acceptance is None else acceptance,
    )
