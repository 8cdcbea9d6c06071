"""A trace as paths through a prefix tree, in arrays: what every cache-only model walks, and what it counts there."""

# Shapes: R requests  E block references (all blocks of all requests)  N nodes = distinct (prefix, block) pairs

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.errors import WorkloadError
from framework.interfaces.trace_columns import TraceColumns
from framework.interfaces.workload import Namespace, WorkloadRequest
from framework.types import Hint, PolicyTime, RequestFacts
from framework.workload.traces.reader import Trace

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
AnyInts = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class KnownRequests:
    """What a trace says of its requests beside their blocks: one list a fact, R long, None where it says nothing."""

    arrival: list[float | None]
    session: list[str | None]
    category: list[str | None]
    tenant: list[str | None]
    turn: list[int | None]
    hint: list[Hint | None]
    output_tokens: list[int | None]


@dataclass(frozen=True, eq=False)
class RequestPaths:
    """Every request as a path of tree nodes. Node numbers are dense, in order of first reference, parents first.

    Attributes:
        nodes: (E,) int32, the references of all requests, in order.
        starts: (R + 1,) int64, request i references `nodes[starts[i]:starts[i + 1]]`, root side first.
        parents: (N,) int32, the node above, -1 at the root.
        depths: (N,) int32, 0 for a prompt's first block.
        input_tokens: (R,) int64.
        tenants: (R,) int32, small numbers in order of first appearance.
        block_tokens: tokens a block.
        known: what else the trace says of each request; None when it was not kept.
        ids: (N,) the trace's id of each node's block; None where all requests are of one namespace.
    """

    nodes: Ints32
    starts: Ints
    parents: Ints32
    depths: Ints32
    input_tokens: Ints
    tenants: Ints32
    block_tokens: int
    known: KnownRequests | None = None
    ids: AnyInts | None = None

    @property
    def num_requests(self) -> int:
        return len(self.starts) - 1

    @property
    def num_references(self) -> int:
        return len(self.nodes)

    @property
    def num_nodes(self) -> int:
        return len(self.parents)

    @cached_property
    def requests(self) -> Ints32:
        """(E,) the request each reference belongs to."""
        return np.repeat(np.arange(self.num_requests, dtype=np.int32), np.diff(self.starts))

    @property
    def is_first(self) -> npt.NDArray[np.bool_]:
        """(E,) whether a reference is its node's first: nodes are numbered in that order."""
        highest = np.maximum.accumulate(self.nodes)
        return np.concatenate([self.nodes[:1] == 0, self.nodes[1:] > highest[:-1]])

    @cached_property
    def next_requests(self) -> Ints32:
        """(E,) the next request that references the same node; `num_requests` when there is none."""
        order = np.argsort(self.nodes, kind="stable")
        result = np.full(self.num_references, self.num_requests, dtype=np.int32)
        same = self.nodes[order[1:]] == self.nodes[order[:-1]]
        result[order[:-1][same]] = self.requests[order[1:][same]]
        return result

    @cached_property
    def next_runs(self) -> list[tuple[list[int], list[int]]]:
        """Each request's path cut where the next request changes: (where each run ends, its blocks' next request).

        Few runs a request: whoever requests a block requests its ancestors, so the next requests do not fall along a
        path. O(E) array work.
        """
        coming = np.full(self.num_nodes, self.num_requests, dtype=np.int32)
        runs: list[tuple[list[int], list[int]]] = [([], [])] * self.num_requests
        bounds = self.starts.tolist()
        for request in range(self.num_requests - 1, -1, -1):
            path = self.nodes[bounds[request] : bounds[request + 1]]
            following = coming[path]
            coming[path] = request
            if len(path):
                cuts = np.flatnonzero(following[1:] != following[:-1]) + 1
                runs[request] = ([*cuts.tolist(), len(path)], following[[0, *cuts]].tolist())
        return runs

    @cached_property
    def node_tokens(self) -> Ints:
        """(N,) tokens up to and including each node; a partial block counts what its first request filled."""
        first = np.flatnonzero(self.is_first)
        filled = (self.depths.astype(np.int64) + 1) * self.block_tokens
        return np.minimum(filled, self.input_tokens[self.requests[first]])

    @cached_property
    def node_partial(self) -> npt.NDArray[np.bool_]:
        """(N,) whether a node holds fewer tokens than a block has: a prompt's tail."""
        return self.node_tokens < (self.depths.astype(np.int64) + 1) * self.block_tokens

    @cached_property
    def full_blocks(self) -> Ints:
        """(R,) leading blocks of each request that its prompt fills to the last token."""
        return np.minimum(np.diff(self.starts), self.input_tokens // self.block_tokens)

    @cached_property
    def turns(self) -> Ints32:
        """(R,) how many earlier requests' prompts each prompt extends, those of equal full blocks counted once.

        As an allocator infers it from the names of the blocks it has seen; see paged.last_requests.PromptEnds.
        """
        ends = np.zeros(self.num_nodes, dtype=np.int32)
        result = np.zeros(self.num_requests, dtype=np.int32)
        for request, (start, count) in enumerate(zip(self.starts.tolist(), self.full_blocks.tolist(), strict=False)):
            if count:
                path = self.nodes[start : start + count]
                result[request] = ends[path[:-1]].sum()
                ends[path[-1]] = 1
        return result

    def request_facts(self, request: int, hit_blocks: int) -> RequestFacts:
        """What a policy may read of a request that found `hit_blocks` of its blocks in the cache."""
        known, turn = self.known, int(self.turns[request])
        prompt = int(self.input_tokens[request])
        new = int(self.starts[request + 1] - self.starts[request]) - hit_blocks
        if known is None:
            return RequestFacts(turn=turn, prompt_tokens=prompt, new_blocks=new)
        given = known.turn[request]
        return RequestFacts(
            turn=turn if given is None else given,
            prompt_tokens=prompt,
            new_blocks=new,
            output_tokens=known.output_tokens[request],
            arrival=known.arrival[request],
            session=known.session[request],
            category=known.category[request],
            tenant=known.tenant[request],
            hint=known.hint[request],
        )

    @cached_property
    def times(self) -> list[PolicyTime]:
        """When each request arrived, in the trace's seconds: the clock that policies see. Its number, from 1, where the
        trace does not say."""
        arrivals = [] if self.known is None else [time for time in self.known.arrival if time is not None]
        return arrivals if len(arrivals) == self.num_requests else [float(at) for at in range(1, self.num_requests + 1)]

    @cached_property
    def infinite_hits(self) -> Ints:
        """(R,) leading blocks of each request that earlier requests referenced: the hits of an unbounded cache."""
        new = np.concatenate([[0], np.cumsum(self.is_first)])
        return np.diff(self.starts) - np.diff(new[self.starts])

    def hit_tokens(self, hits: npt.NDArray[np.integer]) -> Ints:
        """(R,) prompt tokens that `hits` (R,) leading blocks hold; a partial last block counts its tokens."""
        return np.minimum(hits.astype(np.int64) * self.block_tokens, self.input_tokens)

    def walk(self) -> Iterator[list[int]]:
        """Each request's nodes as a list."""
        bounds = self.starts.tolist()
        for start, end in pairwise(bounds):
            yield self.nodes[start:end].tolist()


class _Interner:
    """Numbers (parent, id) pairs in order of first sight."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.ids: list[int] = []
        self._roots: dict[Namespace, dict[int, int]] = {}
        self._seconds: dict[tuple[Namespace | None, int, int], int] = {}

    @property
    def num_namespaces(self) -> int:
        return len(self._roots)

    def path(self, scope: Namespace, ids: list[int]) -> list[int]:
        """Node numbers of one request. The usual case, an id with one parent, is one dictionary look-up a block."""
        known, parents, parent = self._roots.setdefault(scope, {}), self.parents, -1
        path: list[int] = []
        for block in ids:
            node = known.get(block)
            if node is None:
                node = known[block] = self._new(parent, block)
            elif parents[node] != parent:
                node = self._second(scope, parent, block)
            path.append(node)
            parent = node
        return path

    def _second(self, scope: Namespace, parent: int, block: int) -> int:
        key = (scope if parent < 0 else None, parent, block)
        if key not in self._seconds:
            self._seconds[key] = self._new(parent, block)
        return self._seconds[key]

    def _new(self, parent: int, block: int) -> int:
        self.ids.append(block)
        self.parents.append(parent)
        self.depths.append(0 if parent < 0 else self.depths[parent] + 1)
        return len(self.parents) - 1


def build_paths(requests: Iterable[WorkloadRequest], *, full_blocks_only: bool = False) -> RequestPaths:
    """Number the blocks of a trace whose requests come in order of arrival.

    Args:
        full_blocks_only: leave out a partial last block, as engines do that cache full blocks only.

    Raises:
        WorkloadError: no request, one without block ids or out of order, or blocks of several sizes.
    """
    interner = _Interner()
    paths: list[Ints32] = []
    lengths: list[int] = []
    tenants: dict[str, int] = {}
    tenant_of: list[int] = []
    sizes: set[int] = set()
    facts: list[tuple[Any, ...]] = []  # in the order of KnownRequests
    for request in requests:
        if request.block_ids is None:
            raise WorkloadError("this trace has lengths only; a cache needs block ids or tokens")
        sizes.add(request.block_tokens)
        ids = request.block_ids[: request.num_full_blocks] if full_blocks_only else request.block_ids
        if facts and request.arrival_s < facts[-1][0]:
            raise WorkloadError(f"request {len(facts)} arrives before the one ahead of it; sort the trace by time")
        paths.append(np.array(interner.path(request.namespace, ids.tolist()), dtype=np.int32))
        lengths.append(request.input_tokens)
        facts.append((request.arrival_s, request.session, request.category, request.tenant or None, request.turn,
                      request.hint, request.output_tokens))  # fmt: skip
        tenant_of.append(tenants.setdefault(request.tenant or request.namespace.salt, len(tenants)))
    if len(sizes) != 1:
        raise WorkloadError(f"a trace has blocks of one size, found {sorted(sizes) or 'no request'}")
    return RequestPaths(
        nodes=np.concatenate(paths) if paths else np.empty(0, np.int32),
        starts=np.concatenate([[0], np.cumsum([len(path) for path in paths])]).astype(np.int64),
        parents=np.array(interner.parents, dtype=np.int32),
        depths=np.array(interner.depths, dtype=np.int32),
        input_tokens=np.array(lengths, dtype=np.int64),
        tenants=np.array(tenant_of, dtype=np.int32),
        block_tokens=sizes.pop(),
        known=KnownRequests(*map(list, zip(*facts, strict=True))),
        ids=np.array(interner.ids, dtype=np.int64) if interner.num_namespaces > 1 else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOnlyResult:
    """Exact counts of one replay.

    Attributes:
        hit_blocks: blocks of the longest resident prefix, summed over requests; `prompt_blocks` all references.
        hit_tokens, prompt_tokens: the same in tokens; a partial last block counts the tokens it holds.
        admitted, evictions: blocks inserted and removed; their difference is what is resident at the end.
        request_hits: (R,) int32, hit blocks of each request.
    """

    num_requests: int
    hit_blocks: int
    prompt_blocks: int
    hit_tokens: int
    prompt_tokens: int
    admitted: int
    evictions: int
    request_hits: Ints32 = field(repr=False, compare=False)

    @property
    def hit_rate(self) -> float:
        """By tokens: the primary definition."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def block_hit_rate(self) -> float:
        return self.hit_blocks / self.prompt_blocks if self.prompt_blocks else 0.0


def summarise(paths: RequestPaths, hits: Sequence[int] | Ints32, admitted: int, evictions: int) -> CacheOnlyResult:
    """The result of a replay in which request i hit its first `hits[i]` blocks."""
    request_hits = np.asarray(hits, dtype=np.int32)
    return CacheOnlyResult(
        num_requests=paths.num_requests,
        hit_blocks=int(request_hits.sum(dtype=np.int64)),
        prompt_blocks=paths.num_references,
        hit_tokens=int(paths.hit_tokens(request_hits).sum()),
        prompt_tokens=int(paths.input_tokens.sum()),
        admitted=admitted,
        evictions=evictions,
        request_hits=request_hits,
    )


def replay_infinite(paths: RequestPaths) -> CacheOnlyResult:
    """The cache that never evicts: the ceiling of every policy."""
    return summarise(paths, paths.infinite_hits.tolist(), admitted=paths.num_nodes, evictions=0)


_LOOSE = 4
"""Ids may be numbered with gaps, up to so many times as many as there are references, before they are sorted."""


def trace_paths(trace: Trace, *, limit: int | None = None, full_blocks_only: bool = False) -> RequestPaths:
    """`build_paths` of an open trace's first `limit` requests, at once where its reader and numbering can.

    Raises:
        WorkloadError: see Trace and build_paths.
    """
    columns = trace.read_columns() if limit is None else None
    if columns is not None:
        found = column_paths(
            columns,
            line_tokens=trace.line_tokens,
            block_tokens=trace.block_tokens,
            full_blocks_only=full_blocks_only,
        )
        if found is not None:
            return found
    return build_paths(islice(trace, limit), full_blocks_only=full_blocks_only)


def column_paths(
    columns: TraceColumns, *, line_tokens: int, block_tokens: int, full_blocks_only: bool
) -> RequestPaths | None:
    """What `build_paths` makes of the same requests; None where an id stands below two others.

    O(E), besides a sort where ids have large gaps.

    Args:
        line_tokens: tokens a block, as the columns have them.
        block_tokens: tokens a block of the paths, a multiple: every k-th id is kept, see `coarsen`.
    """
    ids, starts = _ids(columns, line_tokens, block_tokens // line_tokens, full_blocks_only)
    numbered = _number(*_keys(ids, starts, columns.salts), starts) if len(ids) < 2**31 else None
    if numbered is None:
        return None
    nodes, parents, depths = numbered
    found = RequestPaths(
        nodes=nodes,
        starts=starts,
        parents=parents,
        depths=depths,
        input_tokens=columns.input_tokens,
        tenants=_tenants(columns),
        block_tokens=block_tokens,
        known=_known(columns),
    )
    return found if len({*(columns.salts or ())}) < 2 else replace(found, ids=ids[found.is_first])


def _ids(columns: TraceColumns, line_tokens: int, factor: int, full_blocks_only: bool) -> tuple[AnyInts, Ints]:
    """The block ids (E,) of the size asked for, and where each request's begin (R + 1,)."""
    before = columns.block_starts
    if factor == 1 and not full_blocks_only and columns.counts is None:
        return columns.firsts, before
    counts = np.ones(len(columns.firsts), dtype=np.int64) if columns.counts is None else columns.counts
    run_requests = np.repeat(np.arange(len(columns.input_tokens)), np.diff(columns.run_starts))
    limits = np.diff(before)
    if factor > 1 or full_blocks_only:
        limits = np.minimum(limits, columns.input_tokens // line_tokens)
    ends = np.cumsum(counts)
    begin = ends - counts - before[run_requests]  # place of a run's first block in its request
    end = np.minimum(begin + counts, limits[run_requests])
    kept = np.maximum(end // factor - begin // factor, 0)
    first = columns.firsts + (begin // factor + 1) * factor - 1 - begin
    offset = np.cumsum(kept) - kept
    total, largest = int(kept.sum()), int((columns.firsts + counts).max(initial=0))
    ids = np.arange(total, dtype=np.int32 if max(largest, factor * total) < 2**31 else np.int64)
    ids *= factor
    ids += np.repeat((first - factor * offset).astype(ids.dtype), kept)
    starts = np.concatenate(([0], np.cumsum(limits // factor)))
    return ids, starts


def _keys(ids: AnyInts, starts: Ints, salts: list[str] | None) -> tuple[AnyInts, int]:
    """A number below the second value for each reference, equal where id and namespace are."""
    if not len(ids):
        return ids, 0
    if salts is None:
        keys, space = ids, int(ids.max()) + 1
    else:
        numbers: dict[str, int] = {}
        groups = np.array([numbers.setdefault(salt, len(numbers)) for salt in salts])
        lengths = np.diff(starts)
        some = lengths > 0
        largest = np.zeros(len(numbers), dtype=np.int64)
        np.maximum.at(largest, groups[some], np.maximum.reduceat(ids, starts[:-1][some]) + 1)
        if float(largest.astype(np.float64).sum()) >= 2**62:
            largest[:] = -1  # sorted below, one namespace after another
        ends = np.cumsum(largest)
        space = int(ends[-1])
        if 0 <= space < 2**31:
            ids = ids.astype(np.int32)
        keys = ids + np.repeat((ends - largest).astype(ids.dtype)[groups], lengths)
        if space < 0:
            pairs = np.stack((np.repeat(groups, lengths), ids), 1)
            keys = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
            return keys, int(keys.max()) + 1
    if space > _LOOSE * len(ids) + 2**16:
        keys = np.unique(keys, return_inverse=True)[1].reshape(-1)
        space = int(keys.max()) + 1
    return keys, space


def _number(keys: AnyInts, space: int, starts: Ints) -> tuple[Ints32, Ints32, Ints32] | None:
    """Nodes (E,), their parents and depths (N,), in order of first reference; None where a key has two parents."""
    if space < 2**31:
        keys = keys.astype(np.int32, copy=False)
    nodes, is_new = _in_order(keys, space)
    above = np.empty_like(nodes)
    above[1:] = nodes[:-1]
    above[starts[:-1][np.diff(starts) > 0]] = -1
    new = np.flatnonzero(is_new)
    parents = above.take(new)
    if not np.array_equal(parents[nodes], above):  # not `take`, which makes the indices 64 bits wide at once
        return None
    del above
    num_new = np.zeros(len(keys) + 1, dtype=np.int32)
    np.cumsum(is_new, out=num_new[1:])
    begins = np.repeat(starts[:-1].astype(np.int32), np.diff(num_new.take(starts)))
    depths = new.astype(np.int32) - begins
    return nodes, parents, depths


def _in_order(keys: AnyInts, space: int) -> tuple[Ints32, npt.NDArray[np.bool_]]:
    """A number (E,) for each key, in order of first reference; and whether a reference is its key's first (E,)."""
    highest = np.maximum.accumulate(keys)
    is_new = np.empty(len(keys), dtype=np.bool_)
    is_new[:1] = True
    np.greater(highest[1:], highest[:-1], out=is_new[1:])
    if len(keys) and keys[0] == 0 and np.count_nonzero(is_new) == highest[-1] + 1:
        return keys.astype(np.int32, copy=False), is_new  # as many steps up as keys: they are numbered so already
    del highest
    order = np.arange(len(keys), dtype=np.int32)
    first_of = np.empty(space, dtype=np.int32)
    first_of[keys[::-1]] = order[::-1]  # the last one written stays: the first reference
    np.equal(first_of[keys], order, out=is_new)
    del order
    new = np.flatnonzero(is_new)
    first_of[keys[new]] = np.arange(len(new), dtype=np.int32)  # from here on a key's number
    return first_of[keys], is_new


def _tenants(columns: TraceColumns) -> Ints32:
    """(R,) small numbers in order of first appearance: of tenants, and of salts where there is no tenant."""
    count, numbers = len(columns.input_tokens), dict[str, int]()
    if columns.tenants is None and columns.salts is None:
        return np.zeros(count, dtype=np.int32)
    names = [
        tenant or salt
        for tenant, salt in zip(columns.tenants or [""] * count, columns.salts or [""] * count, strict=True)
    ]
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int32)


def _known(columns: TraceColumns) -> KnownRequests:
    unknown = [None] * len(columns.input_tokens)
    return KnownRequests(
        arrival=columns.arrival_s.tolist(),
        session=columns.sessions or [*unknown],
        category=columns.categories or [*unknown],
        tenant=[tenant or None for tenant in columns.tenants] if columns.tenants else [*unknown],
        turn=columns.turns or [*unknown],
        hint=[*unknown],
        output_tokens=columns.output_tokens or [*unknown],
    )
