"""hazard and hinted in C++ hit, and evict in the same order, as in Python."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.errors import FrameworkError
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import replay
from framework.types import Hint
from framework.workload.traces import TraceRequest, open_trace
from framework_builtin.eviction.hazard import Hazard
from framework_builtin.eviction.hinted import Hinted
from framework_native import hazard
from framework_native.allocator import NativeAllocator

BLOCK = 2


def both(paths: RequestPaths, make, size: int, *, leaf_first: bool = False):
    """Hits, admissions, evictions and the nodes evicted, by the core and by the reference."""
    found = hazard.count(paths, make(), size, leaf_first=leaf_first, list_evicted=True)
    assert found is not None
    order: list[int] = []
    meant = replay(paths, make(), size, leaf_first=leaf_first, on_evict=lambda request, node: order.append(node))
    return (
        (found[0].tolist(), found[1], found[2], found[3].tolist()),
        (meant.request_hits.tolist(), meant.admitted, meant.evictions, order),
    )


def drawn(seed: int, num_requests: int, *, arrivals: str, hints: bool, partial: bool) -> RequestPaths:
    """Conversations that go on, are edited or start anew, with all that a policy may know of requests."""
    draw, at, known = np.random.default_rng(seed), 0.0, []
    requests = []
    for number in range(num_requests):
        at += {"none": 0.0, "ticks": 3.0 * (number % 7 == 0)}.get(arrivals, float(draw.exponential(1.0)))
        if known and draw.random() < 0.7:
            ids = list(known[-1 - min(len(known) - 1, int(draw.geometric(0.1)))])
            ids = ids[: max(1, len(ids) - int(draw.integers(0, 5)) * int(draw.random() < 0.3))]
        else:
            ids = [int(draw.integers(0, 3)), 10 + int(draw.integers(0, 4))]
        ids += [10**6 + number * 100 + depth for depth in range(int(draw.integers(0, 6)))]
        known.append(ids)
        tokens = BLOCK * len(ids) - int(partial and draw.random() < 0.6)
        hint = None
        if hints and draw.random() < 0.7:
            word = draw.integers(0, 3)
            returns = None if word == 0 else float(draw.choice([0.0, 5.0, 1e308]))
            hint = Hint(continues=float(draw.random()) if word < 2 else None, returns_s=returns)
        requests.append(
            TraceRequest(
                arrival_s=at,
                input_tokens=tokens,
                output_tokens=1,
                block_tokens=BLOCK,
                block_ids=np.array(ids),
                category=None if draw.random() < 0.3 else f"kind {int(draw.integers(0, 20))}",
                hint=hint,
            )
        )
    paths = build_paths(requests)
    if arrivals == "none" and paths.known is not None:
        paths.known.arrival[:] = [None] * num_requests
    return paths


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 60),
    leaf_first=st.booleans(),
    arrivals=st.sampled_from(["none", "ticks", "times"]),
    hints=st.booleans(),
    partial=st.booleans(),
    tolerance=st.sampled_from([0.0, 0.0025, 1.0]),
    window=st.sampled_from([64, 200, 65_536]),
    warm_up=st.sampled_from([0, 5, 100]),
)
def test_the_core_evicts_in_the_order_of_the_reference(
    seed, size, leaf_first, arrivals, hints, partial, tolerance, window, warm_up
):
    paths = drawn(seed, 250, arrivals=arrivals, hints=hints, partial=partial)
    kind = Hinted if hints else Hazard
    found, meant = both(paths, lambda: kind(tolerance, window, warm_up), size, leaf_first=leaf_first)
    assert found == meant


@pytest.mark.parametrize("kind", [Hazard, Hinted])
@pytest.mark.parametrize("leaf_first", [False, True])
def test_long_streams_agree(kind, leaf_first):
    """Long enough for hundreds of fits, for records and names that are forgotten, and for both orders by turns."""
    paths = drawn(5, 1500, arrivals="times", hints=True, partial=True)
    for size in (40, paths.num_nodes + 5):
        found, meant = both(paths, lambda: kind(window=500), size, leaf_first=leaf_first)
        assert found == meant


def test_it_is_what_a_cache_only_replay_counts_with():
    paths = drawn(3, 400, arrivals="times", hints=True, partial=True)
    for kind in (Hazard, Hinted):
        counted = NativeAllocator.replay_references(paths, kind(), 50)
        assert counted is not None
        assert counted.request_hits.tolist() == replay(paths, kind(), 50).request_hits.tolist()


def test_what_it_does_not_know_is_left_to_the_framework():
    class Mine(Hazard):
        pass

    class Bare:
        """Paths of an older framework: nothing is known of requests."""

        def __init__(self, paths: RequestPaths) -> None:
            self.nodes, self.starts, self.parents = paths.nodes, paths.starts, paths.parents

    paths = drawn(3, 40, arrivals="times", hints=False, partial=False)
    assert NativeAllocator.replay_references(paths, Mine(), 5) is None
    assert NativeAllocator.replay_references(Bare(paths), Hazard(), 5) is None  # type: ignore[arg-type]
    assert NativeAllocator.replay_references(paths, Hazard(), 5, bypass=True) is None
    assert NativeAllocator.replay_references(paths, Hazard(), 10**19) is None
    with pytest.raises(FrameworkError, match="num_blocks must be at least 1"):
        NativeAllocator.replay_references(paths, Hazard(), 0)


def test_a_fault_while_fitting_ends_the_replay():
    class Broken:
        def kind_of(self, *key):
            raise RuntimeError("no fit today")

    class Unfit(Hazard):
        def estimate(self):
            return Broken()

    Unfit.__module__, Unfit.__qualname__ = Hazard.__module__, Hazard.__qualname__
    paths = drawn(5, 3000, arrivals="times", hints=False, partial=False)
    with pytest.raises(RuntimeError, match="no fit today"):
        hazard.count(paths, Unfit(warm_up=0), 100, leaf_first=False)


TRACES = Path(os.environ.get("KVLAB_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
CONVERSATION = TRACES / "mooncake_conversation_trace.jsonl.gz"


@pytest.mark.skipif(not CONVERSATION.exists(), reason="needs the conversation trace in shared/traces or KVLAB_TRACES")
def test_the_conversation_trace_agrees_to_the_last_eviction():
    paths = build_paths(open_trace(CONVERSATION, block_tokens=512))
    found, meant = both(paths, Hazard, 10_000)
    assert found == meant
