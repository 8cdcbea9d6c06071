"""A trace as paths through a prefix tree, in arrays: what every cache-only model walks, and what it counts there."""

# Shapes: R requests  E block references (all blocks of all requests)  N nodes = distinct (prefix, block) pairs

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.errors import WorkloadError
from framework.interfaces.workload import Namespace, WorkloadRequest
from framework.types import PolicyTime, RequestFacts

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
AnyInts = npt.NDArray[np.integer[Any]]


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
        known: (R,) what the trace says of each request, `turn` where it says one; None when it was not kept.
        ids: (N,) the trace's id of each node's block; None where all requests are of one namespace.
    """

    nodes: Ints32
    starts: Ints
    parents: Ints32
    depths: Ints32
    input_tokens: Ints
    tenants: Ints32
    block_tokens: int
    known: Sequence[RequestFacts] | None = None
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
    def next_uses(self) -> list[float]:
        """(E,) the same as a policy reads it: counted from 1, infinite when there is none."""
        following = self.next_requests + 1.0
        following[self.next_requests == self.num_requests] = np.inf
        uses: list[float] = following.tolist()
        return uses

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
        known = (
            RequestFacts(prompt_tokens=int(self.input_tokens[request])) if self.known is None else self.known[request]
        )
        new = int(self.starts[request + 1] - self.starts[request]) - hit_blocks
        return replace(known, turn=int(self.turns[request]) if known.turn is None else known.turn, new_blocks=new)

    @cached_property
    def times(self) -> list[PolicyTime]:
        """When each request arrived, in the trace's seconds: the clock that policies see. Its number, from 1, where the
        trace does not say."""
        if self.known is None:
            return [float(number) for number in range(1, self.num_requests + 1)]
        return [facts.arrival or 0.0 for facts in self.known]

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


def build_paths(requests: Iterable[WorkloadRequest], *, full_blocks_only: bool = False) -> RequestPaths:
    """Number the blocks of a trace whose requests come in order of arrival. O(E), and a sort where ids have large gaps.

    Args:
        full_blocks_only: leave out a partial last block, as engines do that cache full blocks only.

    Raises:
        WorkloadError: no request, one without block ids or out of order, or blocks of several sizes.
    """
    names: list[Ints] = []
    lengths: list[int] = []
    namespaces: dict[Namespace, int] = {}
    namespace_of: list[int] = []
    tenants: dict[str, int] = {}
    tenant_of: list[int] = []
    sizes: set[int] = set()
    known: list[RequestFacts] = []
    last = 0.0
    for request in requests:
        if request.block_ids is None:
            raise WorkloadError("this trace has lengths only; a cache needs block ids or tokens")
        sizes.add(request.block_tokens)
        if request.arrival_s < last:
            raise WorkloadError(f"request {len(known)} arrives before the one ahead of it; sort the trace by time")
        last = request.arrival_s
        names.append(request.block_ids[: request.num_full_blocks] if full_blocks_only else request.block_ids)
        lengths.append(request.input_tokens)
        known.append(RequestFacts(
            turn=request.turn, prompt_tokens=request.input_tokens, output_tokens=request.output_tokens,
            arrival=request.arrival_s, session=request.session, category=request.category,
            tenant=request.tenant or None, hint=request.hint,
        ))  # fmt: skip
        namespace_of.append(namespaces.setdefault(request.namespace.root, len(namespaces)))
        tenant_of.append(tenants.setdefault(request.tenant or request.namespace.salt, len(tenants)))
    if len(sizes) != 1:
        raise WorkloadError(f"a trace has blocks of one size, found {sorted(sizes) or 'no request'}")
    ids = np.concatenate(names)
    starts = np.concatenate([[0], np.cumsum([len(one) for one in names])])
    keys = _keys(ids, np.repeat(namespace_of, np.diff(starts)))
    nodes, parents, depths = _numbered(keys, starts) or _numbered_in_turn(keys, starts)
    built = RequestPaths(
        nodes=nodes,
        starts=starts,
        parents=parents,
        depths=depths,
        input_tokens=np.array(lengths, dtype=np.int64),
        tenants=np.array(tenant_of, dtype=np.int32),
        block_tokens=sizes.pop(),
        known=known,
    )
    return built if len(namespaces) < 2 else replace(built, ids=ids[built.is_first])


_LOOSE = 4
"""Keys may have gaps, up to so many times as many as there are references, before they are sorted."""


def _keys(ids: Ints, groups: Ints) -> Ints:
    """(E,) a number for each reference, equal where id and namespace are; at most a few times E."""
    if not len(ids):
        return ids
    keys = _without_gaps(ids)
    return _without_gaps(groups * (keys.max() + 1) + keys)


def _without_gaps(keys: Ints) -> Ints:
    if keys.max() <= _LOOSE * len(keys) + 2**16:
        return keys
    return np.unique(keys, return_inverse=True)[1].reshape(-1)


def _numbered(keys: Ints, starts: Ints) -> tuple[Ints32, Ints32, Ints32] | None:
    """Nodes (E,), their parents and depths (N,), in order of first reference; None where a key has two parents."""
    order = np.arange(len(keys), dtype=np.int32)
    first_of = np.empty(int(keys.max(initial=-1)) + 1, dtype=np.int32)
    first_of[keys[::-1]] = order[::-1]  # the last one written stays: the first reference
    new = np.flatnonzero(first_of[keys] == order)
    first_of[keys[new]] = order[: len(new)]  # from here on a key's number
    nodes = first_of[keys]
    above = np.empty_like(nodes)
    above[1:] = nodes[:-1]
    begins = np.repeat(starts[:-1], np.diff(starts))
    above[order == begins] = -1
    parents = above[new]
    if not np.array_equal(parents[nodes], above):
        return None
    depths = (new - begins[new]).astype(np.int32)
    return nodes, parents, depths


def _numbered_in_turn(keys: Ints, starts: Ints) -> tuple[Ints32, Ints32, Ints32]:
    """The same where a key may have several parents, each of which makes it another node: one block at a time."""
    numbers: dict[tuple[int, int], int] = {}
    nodes, parents, depths = list[int](), list[int](), list[int]()
    for start, end in pairwise(starts.tolist()):
        parent = -1
        for depth, key in enumerate(keys[start:end].tolist()):
            node = numbers.get((parent, key))
            if node is None:
                node = numbers[parent, key] = len(parents)
                parents.append(parent)
                depths.append(depth)
            nodes.append(node)
            parent = node
    return np.array(nodes, dtype=np.int32), np.array(parents, dtype=np.int32), np.array(depths, dtype=np.int32)


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
