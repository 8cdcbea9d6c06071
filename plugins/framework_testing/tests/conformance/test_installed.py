"""Every installed plugin passes the kit of its kind, whoever wrote it."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import framework_testing as testing
from framework import registry
from framework.errors import PluginImportError
from framework_testing import allocator_checks, backend_checks
from framework_testing.attention_runs import supported
from framework_testing.check.verdicts import resolve
from framework_testing.eviction import evictions_of, random_steps
from framework_testing.oracles.eviction import SlowFifo, SlowLru

VARIANTS = {
    "contiguous": [{"reserve": "max"}, {"reserve": "pow2"}, {"reserve": "oracle"}],
    "radix": [{}, {"leaf_only": True}],
    "prefix_cow": [{}, {"leaf_only": True}, {"watermark": 0.4}],
}
"""Options of built-ins that change what the rules must hold for."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def named(check):
    """A check as a test id."""
    return check.__name__.removeprefix("check_")


def allocators():
    """Each installed allocator, in each of its variants; other than the first they are slow tests."""
    return [
        pytest.param(
            name, options, id="-".join([name, *map(str, options.values())]),
            marks=[pytest.mark.slow] if options and name != "contiguous" else [],
        )
        for name in registry.names("allocator")
        for options in VARIANTS.get(name, [{}])
    ]  # fmt: skip


@pytest.mark.parametrize("check", allocator_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("name", "options"), allocators())
def test_an_allocator_keeps_its_promises(name, options, check):
    check(partial(registry.load("allocator", name), **options))


def backend(name):
    """An installed backend and what its checks are given; skips with its own reasons where it cannot run."""
    try:
        make = registry.load("backend", name)
    except PluginImportError as error:
        if registry.find("backend", name).is_built_in:
            raise
        pytest.skip(f"{name} is installed and cannot be imported here: {error}")
    supported(make, DEVICE)
    return make, DEVICE, "small" if (name, DEVICE) == ("triton", "cpu") else "full"  # it is interpreted there


@pytest.mark.parametrize("check", backend_checks, ids=named)
@pytest.mark.parametrize("name", registry.names("backend"))
def test_a_backend_keeps_its_contract(name, check):
    check(*backend(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.names("backend"))
def test_a_backend_passes_the_large_part(name):
    for check in testing.backend_large_checks:
        check(*backend(name))


@pytest.mark.parametrize(
    ("kind", "name", "check"),
    [
        pytest.param(kind, name, check, id=f"{kind}-{name}-{named(check)}")
        for kind in ("eviction", "hash", "observer", "scheduling", "compression", "tracker")
        for name in registry.names(kind)
        for check in getattr(testing, f"{kind}_checks")
    ],
)
def test_a_plugin_keeps_its_promises(kind, name, check, monkeypatch):
    if name == "wandb":
        pytest.importorskip("wandb")
        monkeypatch.setenv("WANDB_MODE", "offline")
    check(resolve(name, kind).make)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ("allocator", "eviction", "hash") for name in registry.names(kind)]
)
def test_a_plugin_passes_the_large_part(kind, name):
    for check in getattr(testing, f"{kind}_large_checks"):
        check(registry.load(kind, name))


@pytest.mark.parametrize(("name", "oracle"), [("lru", SlowLru), ("fifo", SlowFifo)])
def test_lru_and_fifo_evict_in_the_oracle_s_order(name, oracle):
    policy, evicted = registry.load("eviction", name), 0
    for seed in range(120):
        steps, blocks = random_steps(seed, 60), 1 + seed % 11
        expected, found = evictions_of(oracle(), steps, blocks), evictions_of(policy(), steps, blocks)
        assert found == expected, f"seed {seed}, {blocks} blocks: {found}, the oracle evicts {expected}"
        evicted += len(found)
    assert evicted > 1000, f"the histories evict too little to judge an order: {evicted}"


def test_something_of_each_kind_is_installed():
    for kind in ("allocator", "eviction", "hash", "backend"):
        assert registry.names(kind), f"no plugin of kind {kind} is installed: `pip install -e .`"
