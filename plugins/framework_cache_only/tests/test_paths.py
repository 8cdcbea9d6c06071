"""Nodes of a trace's paths: one for each distinct prefix of each namespace, in order of first reference."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from framework.interfaces.workload import Namespace, WorkloadRequest
from framework_cache_only.paths import build_paths

SIZE = 4


@st.composite
def traces(draw: st.DrawFn) -> list[WorkloadRequest]:
    """Prompts of up to three namespaces, along one tree of ids each, or with ids below several others."""
    gap, several = draw(st.sampled_from([1, 3, 10**6, 2**40])), draw(st.booleans())
    requests = []
    for number in range(draw(st.integers(1, 12))):
        length, shared, branch = draw(st.integers(0, 6)), draw(st.integers(0, 4)), draw(st.integers(0, 2))
        ids = [at if at < shared else 100 * (branch + 1) + 10 * shared + at for at in range(length)]
        if several:
            ids = draw(st.lists(st.integers(0, 4), max_size=5))
        requests.append(
            WorkloadRequest(
                arrival_s=float(number),
                input_tokens=max(1, SIZE * len(ids) - draw(st.integers(0, SIZE - 1))),
                block_ids=gap * np.array(ids, dtype=np.int64),
                block_tokens=SIZE,
                namespace=Namespace(salt=draw(st.sampled_from(["", "", "a", "b"]))),
                tenant=draw(st.sampled_from(["", "t", "u"])),
                turn=draw(st.none() | st.just(number)),
            )
        )
    return requests


@given(traces(), st.booleans())
def test_every_distinct_prefix_of_a_namespace_is_one_node(requests: list[WorkloadRequest], full: bool) -> None:
    numbers: dict[tuple[Namespace, tuple[int, ...]], int] = {}
    nodes, lengths = list[int](), list[int]()
    for request in requests:
        assert request.block_ids is not None
        ids = tuple(request.block_ids[: request.num_full_blocks] if full else request.block_ids)
        lengths.append(len(ids))
        nodes += [numbers.setdefault((request.namespace, ids[: at + 1]), len(numbers)) for at in range(len(ids))]
    found = build_paths(requests, full_blocks_only=full)
    assert found.nodes.tolist() == nodes
    assert np.diff(found.starts).tolist() == lengths
    assert found.depths.tolist() == [len(ids) - 1 for _, ids in numbers]
    assert found.parents.tolist() == [numbers.get((space, ids[:-1]), -1) for space, ids in numbers]
    assert found.ids is None or found.ids.tolist() == [ids[-1] for _, ids in numbers]
    assert (found.ids is None) == (len({request.namespace for request in requests}) == 1)
    tenants = list(dict.fromkeys(one.tenant or one.namespace.salt for one in requests))
    assert [tenants[at] for at in found.tenants] == [one.tenant or one.namespace.salt for one in requests]
    assert found.known is not None
    assert [facts.turn for facts in found.known] == [one.turn for one in requests]
    assert {str(one.dtype) for one in (found.nodes, found.parents, found.depths, found.tenants)} == {"int32"}
