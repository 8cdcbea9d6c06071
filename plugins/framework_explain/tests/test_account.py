"""The sentence and the sums of an account."""

from __future__ import annotations

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
