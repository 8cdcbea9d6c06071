"""Routers against examples worked from their rules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from fleet_helpers import SIZE, asked, view

from framework_fleet.router import ReplicaView, Router
from framework_fleet.routers.aibrix import AibrixPrefixCache, Preble
from framework_fleet.routers.dynamo import DynamoKv, LMetric
from framework_fleet.routers.gateways import LlmD, SglangCacheAware
from framework_fleet.routers.plain import ByChance, LeastLoad, RoundRobin, SessionAffinity
from framework_fleet.routers.production_stack import KvAware, LoadAware, PrefixAware


def chosen(router: Router, replicas: Sequence[ReplicaView], tokens: int = 40, **facts: Any) -> int:
    return router.route(asked(tokens, **facts), replicas).index


def test_round_robin_goes_round_those_that_are_there() -> None:
    router, replicas = RoundRobin(), [view(0), view(1), view(2)]
    assert [chosen(router, replicas) for _ in range(4)] == [0, 1, 2, 0]
    assert chosen(router, replicas[:1]) == 0


def test_random_draws_all_alike_and_the_same_for_a_seed() -> None:
    replicas = [view(index) for index in range(4)]
    draws = [chosen(ByChance(seed=3), replicas) for _ in range(2)]
    assert draws[0] == draws[1]
    router = ByChance(seed=3)
    counts = Counter(chosen(router, replicas) for _ in range(4000))
    assert min(counts.values()) > 900, counts


def test_least_load_takes_the_first_of_those_with_fewest() -> None:
    assert chosen(LeastLoad(), [view(0, active=2), view(1, active=1), view(2, active=1)]) == 1


def test_a_session_stays_and_moves_where_its_replica_has_left() -> None:
    router, busy = SessionAffinity(), [view(0, active=5), view(1, active=0)]
    assert chosen(router, busy, session="s") == 1
    assert chosen(router, [view(0), view(1, active=9)], session="s") == 1
    assert chosen(router, [view(0), view(1, active=9)], session=None) == 0
    assert chosen(router, [view(0)], session="s") == 0
    assert chosen(router, busy, session="s") == 0, "it has moved"
    small = SessionAffinity(most_sessions=1)
    assert [chosen(small, busy, session=name) for name in ("s", "t")] == [1, 1]
    assert chosen(small, [view(0), view(1, active=1)], session="s") == 0, "forgotten"


def test_dynamo_counts_prefill_less_its_credit_and_decode_blocks() -> None:
    # Prompt of 40 tokens, 10 blocks. Replica 0: (8 + 40) / 4 - 3 = 9, and 20 blocks. Replica 1: 10 + 18.
    first, second = view(0, matched=(12,), prefill=8, blocks=20), view(1, blocks=18)
    router = DynamoKv()
    assert [router.cost(asked(), one, 0) for one in (first, second)] == [29, 28]
    assert chosen(router, [first, second]) == 1
    assert chosen(DynamoKv(credit=3.0), [first, second]) == 0  # 12 - 9 + 20 = 23
    assert router.cost(asked(), view(matched=(40,), blocks=7), 0) == 7, "prefill is not below 0"
    assert DynamoKv(scale=2.0, active_weight=0.5).cost(asked(), view(active=4, blocks=1), 0) == 2 * 10 + 1 + 2


def test_dynamo_credits_tiers_below_and_decays_by_excess_prefill() -> None:
    tiers = view(matched=(8, 8, 16))  # 2 blocks, then 2 in the host's memory, 4 on disk
    assert DynamoKv().cost(asked(), tiers, 0) == 10 - (2 + 0.75 * 2 + 0.25 * 4)
    # 40 tokens of prefill beyond the least loaded replica's are 10 blocks, as many as the request: decay 1 / 2.
    assert DynamoKv(excess_decay=1.0).cost(asked(), view(matched=(16,), prefill=40), 0) == 20 - 0.5 * 4


def test_dynamo_draws_by_softmax_of_the_scaled_cost() -> None:
    router = DynamoKv(temperature=1.0, seed=1)
    replicas = [view(0, blocks=0), view(1, blocks=5), view(2, blocks=10)]  # costs 10, 15, 20: exp(0), exp(-.5), exp(-1)
    counts = Counter(chosen(router, replicas) for _ in range(6000))
    whole = 1 + math.exp(-0.5) + math.exp(-1)
    for index, weight in enumerate((1, math.exp(-0.5), math.exp(-1))):
        assert counts[index] / 6000 == pytest.approx(weight / whole, abs=0.02)


def test_lmetric_takes_the_least_product_and_dynamos_has_blocks_for_requests() -> None:
    # (0 + 40 - 36) * (9 + 1) = 40 against (0 + 40) * (0 + 1) = 40: a tie, which fewer requests win.
    tie = [view(0, matched=(36,), active=9), view(1)]
    assert chosen(LMetric(), tie) == 1
    assert chosen(LMetric(), [view(0, matched=(36,), active=8), view(1)]) == 0  # 36
    assert chosen(LMetric(), [view(0, prefill=40), view(1, active=1)]) == 0  # 80 and 80: fewer requests
    product = DynamoKv(policy="lmetric")
    assert product.cost(asked(), view(matched=(20,), blocks=3), 0) == 5 * 4
    decode = DynamoKv(policy="decode", active_weight=0.5)
    costs = [decode.cost(asked(), view(matched=(20,), blocks=blocks, active=4, prefill=80), 0) for blocks in (3, 9)]
    assert costs == [0 + 2, 4 + 2]


def test_llm_d_sums_match_queue_and_free_blocks() -> None:
    # 0: 3 * 0 + 2 * (4 - 0) / 4 + 2 * (1 - .9) = 2.2; 1: 2 * 0 + 2 * (1 - .1) = 1.8
    idle_but_full, queued = view(0, waiting=0, used=90), view(1, waiting=4, used=10)
    router = LlmD()
    assert chosen(router, [idle_but_full, queued], prompt="ab") == 0
    # Its index now has the prompt at 0: 3 more there.
    assert chosen(router, [view(0, waiting=4, used=10), view(1, used=60)], prompt="ab") == 0  # 3 + 0 + 1.8, 0 + 2 + .8
    assert chosen(router, [view(0, waiting=4, used=90), view(1)], prompt="ab") == 1  # 3 + 0 + .2, 0 + 2 + 2
    router.left(0)
    assert router.route(asked(prompt="zz"), [view(0, used=1), view(1)]).index == 1
    precise = LlmD(precise=True, prefix_weight=2.0, queue_weight=1.0, kv_weight=1.0)
    assert chosen(precise, [view(0, matched=(20,), waiting=4, used=50), view(1, used=60)]) == 0  # 1 + .5 and 1 + .4


def test_llm_d_matches_4096_tokens_at_most_and_may_weigh_load_and_cold_prompts() -> None:
    router = LlmD(queue_weight=0.0, kv_weight=1.0)
    assert chosen(router, [view(0), view(1, used=1)], tokens=8192) == 0
    # All 8,192 tokens were sent to 0, of which 4,096 match: 3 * .5 + 0 against 1; then 3 * .5 + 0 against 3 * .5 + .1.
    assert chosen(router, [view(0, used=100), view(1)], tokens=8192) == 0
    assert chosen(LlmD(queue_weight=0.0, kv_weight=1.51), [view(0, used=100), view(1)], tokens=8192) == 1
    assert chosen(router, [view(0, used=100), view(1, used=0)], tokens=16384) == 1, "3 * .25 against 1"
    # .5 * (1 - 64 / 128) + 1 - .3 = .95 against .5 * (1 - 0) + 1 - .6 = .9; with more than 128 waiting .7.
    loaded = LlmD(prefix_weight=0.0, queue_weight=0.0, kv_weight=1.0, load_weight=1.0)
    assert chosen(loaded, [view(0, waiting=64, used=30), view(1, used=60)]) == 0
    assert chosen(loaded, [view(0, waiting=999, used=30), view(1, used=60)]) == 1
    # Cold prompts go to who had one longest ago; a warm one scores .5 everywhere.
    cold = LlmD(queue_weight=0.0, kv_weight=0.0, cold_weight=1.0, shuffle=False)
    there = [view(index) for index in range(3)]
    assert [chosen(cold, there, prompt=one) for one in "abcd"] == [0, 1, 2, 0]
    assert chosen(cold, there, prompt="b") == 1
    assert chosen(cold, there, prompt="e") == 1, "the warm one does not count"


def test_llm_d_sends_equal_replicas_with_stale_counts_all_to_one_unless_shuffled() -> None:
    """llm-d-router#2515: equal scores, and loads that nobody has reported yet."""
    equal = [view(index) for index in range(4)]
    fixed, shuffled = LlmD(shuffle=False), LlmD(seed=1)
    prompts = [f"{chr(97 + at)}" for at in range(16)]
    assert {fixed.route(asked(prompt=one), equal).index for one in prompts} == {0}
    assert {shuffled.route(asked(prompt=one), equal).index for one in prompts} == {0, 1, 2, 3}


