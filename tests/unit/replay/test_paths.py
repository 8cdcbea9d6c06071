"""Paths numbered in array operations are those numbered request by request."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.interfaces.trace_columns import TraceColumns
from framework.interfaces.workload import Namespace, WorkloadRequest
from framework.replay.paths import RequestPaths, build_paths, column_paths
from framework.workload.traces.block_ids import coarsen

SIZE = 4


def equal(one: RequestPaths, other: RequestPaths) -> bool:
    names = ("nodes", "starts", "parents", "depths", "input_tokens", "tenants")
    arrays = [(getattr(one, name), getattr(other, name)) for name in names]
    same = all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in arrays)
    same = same and (one.ids is other.ids is None or np.array_equal(one.ids, other.ids))
    return same and one.block_tokens == other.block_tokens and one.known == other.known


def one_by_one(columns: TraceColumns, factor: int, full_blocks_only: bool) -> RequestPaths:
    counts = [1] * len(columns.firsts) if columns.counts is None else columns.counts.tolist()
    runs = [np.arange(first, first + count) for first, count in zip(columns.firsts.tolist(), counts, strict=True)]
    requests = []
    for number, (start, end) in enumerate(pairwise(columns.run_starts.tolist())):
        request = WorkloadRequest(
            arrival_s=float(columns.arrival_s[number]),
            input_tokens=int(columns.input_tokens[number]),
            block_ids=np.concatenate([np.empty(0, np.int64), *runs[start:end]]),
            block_tokens=SIZE,
            namespace=Namespace(salt=columns.salts[number] if columns.salts else ""),
            tenant=columns.tenants[number] if columns.tenants else "",
            turn=columns.turns[number] if columns.turns else None,
            output_tokens=columns.output_tokens[number] if columns.output_tokens else None,
        )
        requests.append(coarsen(request, SIZE * factor))
    return build_paths(requests, full_blocks_only=full_blocks_only)


@st.composite
def traces(draw: st.DrawFn) -> TraceColumns:
    """Prompts along one tree of ids in each of up to three namespaces, numbered with or without gaps."""
    gap = draw(st.sampled_from([1, 1, 3, 10**6, 2**40]))
    salts = draw(st.none() | st.lists(st.sampled_from(["", "a", "b"]), min_size=12, max_size=12))
    single = draw(st.booleans())
    firsts, counts, starts, tokens = [], [], [0], []
    for _ in range(draw(st.integers(1, 12))):
        branch, length = draw(st.integers(0, 2)), draw(st.integers(0, 9))
        shared = min(length, draw(st.integers(0, 4)))
        ids = [*range(shared), *(100 * (branch + 1) + 10 * shared + place for place in range(length - shared))]
        runs: list[tuple[int, int]] = []
        for block in ids:
            last = sum(runs[-1]) if runs else None
            if not single and gap == 1 and last == block and draw(st.booleans()):
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((block * gap, 1))
        firsts += [first for first, _ in runs]
        counts += [count for _, count in runs]
        starts.append(len(firsts))
        tokens.append(max(1, length * SIZE - draw(st.integers(0, SIZE - 1)) if length else 1))
    size = len(tokens)
    return TraceColumns(
        arrival_s=np.arange(size, dtype=np.float64),
        input_tokens=np.array(tokens, dtype=np.int64),
        run_starts=np.array(starts, dtype=np.int64),
        firsts=np.array(firsts, dtype=np.int64),
        counts=None if max(counts, default=1) == 1 and single else np.array(counts, dtype=np.int64),
        salts=None if salts is None else salts[:size],
        tenants=draw(st.none() | st.just(["t", ""][:size] + ["u"] * max(0, size - 2))),
        turns=draw(st.none() | st.just([*range(size)])),
        output_tokens=draw(st.none() | st.just([*range(size)])),
    )


@given(traces(), st.sampled_from([1, 2, 3]), st.booleans())
def test_any_trace_has_the_paths_that_its_requests_have(columns: TraceColumns, factor: int, full: bool) -> None:
    wanted = one_by_one(columns, factor, full)
    found = column_paths(columns, line_tokens=SIZE, block_tokens=SIZE * factor, full_blocks_only=full)
    several_parents = found is None
    assert not several_parents or factor > 1, "every id of these traces stands below one other"
    assert found is None or equal(found, wanted), (found, wanted)


@pytest.mark.parametrize("ids", [[[1, 2], [3, 2]], [[1, 1]], [[1, 2], [2]]])
def test_an_id_below_two_others_is_left_to_the_slow_way(ids: list[list[int]]) -> None:
    columns = TraceColumns(
        arrival_s=np.arange(len(ids), dtype=np.float64),
        input_tokens=np.array([SIZE * len(one) for one in ids]),
        run_starts=np.cumsum([0, *map(len, ids)]),
        firsts=np.array([block for one in ids for block in one]),
    )
    assert column_paths(columns, line_tokens=SIZE, block_tokens=SIZE, full_blocks_only=False) is None
    apart = replace(columns, salts=[str(number) for number in range(len(ids))])
    found = column_paths(apart, line_tokens=SIZE, block_tokens=SIZE, full_blocks_only=False)
    assert (found is None) == (ids == [[1, 1]]), "namespaces do not share"


@given(st.lists(st.lists(st.integers(0, 5), unique=True, max_size=4), min_size=1, max_size=6), st.booleans())
def test_ids_in_order_of_first_reference_or_nearly_are_numbered_right(ids: list[list[int]], renumbered: bool) -> None:
    if renumbered:
        order = {block: number for number, block in enumerate(dict.fromkeys(chain.from_iterable(ids)))}
        ids = [[order[block] for block in one] for one in ids]
    columns = TraceColumns(
        arrival_s=np.arange(len(ids), dtype=np.float64),
        input_tokens=np.array([max(1, SIZE * len(one)) for one in ids]),
        run_starts=np.cumsum([0, *map(len, ids)]),
        firsts=np.array(list(chain.from_iterable(ids)), dtype=np.int64),
    )
    found = column_paths(columns, line_tokens=SIZE, block_tokens=SIZE, full_blocks_only=False)
    above = {(block, (-1, *one)[at]) for one in ids for at, block in enumerate(one)}
    assert (found is None) == (len({block for block, _ in above}) < len(above)), "an id below two others"
    assert found is None or equal(found, one_by_one(columns, 1, False))
