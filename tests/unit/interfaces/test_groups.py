"""Groups of KV, and the published arithmetic of what they hold."""

from __future__ import annotations

import pytest
from groups_plain import LAYOUTS, brute_hit, group
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import InvalidArgument
from framework.interfaces.groups import KVGroup, alignment, find_hit


@pytest.mark.parametrize(
    ("kind", "length", "found"),
    [("full", 0, 0), ("window", 6, 8), ("window", 5, 9), ("chunk", 16, 8), ("state", 0, 9)],
)
def test_what_is_no_longer_read_ends_before_the_first_block_that_is(kind: str, length: int, found: int) -> None:
    assert group(kind, length).first(40) == found
    assert group(kind, length).needs(0) == range(0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "window"}, {"kind": "window", "length": 1}, {"kind": "full", "length": 8},
        {"kind": "chunk", "length": 10}, {"kind": "state", "lookahead_drop": True},
        {"block_tokens": 0}, {"block_bytes": 0},
    ],
)  # fmt: skip
def test_groups_that_are_none_are_refused(wrong: dict[str, object]) -> None:
    good: dict[str, object] = {"name": "g", "kind": "full", "block_tokens": 4, "block_bytes": 1}
    with pytest.raises(InvalidArgument):
        KVGroup(**{**good, **wrong})  # type: ignore[arg-type]


sizes = st.sampled_from((2, 4, 6))
kinds = st.one_of(
    st.builds(lambda block, drop: group("full", block=block, drop=drop), sizes, st.booleans()),
    st.builds(lambda block, length, drop: group("window", length, block=block, drop=drop), sizes, st.integers(2, 19),
              st.booleans()),
    st.builds(lambda block, times: group("chunk", block * times, block=block), sizes, st.integers(1, 4)),
    st.builds(lambda block: group("state", block=block), sizes),
)  # fmt: skip


def renamed(groups: list[KVGroup]) -> list[KVGroup]:
    return [group(each.kind, each.length, block=each.block_tokens, drop=each.lookahead_drop, name=f"g{at}")
            for at, each in enumerate(groups)]  # fmt: skip


@given(st.lists(kinds, min_size=1, max_size=4).map(renamed), st.integers(0, 80), st.data())
def test_a_hit_is_the_longest_length_at_which_every_token_read_is_there(
    groups: list[KVGroup], limit: int, data: st.DataObject
) -> None:
    have = []
    for each in groups:
        blocks = range(84 // each.block_tokens + 2)
        missing = data.draw(st.sets(st.sampled_from(blocks), max_size=5))
        have.append(set(blocks) - missing)
    hit = find_hit(groups, lambda g, block: block in have[g], limit)
    assert hit.tokens == brute_hit(groups, have, limit), (groups, have, hit)
    step = alignment(groups)
    assert hit.tokens + sum(hit.lost) == limit // step * step, hit
    assert (hit.cut_by is None) == (sum(hit.lost) == 0), hit
    for g, each in enumerate(groups):
        assert hit.could[g] == brute_hit([each], [have[g]], limit, step), (g, hit)
        assert hit.could[g] >= hit.tokens, hit
    full = [hit.could[g] for g, each in enumerate(groups) if each.kind == "full"]
    assert hit.junction == (min(full) if full else max(hit.could)) - hit.tokens, hit


def test_a_lookahead_takes_one_block_and_a_miss_right_after_it_takes_the_hit_down() -> None:
    groups = (group("full", drop=True), group("window", 10, drop=True))
    hit = find_hit(groups, lambda g, block: block < 6, 40)
    assert (hit.tokens, hit.junction) == (20, 0)
    hit = find_hit(groups, lambda g, block: block < 6 and (g, block) != (1, 5), 40)
    assert (hit.tokens, hit.cut_by, hit.lost) == (16, 1, (20, 4))


def test_a_cut_by_a_later_group_is_taken_up_by_the_earlier_ones() -> None:
    have = [set(range(12)), {2, 3, 4, 9}, {*range(3, 9)}]  # the wide window ends where the narrow one has nothing
    hit = find_hit(LAYOUTS["windows"], lambda g, block: block in have[g], 48)
    assert hit.tokens == brute_hit(LAYOUTS["windows"], have, 48) == 0, hit
