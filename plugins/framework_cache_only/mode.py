"""mode=cache_only: each request is one atomic access; the mode of published hit-rate tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.cli.progress import reference_progress
from framework.config.config import Config
from framework.errors import ConfigError
from framework.guard.facts import reported
from framework.guard.observer import GuardedObserver
from framework.guard.policy import GuardedPolicy
from framework.guard.workload import GuardedWorkload
from framework.interfaces.below import Below
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.mode import OnBegin
from framework.interfaces.workload import Workload
from framework.modes.replay_input import block_bytes, pool_blocks, what_fewer_bits_buy, workload_of
from framework.modes.session import Session, names_of
from framework.registry.components import build_component
from framework.results.layout import REQUESTS
from framework.workload import requests_of
from framework_cache_only.optimum import optimum_hits
from framework_cache_only.parts import CacheOnlyBelow, Counted, CountedBelow, Losses
from framework_cache_only.paths import CacheOnlyResult, RequestPaths, build_paths
from framework_cache_only.plugin import CacheOnly
from framework_cache_only.reference import core_of, count, replay
from framework_cache_only.replay_core import PYTHON, ReplayCore
from framework_workloads.trace.own_format import as_trace
from framework_workloads.trace_file import TraceFile

OPTIMUM_RULES = (
    "exact: one atomic access a request, only prompts cached, content may be declined; pinned: the request at hand "
    "holds its blocks and nothing exceeds the capacity, as in an engine"
)


def cache_only(config: Config, options: CacheOnly, on_begin: OnBegin) -> dict[str, Any]:
    """Count `config`'s trace; returns what `result.json` holds. See `reference.replay`."""
    with Session(config, on_begin=on_begin) as session:
        return _counted_in(session, options)


def _counted_in(session: Session, options: CacheOnly) -> dict[str, Any]:
    config, start = session.config, time.perf_counter()
    block_size = config.cache.block_size
    name, workload = workload_of(config)
    core = core_of(options.replay_core)
    paths = paths_of(workload, name, block_size, full_blocks_only=options.full_blocks_only)
    num_blocks = pool_blocks(config.cache, config.replay, working_set=paths.num_nodes)
    shared = {"num_blocks": num_blocks, "block_size": block_size, "seed": config.seed}
    policy: EvictionPolicy = build_component("eviction", config.eviction.plain(), shared)
    chosen: Below = build_component("below", config.below.plain(), {})
    below = chosen.count(paths, policy, shared) if isinstance(chosen, CacheOnlyBelow) else None
    session.facts |= {
        "num_skipped_lines": 0,
        **GuardedWorkload(workload).result(),
        **names_of(config, ("eviction", "workload")),
        **chosen.names(),
        "num_blocks": num_blocks,
        "block_size": block_size,
        "unique_blocks": paths.num_nodes,
        "infinite_hit_blocks": int(paths.infinite_hits.sum()),
        "infinite_hit_rate": float(paths.hit_tokens(paths.infinite_hits).sum() / max(1, paths.input_tokens.sum())),
        **({"eviction_needs_future": True} if policy.needs_future else {}),
    }
    session.open_observers()
    session.begin("none")
    measured: dict[str, Any] = {}

    def work() -> None:
        began = time.perf_counter()
        leaf_first, native = options.leaf_first, False
        losses = _losses_of(session.observers)
        with reference_progress(paths.num_references, enabled=session.settings.progress) as tick:
            if below is None and losses is None:
                native, counts = count(core, paths, policy, num_blocks, leaf_first=leaf_first, progress=tick)
            else:  # what lies below and losses are known to Python alone
                counts = replay(
                    paths, policy, num_blocks, leaf_first=leaf_first, bypass=policy.bypass, below=below,
                    losses=losses, progress=tick,
                )  # fmt: skip
        if below is not None:
            measured.update(below.results(block_bytes(config.replay, config.cache)))
        measured.update(reported({"eviction": GuardedPolicy(policy)}))
        measured.update(
            _counted(counts),
            replay_core=options.replay_core if native else PYTHON,
            count_s=time.perf_counter() - began,
        )
        if below is None:
            asked = core if native else None  # that it cannot count was said already
            measured.update(
                what_fewer_bits_buy(
                    config, num_blocks, lambda blocks: _hit_rate(config, asked, paths, blocks, options.leaf_first)
                )
            )
        total = num_blocks + (0 if below is None else below.num_blocks)
        for observer in session.observers:
            observer.plugin.counted(Counted(paths=paths, hits=counts.request_hits, num_blocks=total))
        if session.settings.requests:
            log_requests(session, paths, counts.request_hits, below)
        if options.optimum:
            measured.update(_against_optima(paths, counts, num_blocks, below))

    return session.record(work, lambda complete: {**measured, "replay_s": time.perf_counter() - start})


def _hit_rate(config: Config, core: ReplayCore | None, paths: RequestPaths, num_blocks: int, leaf_first: bool) -> float:
    """Hit rate of a pool of `num_blocks`, counted by `core`, or by Python where it is None."""
    shared = {"num_blocks": num_blocks, "block_size": config.cache.block_size, "seed": config.seed}
    policy: EvictionPolicy = build_component("eviction", config.eviction.plain(), shared)
    return count(core, paths, policy, num_blocks, leaf_first=leaf_first)[1].hit_rate