def test_sglang_follows_the_match_where_load_is_balanced() -> None:
    router, both = SglangCacheAware(), [view(0, active=1), view(1)]
    assert chosen(router, both, prompt="aaab") == 1, "nothing matches: least load"
    # 3 of 10 blocks are equal: 12 / 40 is not above .3, and least load decides.
    assert chosen(router, [view(0), view(1, active=1)], prompt="aaac") == 0
    assert chosen(SglangCacheAware(cache_threshold=0.29), both, prompt="aaab") == 1
    again = SglangCacheAware()
    assert chosen(again, both, prompt="aaaab") == 1
    assert chosen(again, [view(0), view(1, active=30)], prompt="aaaac") == 1, "4 of 10 match, 30 is within 64"
    assert chosen(again, [view(0), view(1, active=65)], prompt="aaaac") == 0, "65 exceeds 0 by more than 64"
    assert chosen(again, [view(0, active=140), view(1, active=205)], prompt="zzz") == 0, "205 is below 1.5 * 140"
    assert again.facts() == {"by_match": 1, "unbalanced": 1}


def test_sglang_21199_never_is_unbalanced_below_its_absolute_threshold() -> None:
    """At most 36 requests are under way: 36 - 0 is not above 64, so whoever has the shared prefix gets everything."""
    router, replicas = SglangCacheAware(cache_threshold=0.25), [view(0), view(1)]
    for number in range(36):
        router.route(asked(40, number=number, prompt="sss" + chr(97 + number % 26)), replicas).active += 1
    assert [one.active for one in replicas] == [36, 0]
    assert router.num_unbalanced == 0


