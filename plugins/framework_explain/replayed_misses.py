"""Causes of the misses of a cache-only replay, worked out from what it evicted and declined."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from framework.interfaces.workload import WorkloadRequest
from framework_cache_only.optimum import optimum_hits
from framework_cache_only.parts import Losses
from framework_cache_only.paths import RequestPaths, build_paths
from framework_cache_only.stack import reuse_distances
from framework_explain.account import (
    DECLINED,
    ELSEWHERE,
    END,
    EVICTED,
    HIT,
    NEW,
    OUTCOMES,
    TIER,
    UNREACHABLE,
    Account,
    Evictions,
    Ints,
)
from framework_explain.ledger import MOST_NAMESPACES


class LossLog(Losses):
    """What a replay gave up, in order. 8 bytes a block.

    Attributes:
        behind: nodes that a tier held behind the end of the request's cached prefix, in the tiers alone.
    """

    def __init__(self) -> None:
        self._nodes = array("q")
        self._calls: list[tuple[int, int, int]] = []  # request, number of nodes and cause of each call
        self.behind: list[tuple[int, Sequence[int]]] = []

    def evicted(self, request: int, nodes: Sequence[int]) -> None:
        self.add(request, nodes, EVICTED)

    def declined(self, request: int, nodes: Sequence[int]) -> None:
        self.add(request, nodes, DECLINED)

    def kept(self, request: int, nodes: Sequence[int]) -> None:
        self.add(request, nodes, TIER)

    def out_of_reach(self, request: int, nodes: Sequence[int]) -> None:
        self.behind.append((request, nodes))

    def add(self, request: int, nodes: Sequence[int], cause: int = EVICTED) -> None:
        """`request` made the cache give these up: evicted, declined, or held by a tier below afterwards."""
        self._nodes.extend(nodes)
        self._calls.append((request, len(nodes), cause))

    def __iter__(self) -> Iterator[tuple[int, Sequence[int], int]]:
        """(request, nodes, cause) of each call, in order."""
        end = 0
        for request, count, cause in self._calls:
            start, end = end, end + count
            yield request, self._nodes[start:end], cause


def explain(
    paths: RequestPaths,
    request_hits: npt.NDArray[np.int32],
    log: LossLog,
    *,
    num_blocks: int,
    policy: str,
) -> Account:
    """One cause for each block of a replay that was no hit; of evictions, what LRU and the pinned optimum would hit.

    A block that no request of its namespace asked for before is new, or another namespace's that held it and all above
    it in the pool; one that was evicted, declined or dropped from a tier since its
    last use says so; all others are resident behind a block that is not. The prompt's tokens after its last block,
    where partial blocks are left out, are its end.

    Args:
        request_hits: (R,) hit blocks. num_blocks: of the pool, all tiers included, for the comparison.

    O(E) Python steps.
    """
    requests, starts = paths.requests.astype(np.int64), paths.starts
    depths = np.arange(paths.num_references) - starts[requests]
    outcome, evicted_for = _outcomes(paths, request_hits.tolist(), log)
    if paths.ids is not None:
        outcome[(outcome == NEW) & _elsewhere(paths, paths.ids.tolist(), log)] = ELSEWHERE
    reference_tokens = np.minimum(paths.block_tokens, paths.input_tokens[requests] - depths * paths.block_tokens)
    shape, cell = (paths.num_requests, len(OUTCOMES)), requests * len(OUTCOMES) + outcome
    blocks = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    tokens = np.bincount(cell, weights=reference_tokens, minlength=shape[0] * shape[1]).astype(np.int64).reshape(shape)
    tokens[:, END] += paths.input_tokens - tokens.sum(axis=1)
    evicted = np.flatnonzero(outcome == EVICTED)
    evictions = _evictions(paths, evicted, evicted_for[evicted], depths, reference_tokens)
    account = Account(blocks=blocks.astype(np.int64), tokens=tokens, evictions=evictions, policy=policy)
    return _compared(account, paths, num_blocks)


def _outcomes(paths: RequestPaths, hits: Sequence[int], log: LossLog) -> tuple[Ints, Ints]:
    """(E,) what became of each reference, and (E,) the request that made its node go, where it was given up."""
    fates: dict[int, tuple[int, int]] = {}  # of each node that was given up, the last time: cause and request
    last_use = [-1] * paths.num_nodes
    behind = {request: set(nodes) for request, nodes in log.behind}
    outcomes, given_up_for = array("q"), array("q")
    calls = iter(log)
    call = next(calls, None)
    for request, (path, num_hits) in enumerate(zip(paths.walk(), hits, strict=True)):
        while call is not None and call[0] < request:
            fates.update(dict.fromkeys(call[1], (call[2], call[0])))
            call = next(calls, None)
        unreachable = behind.get(request, ())
        for depth, node in enumerate(path):
            cause, by = fates.get(node, (UNREACHABLE, -1))
            if depth < num_hits:
                cause = HIT
            elif last_use[node] < 0:
                cause = NEW
            elif by < last_use[node] or node in unreachable:
                cause = UNREACHABLE
            outcomes.append(cause)
            given_up_for.append(by)
            last_use[node] = request
    return np.array(outcomes, dtype=np.int64), np.array(given_up_for, dtype=np.int64)


def against_models(account: Account, keys: Sequence[Ints] | None, block_tokens: int, num_blocks: int) -> Account:
    """An engine's account with what LRU and the pinned optimum of `num_blocks` would have hit in the request model.

    Args:
        keys: names of each admitted prompt's full blocks, in order of admission (`Ledger.paths`); None: not kept, and
            the account comes back as it is.
    """
    if not keys or not len(account.evictions):
        return account
    ids = np.unique(np.concatenate(keys), return_inverse=True)[1]
    paths = build_paths(
        WorkloadRequest(input_tokens=max(1, len(path) * block_tokens), block_ids=path, block_tokens=block_tokens)
        for path in np.split(ids, np.cumsum([len(path) for path in keys])[:-1])
    )
    return _compared(account, paths, num_blocks)


def _compared(account: Account, paths: RequestPaths, num_blocks: int) -> Account:
    """The account, with the tokens of its evictions that LRU and the pinned optimum of this size would have hit."""
    lost, distances = account.evictions, reuse_distances(paths)
    in_lru = (distances > 0) & (distances <= num_blocks)
    lru = np.bincount(paths.requests, weights=in_lru, minlength=paths.num_requests).astype(np.int64)

    def tokens(hits: Ints) -> Ints:
        kept = np.clip(hits[lost.admission] - lost.depth, 0, lost.blocks)
        tokens_kept: Ints = np.minimum(kept * paths.block_tokens, lost.tokens)
        return tokens_kept

    best = optimum_hits(paths, num_blocks, pinned=True)
    return replace(account, evictions=replace(lost, lru_tokens=tokens(lru), optimum_tokens=tokens(best)))


def _elsewhere(paths: RequestPaths, ids: list[int], log: LossLog) -> npt.NDArray[np.bool_]:
    """(E,) whether another namespace would have hit this reference of a prompt that ends with a new block."""
    contents, twins, children = dict[tuple[int, int], int](), list[int](), dict[tuple[int, int], int]()
    for node, (parent, block) in enumerate(zip(paths.parents.tolist(), ids, strict=True)):
        content = -1 if parent < 0 else twins[parent], block
        twins.append(contents.setdefault(content, len(contents)))  # equal where but the namespace differs
        children[parent, twins[node]] = node
    calls, num_seen = iter(log), 0
    call = next(calls, None)
    resident, spaces = set[int](), dict[int, tuple[int, ...]]()
    elsewhere = np.zeros(paths.num_references, dtype=bool)
    for request, path in enumerate(paths.walk()):
        known = spaces.get(twins[path[0]], ()) if path else ()
        if path and path[-1] >= num_seen:
            num_seen = path[-1] + 1
            for node in known:
                depth = 0
                while node != path[0] and node in resident:
                    elsewhere[paths.starts[request] + depth] = True
                    depth += 1
                    node = children.get((node, twins[path[depth]]), -1) if depth < len(path) else -1
        if path and path[0] not in known:
            spaces[twins[path[0]]] = (*known, path[0])[-MOST_NAMESPACES:]
        resident.update(path)
        while call is not None and call[0] <= request:
            resident.difference_update(call[1])
            call = next(calls, None)
    return elsewhere


def _evictions(
    paths: RequestPaths, evicted: Ints, evicted_for: Ints, depths: Ints, reference_tokens: Ints
) -> Evictions:
    """The references `evicted` (V,), each for the request in `evicted_for` (V,), neighbours put together."""
    requests = paths.requests[evicted].astype(np.int64)
    cuts = np.ones(len(evicted), dtype=bool)
    cuts[1:] = (np.diff(evicted) != 1) | (np.diff(requests) != 0) | (np.diff(evicted_for) != 0)
    first = np.flatnonzero(cuts)

    def summed(values: Ints) -> Ints:
        return np.add.reduceat(values, first) if len(first) else np.empty(0, dtype=np.int64)

    requests, evicted_for, turns = requests[first], evicted_for[first], paths.turns.tolist()
    known = [] if paths.known is None else [paths.known[request] for request in requests.tolist()]
    given = [facts.turn for facts in known] or [None] * len(requests)
    return Evictions(
        request=requests,
        depth=depths[evicted][first],
        blocks=summed(np.ones(len(evicted), dtype=np.int64)),
        tokens=summed(reference_tokens[evicted]),
        evicted_for=evicted_for,
        requests_ago=requests - evicted_for,
        references_ago=paths.starts[requests] - paths.starts[evicted_for],
        admission=requests,
        turn=[turns[request] if turn is None else turn for request, turn in zip(requests.tolist(), given, strict=True)],
        tenant=[facts.tenant for facts in known],
        category=[facts.category for facts in known],
    )
