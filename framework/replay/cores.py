"""Selection of what counts a cache-only replay: an installed core, or Python."""

from __future__ import annotations

import sys

from framework.guard.replay_core import GuardedReplayCore
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.replay_core import ReplayCore
from framework.registry.components import build_component
from framework.replay.paths import RequestPaths
from framework.replay.reference import replay
from framework.replay.result import CacheOnlyResult, summarise

PYTHON = "python"


def core_of(name: str) -> ReplayCore | None:
    """The installed core of this name, guarded; None for `PYTHON`, which is the framework's reference.

    Raises:
        UnknownPlugin, PluginError.
    """
    return None if name == PYTHON else GuardedReplayCore(build_component("replay_core", name, {}))


def count(
    core: ReplayCore | None,
    paths: RequestPaths,
    policy: EvictionPolicy,
    num_blocks: int,
    *,
    leaf_first: bool = False,
) -> tuple[bool, CacheOnlyResult]:
    """Whether the core counted, and the counts; what it has no version of is said in a sentence on stderr.

    Raises:
        PluginError: the core failed, or counted for another number of requests, or more hits than blocks.
    """
    if core is not None:
        found = core.count(paths, policy, num_blocks, leaf_first=leaf_first, bypass=policy.bypass)
        if found is not None:
            return True, summarise(paths, found.request_hits, found.admitted, found.evictions)
        sentence = f"the replay core cannot count {type(policy).__name__}: counted in Python, the same integers"
        print(sentence, file=sys.stderr, flush=True)  # noqa: T201
    return False, replay(paths, policy, num_blocks, leaf_first=leaf_first, bypass=policy.bypass)
