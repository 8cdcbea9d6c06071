"""Every installed plugin passes the kit of its kind, whoever wrote it."""

from __future__ import annotations

from functools import partial
from importlib.metadata import EntryPoint, entry_points

import pytest
import torch

import framework_testing as testing
from framework_testing import allocator_checks, backend_checks, eviction_checks, hash_checks
from framework_testing.attention_runs import supported
from framework_testing.eviction import evictions_of, random_steps
from framework_testing.oracles.eviction import SlowFifo, SlowLru

VARIANTS = {
    "contiguous": [{"reserve": "max"}, {"reserve": "pow2"}, {"reserve": "oracle"}],
    "radix": [{}, {"leaf_only": True}],
    "prefix_cow": [{}, {"leaf_only": True}, {"watermark": 0.4}],
}
"""Options of built-ins that change what the rules must hold for."""


def installed(kind: str) -> list[EntryPoint]:
    """The entry points of one kind, by name."""
    return sorted(entry_points(group=f"framework.{kind}"), key=lambda point: point.name)


def allocators() -> list[object]:
    """Each installed allocator, in each of its variants; other than the first they are slow tests."""
    return [
        pytest.param(
            point,
            options,
            id="-".join([point.name, *map(str, options.values())]),
            marks=[pytest.mark.slow] if options and point.name != "contiguous" else [],
        )
        for point in installed("allocator")
        for options in VARIANTS.get(point.name, [{}])
    ]


@pytest.mark.parametrize("check", allocator_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("point", "options"), allocators())
def test_an_allocator_keeps_its_promises(point, options, check):
    check(partial(point.load(), **options))


@pytest.mark.parametrize("check", eviction_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("point", installed("eviction"), ids=lambda point: point.name)
def test_an_eviction_policy_keeps_its_promises(point, check):
    check(point.load())


@pytest.mark.parametrize("check", hash_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("point", installed("hash"), ids=lambda point: point.name)
def test_a_hash_scheme_keeps_its_promises(point, check):
    check(point.load())


@pytest.mark.parametrize("check", backend_checks, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("point", installed("backend"), ids=lambda point: point.name)
def test_a_backend_keeps_its_contract(point, check):
    try:
        make = point.load()
    except ImportError as error:
        if point.dist.name == "kvcache-framework":
            raise
        pytest.skip(f"{point.name} is installed and cannot be imported here: {error}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    supported(make, device)  # skips with the backend's own reasons
    check(make, device, "small" if (point.name, device) == ("triton", "cpu") else "full")  # it is interpreted there


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "point"),
    [
        pytest.param(kind, point, id=f"{kind}-{point.name}")
        for kind in ("allocator", "eviction", "hash")
        for point in installed(kind)
    ],
)
def test_a_plugin_passes_the_large_part(kind, point):
    for check in getattr(testing, f"{kind}_large_checks"):
        check(point.load())


@pytest.mark.slow
@pytest.mark.parametrize("point", installed("backend"), ids=lambda point: point.name)
def test_a_backend_passes_the_large_part(point):
    make, device = point.load(), "cuda" if torch.cuda.is_available() else "cpu"
    for check in testing.backend_large_checks:
        check(make, device, "small" if (point.name, device) == ("triton", "cpu") else "full")


@pytest.mark.parametrize(("name", "oracle"), [("lru", SlowLru), ("fifo", SlowFifo)])
def test_lru_and_fifo_evict_in_the_oracle_s_order(name, oracle):
    (policy,) = (point.load() for point in installed("eviction") if point.name == name)
    evicted = 0
    for seed in range(120):
        steps, blocks = random_steps(seed, 60), 1 + seed % 11
        expected, found = evictions_of(oracle(), steps, blocks), evictions_of(policy(), steps, blocks)
        assert found == expected, f"seed {seed}, {blocks} blocks: {found}, the oracle evicts {expected}"
        evicted += len(found)
    assert evicted > 1000, f"the histories evict too little to judge an order: {evicted}"


def test_something_of_each_kind_is_installed():
    for kind in ("allocator", "eviction", "hash", "backend"):
        assert installed(kind), f"no plugin of kind {kind} is installed: `pip install -e .`"
