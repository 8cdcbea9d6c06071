"""Tiers below several groups of KV: tokens do not depend on them, and a hit is what pools and tiers give together."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from fake_engines import finished, make_llm
from stepped_worker import InTurn
from tier_helpers import over

from framework.errors import StoreFailed
from framework.llm import LLM, CacheOptions, EngineOptions, FaultOptions
from framework.model.loading import LoadedModel, load_model
from framework.sampling import Sampling
from framework.types import BlockHash
from framework_testing.checkpoints import make_checkpoint
from framework_tiers import setup
from framework_tiers.engine_tiers import GroupedTiers
from framework_tiers.store import BlockFormat, Store

SIZE, WINDOW = 4, 10
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3_text", {"sliding_window": WINDOW, "num_hidden_layers": 7, "query_pre_attn_scalar": 24}),
    "qwen3_5": (
        "qwen3_5_text",
        {
            "num_hidden_layers": 4, "full_attention_interval": 2, "linear_num_key_heads": 2,
            "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
        },
    ),
}  # fmt: skip
SHORT = Sampling(max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory: Any) -> dict[str, LoadedModel]:
    return {
        name: load_model(make_checkpoint(tmp_path_factory.mktemp(name), family, **overrides))
        for name, (family, overrides) in FAMILIES.items()
    }


@pytest.fixture(params=FAMILIES)
def model(request: Any, models: dict[str, LoadedModel]) -> LoadedModel:
    return models[request.param]


def stem(number: int, length: int = 40) -> list[int]:
    return [(number * 31 + 7 * at) % 250 + 4 for at in range(length)]


def tiered(model: LoadedModel, rule: Any = "on_eviction", *, store: Any = "host", **options: Any) -> LLM:
    engine = options.pop("engine", EngineOptions(max_batch_requests=2, max_batch_tokens=32))
    tiers = [{"store": store, "num_blocks": options.pop("tier_blocks", 200)}]
    return make_llm(
        model, block_size=SIZE, **{"num_blocks": 30, "below": over(tiers, rule), "engine": engine} | options
    )


def below(llm: LLM) -> GroupedTiers:
    tiers = llm.engine.state.tiers
    assert isinstance(tiers, GroupedTiers), llm.kv_groups_off
    return tiers


class Unreliable(Store):
    """Every fifth read or write fails, or finds nothing."""

    def __init__(self) -> None:
        self.draw, self.held = random.Random(7), dict[BlockHash, bytes]()

    def open(self, format: BlockFormat, num_blocks: int) -> None:
        pass

    def write(self, key: BlockHash, data: memoryview) -> None:
        if self.draw.random() < 0.2:
            raise StoreFailed("injected")
        self.held[key] = bytes(data)

    def read(self, key: BlockHash, into: memoryview) -> bool:
        if key not in self.held or self.draw.random() < 0.2:
            return False
        into[:] = self.held[key]
        return True

    def remove(self, key: BlockHash) -> None:
        self.held.pop(key, None)


RULES: dict[str, Any] = {
    "exclusive": "on_eviction",
    "inclusive": {"name": "on_eviction", "exclusive": False, "prefetch": True},
    "write_through": "write_through",
    "second_hit": "on_second_hit",
}


SAMPLINGS = (SHORT, Sampling(max_tokens=5, n=2, temperature=1.0, seed=3), Sampling(max_tokens=4, beam_width=2))


def mixed_prompts() -> list[list[int]]:
    draw = random.Random(3)
    return [
        stem(draw.randrange(5), draw.randint(6, 44)) + [draw.randrange(4, 250) for _ in range(draw.randint(1, 6))]
        for _ in range(24)
    ]


@pytest.fixture(scope="module")
def alone(models: dict[str, LoadedModel]) -> dict[str, list[Any]]:
    """By family, what `mixed_prompts` give without tiers or sharing, of each of SAMPLINGS."""
    found = {}
    for model in models.values():
        llm = LLM(model, cache=CacheOptions(block_size=SIZE, num_blocks=200), allocator="naive")
        found[model.config.family] = [finished(llm.generate(mixed_prompts(), sampling)) for sampling in SAMPLINGS]
    return found


STORES = ("host", f"{__file__}:Unreliable", "null")


@pytest.mark.parametrize(
    ("family", "rule", "number"),
    [
        pytest.param(family, rule, number, marks=[] if (number, f) == (r % 3, r % 2) else [pytest.mark.slow])
        for r, rule in enumerate(RULES)
        for number in range(3)
        for f, family in enumerate(FAMILIES)
    ],
)
def test_tokens_are_those_without_tiers(
    family: str,
    rule: str,
    number: int,
    models: dict[str, LoadedModel],
    alone: dict[str, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One copy of each group moves a step: over a host, an unreliable and a null store."""
    monkeypatch.setattr(setup, "WorkerTransfers", InTurn)
    model, faults = models[family], FaultOptions(poison=True, preempt_every=11)
    with tiered(model, RULES[rule], store=STORES[number], faults=faults) as llm:
        tiers = below(llm)
        for sampling, wanted in zip(SAMPLINGS, alone[model.config.family], strict=True):
            assert finished(llm.generate(mixed_prompts(), sampling)) == wanted
            llm.engine.check()
        failed = sum(sum(at.failed_loads + at.failed_stores) for at in tiers.placements)
        found = (int(tiers.num_loads), llm.stats()["loaded_blocks"], failed)
        loads, loaded, failures = found
        assert loads > 15, found
        assert loaded > 100 if number == 0 else (loaded > 0) == (number == 1), found
        assert (failures > 40) == (failures > 0) == (number == 1), found


