"""Every installed attention backend keeps its contract."""

from importlib.metadata import entry_points

import pytest
import torch

from framework.testing.attention_runs import supported
from framework.testing.backend import backend_checks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INSTALLED = {point.name: point for point in entry_points(group="framework.backend")}
SLOW = {"triton"} if DEVICE == "cpu" else set()
"""Run in an interpreter here: the small grid."""


def load(name):
    try:
        return INSTALLED[name].load()
    except ImportError as error:
        if INSTALLED[name].dist.name == "kvcache-framework":
            raise
        pytest.skip(f"{name} is installed and cannot be imported here: {error}")


@pytest.mark.parametrize("check", backend_checks, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", sorted(INSTALLED))
def test_an_installed_backend_keeps_its_contract(name, check):
    make = load(name)
    supported(make, DEVICE)  # skips with the backend's own reasons
    check(make, DEVICE, "small" if name in SLOW else "full")


def test_our_backends_are_installed():
    assert {"torch", "gather", "triton"} <= set(INSTALLED), f"found {sorted(INSTALLED)}; pip install -e . again"
