"""The replay over groups: its steps, its counts, and one group against the replay that knows no groups."""

from __future__ import annotations

import numpy as np
import pytest
from groups_plain import LAYOUTS, brute_hit
from hybrid_helpers import branching, lru, memories, paths_of

from framework.groups.checkpoints import Asked, Retention
from framework.groups.memory import Memory
from framework.results.catalogue import catalogue
from framework_builtin.memory.one_pool import OnePool
from framework_hybrid.replay import replay_groups, steps, stranded_bytes
from framework_hybrid.rules import Dense, EveryFew


def ends(memory: Memory, asked: Asked, *pauses: int, chunk: int = 100) -> list[tuple[int, int]]:
    return list(steps(asked, memory, pauses, chunk))


def test_a_prefill_stops_where_states_are_kept() -> None:
    paths = paths_of([[1]])
    state, window = (memories(LAYOUTS[name], 100, paths)["one pool"] for name in ("state", "window"))
    asked = Asked(prompt=30, total=30, hit=8, junction=18, step=4)
    assert ends(state, asked, 18) == [(8, 16), (16, 28), (28, 30)], "a block's end at or before the junction"
    assert ends(state, asked, chunk=10) == [(8, 16), (16, 24), (24, 28), (28, 30)]
    assert ends(window, asked, 18, chunk=10) == [(8, 18), (18, 28), (28, 30)], "nothing is kept at steps' ends alone"
    decode = Asked(prompt=30, total=33, hit=28, junction=0, step=4)
    assert ends(window, decode) == [(28, 30), (30, 31), (31, 32), (32, 33)], "one token a step"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("blocks", [20, 60, 1000])
def test_the_losses_of_all_groups_and_the_hit_are_all_that_could_be_hit(layout: str, blocks: int) -> None:
    paths = paths_of(branching(60, 11))
    memory = memories(LAYOUTS[layout], 4 * blocks, paths)["one pool"]
    counts = replay_groups(paths, memory, Retention(0))
    allowed = (paths.input_tokens - 1) // memory.step * memory.step
    served = counts.lost.sum(axis=1) + counts.hits > 0
    assert (counts.lost.sum(axis=1) + counts.hits)[served].tolist() == allowed[served].tolist()
    assert (counts.could.min(axis=1) >= counts.hits).all()
    found, kinds = counts.results(), dict.fromkeys(counts.kinds)
    lost = {kind: found[f"{kind}_lost_tokens"] for kind in kinds}
    assert min(lost.values()) >= 0, lost
    infinite = np.minimum(allowed, paths.infinite_hits * paths.block_tokens // memory.step * memory.step)
    assert found["hit_tokens"] + sum(lost.values()) == infinite[served].sum(), "what is new is lost to nobody"
    assert found["unseen_tokens"] == (allowed - infinite)[served].sum() > 0
    assert set(counts.results()) <= set(catalogue()), set(counts.results()) - set(catalogue())


def test_a_request_too_large_is_refused_and_leaves_nothing_in_use() -> None:
    paths = paths_of([[1] * 12, [2] * 200, [1] * 12])
    memory = memories(LAYOUTS["window"], 4 * 16, paths)["one pool"]
    counts = replay_groups(paths, memory, Dense())
    assert (counts.refused, counts.hits[1]) == (1, 0)
    assert not any(memory.pools[0].ref)


def test_stranded_bytes_are_those_that_no_place_to_resume_from_needs() -> None:
    for layout, groups in LAYOUTS.items():
        if layout == "lookahead":  # a place needs a block behind it: see below
            continue
        paths = paths_of(branching(50, 4))
        memory = memories(groups, 4 * 50, paths)["one pool"]
        replay_groups(paths, memory, EveryFew(8), num_samples=0)
        useful: set[tuple[int, int]] = set()
        contents = set(memory.resident())
        for node in range(len(memory.parents)):
            path = memory.path_to(node)
            have = [{at for at, other in enumerate(path) if (g, other) in contents} for g in range(len(groups))]
            place = 4 * len(path)
            if brute_hit(groups, have, place) == place:
                useful |= {(g, path[at]) for g, each in enumerate(groups) for at in each.needs(place)}
        expected = [4 * sum(g == own and (g, node) not in useful for g, node in contents) for own in range(len(groups))]
        assert stranded_bytes(memory) == expected, layout


def test_a_lookahead_s_block_is_needed_and_not_stranded() -> None:
    paths = paths_of([[1] * 24])
    memory = OnePool().open(LAYOUTS["lookahead"], lru, num_bytes=400, parents=paths.parents.tolist(), unit=4)
    replay_groups(paths, memory, Dense(), num_samples=0)
    assert stranded_bytes(memory) == [0, 0]