@pytest.mark.parametrize("memory", ["one_pool", "pool_per_group"])
def test_below_a_memory_of_choice_tokens_are_those_without_tiers(
    memory: str, models: dict[str, LoadedModel], alone: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven groups in one pool, and two over one tree."""
    monkeypatch.setattr(setup, "WorkerTransfers", InTurn)
    model, faults = models["gemma3"], FaultOptions(poison=True, preempt_every=11)
    with tiered(model, faults=faults, memory=memory) as llm:
        assert finished(llm.generate(mixed_prompts()[:14], SHORT)) == alone[model.config.family][0][:14]
        llm.engine.check()
        assert len(below(llm).placements) == len(llm.groups) == (7 if memory == "one_pool" else 2)
        assert [at.lower.tiers[0].num_blocks for at in below(llm).placements][:1] == [200]
        loaded, found = llm.stats()["loaded_blocks"], llm.stats()["tier1_window_hit_blocks"]
        assert (loaded > 5, found > 2) == (True, True), (loaded, found)


def test_a_prefix_that_left_both_pools_is_loaded_to_where_it_can_be_resumed(model: LoadedModel) -> None:
    with tiered(model) as llm:
        first, *_, again = (llm.generate([stem(number)], SHORT)[0] for number in (*range(1, 14), 1))
        assert (again.num_cached_tokens, again.num_loaded_tokens) == (36, 36)
        assert again.tier_tokens == {1: 36}
        assert finished([again]) == finished([first])
        held = {"gemma3_text": 3, "qwen3_5_text": 1}  # of 9 tokens before the next, blocks of 4; one state
        kind = llm.groups[1].kind
        assert llm.stats()[f"tier1_{kind}_hit_blocks"] == held[model.config.family], llm.stats()
        assert llm.stats()["tier1_hit_blocks"] == 9


def test_what_the_window_lost_is_loaded_while_the_rest_lies_in_the_pool(model: LoadedModel) -> None:
    """Full attention keeps its blocks, so nothing but the window, or a state, comes from below."""
    with tiered(model, num_blocks=400, tier_blocks=4000) as llm:
        first, *_, again = (llm.generate([stem(number)], SHORT)[0] for number in (*range(1, 14), 1))
        stats = llm.stats()
        assert (again.num_cached_tokens, stats["tier1_hit_blocks"], stats["full_evictions"]) == (36, 0, 0), stats
        assert again.num_loaded_tokens > 0
        assert finished([again]) == finished([first])


def test_another_process_finds_both_groups_on_disk(model: LoadedModel, tmp_path: Path) -> None:
    store = {"name": "disk", "path": str(tmp_path)}
    with tiered(model, "write_through", store=store) as llm:
        first = llm.generate([stem(1)], SHORT)[0]
    with tiered(model, "write_through", store=store) as llm:
        again = llm.generate([stem(1)], SHORT)[0]
    assert (again.num_cached_tokens, again.num_loaded_tokens) == (36, 36)
    assert finished([again]) == finished([first])


def test_of_states_those_worth_keeping_are_stored_and_no_others(models: dict[str, LoadedModel]) -> None:
    with tiered(models["qwen3_5"], "write_through") as llm:
        llm.generate([stem(1)], SHORT)  # 45 tokens are computed: states after 36, and the last block's after 44
        assert [at.lower.tiers[0].counts.stored for at in below(llm).placements] == [11, 2]
    with tiered(models["qwen3_5"], num_blocks=60) as llm:
        llm.generate([stem(number, 100) for number in range(3)], SHORT)
        assert below(llm).placements[1].lower.tiers[0].counts.stored == 0, "nothing was evicted but what is not kept"


def test_each_group_of_a_tier_has_its_share_of_blocks(model: LoadedModel) -> None:
    with tiered(model) as llm:
        tiers = [at.lower.tiers[0].num_blocks for at in below(llm).placements]
        assert tiers == [200, round(200 * llm.group_blocks[1] / 30)]
