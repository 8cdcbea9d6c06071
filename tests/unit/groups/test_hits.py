"""The hit rule against a plain model that looks for every token that attention reads."""

from __future__ import annotations

from groups_plain import LAYOUTS, brute_hit, group
from hypothesis import given
from hypothesis import strategies as st

from framework.groups.kinds import KVGroup, alignment, find_hit, resumable

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


def test_a_window_needs_the_tokens_that_the_next_one_attends_to_and_no_more() -> None:
    for length, count in ((2, 1), (5, 1), (6, 2), (9, 2), (10, 3)):
        each = group("window", length)
        blocks = set(range(8 - count, 8))
        assert resumable(each, blocks.__contains__, 32, 4) == 32, (length, blocks)
        assert resumable(each, (blocks - {8 - count}).__contains__, 32, 4) < 32, (length, blocks)


def test_what_a_window_begins_with_the_prompt_may_be_shorter_than_the_window() -> None:
    assert resumable(group("window", 30), {0, 1}.__contains__, 40, 4) == 8


def test_a_lookahead_takes_one_block_and_a_miss_right_after_it_takes_the_hit_down() -> None:
    groups = (group("full", drop=True), group("window", 10, drop=True))
    hit = find_hit(groups, lambda g, block: block < 6, 40)
    assert (hit.tokens, hit.junction) == (20, 0)
    hit = find_hit(groups, lambda g, block: block < 6 and (g, block) != (1, 5), 40)
    assert (hit.tokens, hit.cut_by, hit.lost) == (16, 1, (20, 4))


def test_all_groups_end_where_all_their_blocks_do() -> None:
    groups = (group("full", block=4), group("window", 7, block=6))
    hit = find_hit(groups, lambda g, block: block < (5, 9)[g], 40)
    assert (hit.tokens, hit.could) == (12, (12, 36)), "a multiple of 4 and of 6"


def test_a_cut_by_a_later_group_is_taken_up_by_the_earlier_ones() -> None:
    groups = LAYOUTS["windows"]
    have = [set(range(12)), {2, 3, 4, 5, 9}, {*range(3, 10)}]
    hit = find_hit(groups, lambda g, block: block in have[g], 48)
    assert hit.tokens == brute_hit(groups, have, 48) == 40
    have[2].remove(9)  # the wide window ends before, where the narrow one has nothing
    have[1].discard(5)
    hit = find_hit(groups, lambda g, block: block in have[g], 48)
    assert hit.tokens == brute_hit(groups, have, 48) == 0, hit