def _counted(counts: CacheOnlyResult) -> dict[str, Any]:
    return {
        "num_requests": counts.num_requests,
        "hit_blocks": counts.hit_blocks,
        "prompt_blocks": counts.prompt_blocks,
        "hit_tokens": counts.hit_tokens,
        "prompt_tokens": counts.prompt_tokens,
        "num_evictions": counts.evictions,
        "hit_rate": counts.hit_rate,
        "hit_rate_blocks": counts.block_hit_rate,
    }


def log_requests(
    session: Session,
    paths: RequestPaths,
    hits: npt.NDArray[np.integer[Any]],
    below: CountedBelow | None = None,
) -> None:
    """`requests.jsonl`: what each request asked for and hit, (R,) blocks."""
    assert paths.known is not None
    columns: dict[str, Sequence[Any]] = {
        "request": range(paths.num_requests),
        "tenant": [facts.tenant or "" for facts in paths.known],
        "session": [facts.session for facts in paths.known],
        "turn": [facts.turn for facts in paths.known],
        "category": [facts.category for facts in paths.known],
        "arrival_s": [facts.arrival for facts in paths.known],
        "prompt_tokens": paths.input_tokens.tolist(),
        "cached_tokens": paths.hit_tokens(hits).tolist(),
        "prompt_blocks": np.diff(paths.starts).tolist(),
        "hit_blocks": hits.tolist(),
    }
    if below is not None:
        columns |= below.columns()
    for number, row in enumerate(zip(*columns.values(), strict=True)):
        session.run.log(REQUESTS, {**dict(zip(columns, row, strict=True)), **session.observed(number)})


def _against_optima(
    paths: RequestPaths, counts: CacheOnlyResult, num_blocks: int, below: CountedBelow | None
) -> dict[str, Any]:
    """The optima of a pool of `num_blocks` and what lies below it, and the gaps to them."""
    total, more = num_blocks, dict[str, Any]()
    if below is not None:
        total, more = num_blocks + below.num_blocks, below.against_optima(num_blocks)
    best = optimum_hits(paths, total, pinned=False)
    pinned = int(optimum_hits(paths, total, pinned=True, request_blocks=num_blocks).sum())
    return {
        "optimum_hit_blocks": int(best.sum()),
        "optimum_hit_rate": int(paths.hit_tokens(best).sum()) / max(1, int(paths.input_tokens.sum())),
        "optimum_hit_rate_blocks": int(best.sum()) / max(1, paths.num_references),
        "pinned_optimum_hit_blocks": pinned,
        **more,
        "optimum_rules": OPTIMUM_RULES + more.get("optimum_rules", ""),
        "gap_to_optimum": _gap(counts, int(best.sum())),
    }


def _gap(counts: CacheOnlyResult, best_hit_blocks: int) -> float | None:
    """How many times an optimum's misses were missed beyond it: 0 is optimal, 1 is twice as many."""
    least = counts.prompt_blocks - best_hit_blocks
    return (best_hit_blocks - counts.hit_blocks) / least if least else None


def paths_of(workload: Workload, name: str, block_size: int, *, full_blocks_only: bool) -> RequestPaths:
    """A workload as paths of blocks of `block_size`, to be counted.

    Raises:
        ConfigError: lengths only, or blocks of another size.
    """
    if not isinstance(workload, TraceFile):
        requests = as_trace(requests_of(workload, name), block_size)
        return build_paths(requests, full_blocks_only=full_blocks_only)
    trace = workload.open(block_size)
    if trace.block_tokens == 0:
        next(iter(trace))  # a trace without requests is that, whatever its format
        raise ConfigError(f"{trace.path} has lengths only: no block is ever shared; use mode=replay")
    if trace.block_tokens != block_size:
        raise ConfigError(
            f"blocks of the trace are counted whole, and have {trace.block_tokens} tokens; set "
            f"cache.block_size={trace.block_tokens} or a multiple, or use mode=replay"
        )
    return build_paths(workload.limited(trace), full_blocks_only=full_blocks_only)


def _losses_of(observers: Sequence[GuardedObserver]) -> Losses | None:
    """What all of these hear the replay with; None where none of them wants to.

    Raises:
        PluginError: one answers something else.
    """
    parts = []
    for observer in observers:
        losses: Any = observer.plugin.losses()
        if isinstance(losses, Losses):
            parts.append(losses)
        elif losses is not None:
            observer.wrong("losses", "must return Losses or None", losses)
    return _AllLosses(parts) if parts else None


class _AllLosses(Losses):
    """Tells several."""

    def __init__(self, parts: Sequence[Losses]) -> None:
        self._parts = parts

    def evicted(self, request: int, nodes: Sequence[int]) -> None:
        for part in self._parts:
            part.evicted(request, nodes)

    def declined(self, request: int, nodes: Sequence[int]) -> None:
        for part in self._parts:
            part.declined(request, nodes)

    def kept(self, request: int, nodes: Sequence[int]) -> None:
        for part in self._parts:
            part.kept(request, nodes)

    def out_of_reach(self, request: int, nodes: Sequence[int]) -> None:
        for part in self._parts:
            part.out_of_reach(request, nodes)