def test_aibrix_takes_the_best_match_that_is_not_overloaded() -> None:
    router = AibrixPrefixCache()
    assert chosen(router, [view(0, active=1), view(1)], prompt="ab") == 1
    # Counts 0, 3, 0, 0: mean .75, deviation 1.3: 3 is above 2.05, so its match is passed over.
    spread = [view(0), view(1, active=3), view(2), view(3)]
    assert chosen(router, spread, prompt="ab") == 0
    assert chosen(AibrixPrefixCache(deviations=2.0), spread, prompt="ab") == 0, "nothing was sent yet"
    patient = AibrixPrefixCache(deviations=2.0)
    assert chosen(patient, [view(0, active=1), view(1)], prompt="ab") == 1
    assert chosen(patient, spread, prompt="ab") == 1, "3 is below .75 + 2 * 1.3"
    assert chosen(patient, [view(0), view(1, active=9)], prompt="ab") == 0, "9 - 0 is above 8: the fewest alone"
    assert chosen(patient, [view(0, active=1), view(1)], prompt="ab", now_s=1300.0) == 1, "forgotten after 20 minutes"


def test_preble_explores_by_cost_and_exploits_by_load() -> None:
    router, both = Preble(), [view(0), view(1)]
    assert chosen(router, both, tokens=800, prompt="a") == 0, "no cost anywhere: the first"
    # One prompt of 800 new tokens at 0: .27106428 * 800 + 10.524 ms and .8 of attention, over .9; and 45 * .15 s.
    assert router.cost(0) == pytest.approx((0.27106428 * 800 + 10.52444263 + 0.80) / 900 + 6.75)
    assert chosen(router, both, tokens=800, prompt="b") == 1, "0 has a cost"
    assert chosen(router, both, tokens=804, prompt="a") == 0, "200 of 201 blocks are known at 0"
    assert [router.load(index) for index in (0, 1)] == [2, 1]
    assert router.cost(1) < router.cost(0)
    assert chosen(router, both, tokens=800, prompt="c", now_s=181.0) == 0, "all is older than three minutes"
    assert [router.load(index) for index in (0, 1)] == [1, 0]
    router.left(0)
    assert router.load(0) == 0


