"""Conformance kits and slow oracles, shipped for plugin authors.

`allocator_checks`, `eviction_checks`, `hash_checks`, `backend_checks`, `workload_checks`, `trace_checks`,
`tracker_checks`, `tiering_checks`, `store_checks` and `replay_core_checks` are tuples of functions `check(make)`; each
raises an AssertionError that says which rule is broken and shows the calls that break it. `allocator_large_checks`,
`eviction_large_checks`, `hash_large_checks` and `backend_large_checks` are the large part of four kits, a minute of
pools, prompts and contexts of production's sizes. In a test:

    @pytest.mark.parametrize("check", eviction_checks)
    def test_my_policy(check):
        check(MyPolicy)

Each kit is imported when it is named, so that only the backend's loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.testing.allocator import allocator_checks, allocator_large_checks
    from framework.testing.backend import backend_checks, backend_large_checks
    from framework.testing.eviction import eviction_checks, eviction_large_checks
    from framework.testing.hash import hash_checks, hash_large_checks
    from framework.testing.replay_core import replay_core_checks
    from framework.testing.store import store_checks
    from framework.testing.tiering import tiering_checks
    from framework.testing.trace import trace_checks
    from framework.testing.tracker import tracker_checks
    from framework.testing.workload import workload_checks

__all__ = [
    "allocator_checks", "allocator_large_checks", "backend_checks", "backend_large_checks", "eviction_checks",
    "eviction_large_checks", "hash_checks", "hash_large_checks", "replay_core_checks", "store_checks",
    "tiering_checks", "trace_checks", "tracker_checks", "workload_checks",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        kind = name.removesuffix("_checks").removesuffix("_large")
        return getattr(import_module(f"{__name__}.{kind}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
