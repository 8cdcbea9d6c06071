"""Conformance kits and slow oracles, shipped for plugin authors.

`allocator_checks`, `eviction_checks`, `hash_checks`, `backend_checks`, `workload_checks`, `trace_checks`,
`tracker_checks`, `observer_checks`, `scheduling_checks`, `compression_checks`, and `KIND_checks` of each kind that a
package opens with a kit, are tuples of functions `check(make)`; each raises an AssertionError that says which rule is
broken and shows the calls that break it. `allocator_large_checks`, `eviction_large_checks`, `hash_large_checks` and
`backend_large_checks`
are the large part of four kits, a minute of pools, prompts and contexts of production's sizes.

In a test:

    @pytest.mark.parametrize("check", eviction_checks)
    def test_my_policy(check):
        check(MyPolicy)

Each kit is imported when it is named, so that only those of backends and compressions load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from framework import registry

if TYPE_CHECKING:
    from framework_testing.allocator import allocator_checks, allocator_large_checks
    from framework_testing.backend import backend_checks, backend_large_checks
    from framework_testing.compression import compression_checks
    from framework_testing.eviction import eviction_checks, eviction_large_checks
    from framework_testing.hash import hash_checks, hash_large_checks
    from framework_testing.observer import observer_checks
    from framework_testing.scheduling import scheduling_checks
    from framework_testing.trace import trace_checks
    from framework_testing.tracker import tracker_checks
    from framework_testing.workload import workload_checks

__all__ = [
    "allocator_checks", "allocator_large_checks", "backend_checks", "backend_large_checks", "compression_checks",
    "eviction_checks", "eviction_large_checks", "hash_checks", "hash_large_checks", "observer_checks",
    "scheduling_checks", "trace_checks", "tracker_checks", "workload_checks",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    kind = name.removesuffix("_checks").removesuffix("_large")
    if name.endswith("_checks") and kind in registry.kinds(with_kit=True):
        return getattr(import_module(f"{registry.kind_of(kind).kit}.{kind}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