def test_preble_times_prefill_as_the_port_does() -> None:
    fast, slow = Preble(device="A6000"), Preble()
    assert fast.prefill_s(100, 500) == pytest.approx((22.0 + 0.32) / 900)
    assert slow.prefill_s(200, 500) == pytest.approx((-295 + 3.125 * 200 - 6.4e-3 * 200**2 + 0.80) / 900)
    assert slow.prefill_s(1000, 2000) == pytest.approx(
        (0.27106428 * 1000 + 10.52444263 + (4.65e-4 * 2000 + 0.398) / 2) / 900
    )
    assert fast.prefill_s(5000, 6000) == pytest.approx(
        (0.10842571 * 5000 + 4.209777054806409 + 1.86e-4 * 6000 + 0.159 - 7.37 + 3.86e-3 * 5000 + 2.16e-6 * 5000**2)
        / 900
    )


def test_prefixaware_draws_among_the_longest_matches_and_ignores_load() -> None:
    router = PrefixAware(seed=2)
    first = chosen(router, [view(0), view(1), view(2)], prompt="ab")
    loaded = [view(index, active=99 if index == first else 0) for index in range(3)]
    assert {chosen(router, loaded, prompt="ab") for _ in range(8)} == {first}
    assert {chosen(PrefixAware(seed=seed), loaded, prompt="ab") for seed in range(12)} == {0, 1, 2}


def test_kvaware_falls_back_where_too_much_is_missing() -> None:
    most = [view(0, active=3), view(1, matched=(2000,)), view(2)]
    assert chosen(KvAware(), most, tokens=4000) == 1, "2,000 tokens are missing"
    assert chosen(KvAware(), most, tokens=4004, session="s") == 1, "fewest requests, the first of two"
    assert chosen(KvAware(threshold=0), [view(0, active=1), view(1, matched=(36,), active=2)], tokens=40) == 0
    assert chosen(KvAware(threshold=4), [view(0, active=1), view(1, matched=(36,), active=2)], tokens=40) == 1


def test_loadaware_weighs_a_match_against_load_above_the_mean() -> None:
    # Loads 4 and 0, mean 2: 20 / 40 - (4 - 2) / 2 = -.5 against 0 + 1.
    replicas = [view(0, matched=(20,), active=4), view(1)]
    assert chosen(LoadAware(), replicas) == 1
    assert chosen(LoadAware(beta=0.2), replicas) == 0  # .5 - .2 against .2
    assert chosen(LoadAware(), [view(0, matched=(20,), active=1), view(1, active=1)]) == 0


def test_blocks_of_a_request_are_named_by_their_prefix() -> None:
    first, second = asked(prompt="aab"), asked(prompt="aac")
    assert [first.hashes[at] == second.hashes[at] for at in range(40 // SIZE)] == [True] * 2 + [False] * 8
