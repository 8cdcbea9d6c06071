"""Paths of a trace, numbered in array operations where it is read at once."""

# Shapes: R requests  E block references  N nodes  S ids of all namespaces

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.interfaces.trace_columns import TraceColumns
from framework.replay.paths import KnownRequests, RequestPaths, build_paths
from framework.workload.traces.reader import Trace

Ints = npt.NDArray[np.integer[Any]]
Ints64 = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]

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


def _ids(columns: TraceColumns, line_tokens: int, factor: int, full_blocks_only: bool) -> tuple[Ints, Ints64]:
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


def _keys(ids: Ints, starts: Ints64, salts: list[str] | None) -> tuple[Ints, int]:
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


def _number(keys: Ints, space: int, starts: Ints64) -> tuple[Ints32, Ints32, Ints32] | None:
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


def _in_order(keys: Ints, space: int) -> tuple[Ints32, npt.NDArray[np.bool_]]:
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


def _tenants(columns: TraceColumns) -> npt.NDArray[np.int32]:
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
