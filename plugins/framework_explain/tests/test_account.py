"""The sentence and the sums of an account."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from framework.errors import InvalidArgument
from framework_explain.account import OUTCOMES, Account, Evictions, versus


def account(**tokens: int) -> Account:
    row = np.array([[tokens.get(outcome.replace(" ", "_"), 0) for outcome in OUTCOMES]], dtype=np.int64)
    count = tokens.get("evicted", 0)
    one = [np.array([at], dtype=np.int64)[: bool(count)] for at in (0, 3, 1, count, 0, 120, 900, 0, count // 2)]
    lost = Evictions(
        request=one[0], depth=one[1], blocks=one[2], tokens=one[3], evicted_for=one[4], requests_ago=one[5],
        references_ago=one[6], admission=one[0], lru_tokens=one[7], optimum_tokens=one[8], turn=[2][: bool(count)],
    )  # fmt: skip
    return Account(blocks=row, tokens=row, evictions=lost, policy="lru")


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        ({"hit": 5}, "nothing was missed"),
        ({"hit": 5, "new": 5}, "100 % of the missed tokens were new content"),
        ({"new": 3, "in_flight": 1}, "75 % of the missed tokens were new content; of the rest, 100 % were in flight"),
        (
            {"hit": 10, "new": 50, "evicted": 40, "end_of_prompt": 10},
            "50 % of the missed tokens were new content; of the rest, 80 % had been evicted less than 400 requests "
            "before; the optimum would have kept 50 % of those",
        ),
    ],
)
def test_the_sentence_says_new_evicted_and_kept(tokens: dict[str, int], sentence: str) -> None:
    assert account(**tokens).sentence() == sentence


def test_regret_is_summed_by_age_depth_and_turn() -> None:
    sums = account(evicted=40).evictions.sums()
    assert sums == {
        "age": {"100-399": {"tokens": 40, "optimum_kept_tokens": 20}},
        "depth": {"block 2+": {"tokens": 40, "optimum_kept_tokens": 20}},
        "turn": {"2": {"tokens": 40, "optimum_kept_tokens": 20}},
    }


def test_runs_of_other_requests_are_not_compared() -> None:
    one = account(hit=1)
    other = Account(blocks=one.blocks, tokens=one.tokens, evictions=one.evictions, policy="lru", requests=[7])
    with pytest.raises(InvalidArgument, match="one workload"):
        versus(one, other)


def lost(tokens: list[int], ago: list[int], depth: list[int], kept: list[int] | None = None) -> Evictions:
    """One eviction for each, of blocks of one token."""
    columns = [np.array(column, dtype=np.int64) for column in ([0] * len(tokens), depth, tokens, ago)]
    number, deep, count, requests = columns
    return Evictions(
        request=number, depth=deep, blocks=count, tokens=count, evicted_for=number, requests_ago=requests,
        references_ago=requests, admission=number, optimum_tokens=None if kept is None else np.array(kept),
    )  # fmt: skip


def test_an_age_is_that_of_half_the_tokens_and_the_optimum_is_asked_about_the_same() -> None:
    tokens = {"new": 100, "evicted": 16}
    found = replace(account(**tokens), evictions=lost([10, 1, 1, 4], [500, 5, 5, 5000], [0] * 4, [5, 1, 0, 4]))
    assert found.sentence() == (
        "86 % of the missed tokens were new content; of the rest, 75 % had been evicted less than 1,000 requests "
        "before; the optimum would have kept 50 % of those"
    )


def test_sums_have_their_groups_in_order_of_size_each_with_its_lower_end() -> None:
    ends = [0, 9, 10, 99, 100, 399, 400, 999, 1000, 3999, 4000, 9999]
    sums = lost([1] * 12, ends, [0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63]).sums()
    assert sums["age"] == {
        group: {"tokens": 2} for group in ("0-9", "10-99", "100-399", "400-999", "1000-3999", "4000+")
    }
    assert list(sums["age"])[2:5] == ["100-399", "400-999", "1000-3999"]
    counts = {group: row["tokens"] for group, row in sums["depth"].items()}
    assert counts == {"block 0": 1, "block 1+": 1, "block 2+": 2, "block 4+": 2, "block 8+": 2, "block 16+": 2,
                      "block 32+": 2}  # fmt: skip
    assert list(counts)[-1] == "block 32+"


def test_who_hits_more_where_and_why_the_other_missed() -> None:
    def of(rows: list[dict[str, int]]) -> Account:
        tokens = np.concatenate([account(**row).tokens for row in rows])
        return replace(account(), tokens=tokens, blocks=tokens, requests=[7, 8, 9, 4])

    one = of([{"hit": 9, "new": 3}, {"new": 5, "evicted": 3}, {"hit": 20, "new": 2}, {"hit": 1}])
    other = of([{"hit": 5, "new": 7}, {"hit": 7, "new": 1}, {"hit": 8, "evicted": 13, "new": 1}, {"hit": 1}])
    found = versus(one, other)
    assert {side: (found[side]["requests"], found[side]["tokens"]) for side in found} == {
        "first_wins": (2, 16), "second_wins": (1, 7),
    }  # fmt: skip
    assert found["first_wins"]["most"] == [
        {"request": 9, "tokens": 12, "cause": "evicted"}, {"request": 7, "tokens": 4, "cause": "new"},
    ]  # fmt: skip
    causes = {side: {name: n for name, n in found[side]["missed_by_the_other"].items() if n} for side in found}
    assert causes == {"first_wins": {"new": 3, "evicted": 13}, "second_wins": {"new": 4, "evicted": 3}}


def test_evictions_that_were_not_compared_come_back_from_their_rows_and_what_was_forgotten_is_said() -> None:
    found = lost([3, 2], [5, 6], [0, 1])
    again = Evictions.of_rows(found.rows("lru"))
    assert (again.lru_tokens, again.optimum_tokens) == (None, None)
    assert again.rows("lru") == [{**row, "turn": None, "tenant": None, "category": None} for row in found.rows("lru")]
    assert len(Evictions.of_rows([])) == 0
    results = replace(account(new=1), num_forgotten=4, preempted_tokens=3).results()
    assert (results["missed_forgotten_contents"], results["missed_preempted_tokens"]) == (4, 3)
