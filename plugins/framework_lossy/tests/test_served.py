"""What a budget returns, in served runs; that the tokens follow from what stayed is in the kit of compressions."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.api import run
from framework.config.sections import EngineOptions
from framework.engine.engine import Engine, ModelLimits
from framework.engine.executors.model import ModelExecutor
from framework.engine.executors.replay import ReplayExecutor, StepCosts
from framework.errors import ConfigError, PluginError
from framework.interfaces.below import Below
from framework.llm import Trial
from framework.registry.components import build_allocator, build_component, options_known
from framework.sampling import Sampling
from framework_lossy.compression import Kept, TokenDropping
from framework_testing.attention_runs import ReplayRecorder
from framework_testing.compression import differences, recorded

from .reference import GREEDY, METHODS, llm_of, prompts_of, recall_model, served

OPTIONS: dict[str, dict[str, Any]] = {
    "snapkv": {"window": 16}, "adakv": {"over": {"name": "snapkv", "window": 16}},
    "openvino": {"start_tokens": 16, "recent_tokens": 32},
}  # fmt: skip


@functools.cache
def dense_tokens() -> list[list[int]]:
    """What follows from all of the tokens."""
    return [r.completions[0].tokens for r in llm_of("none").generate(prompts_of(3), GREEDY)]


@pytest.mark.parametrize("name", METHODS)
def test_a_budget_is_kept_and_what_is_served_follows(name: str) -> None:
    llm, requests, wrong = served(name, prompts_of(3), own=OPTIONS.get(name))
    stats = llm.stats()
    assert stats["num_compressions"] == 3, stats
    assert 0.4 < stats["dropped_share"] <= 0.53, stats
    assert wrong == []
    assert [r.completions[0].tokens for r in requests] != dense_tokens(), "it was lossy"


@pytest.mark.parametrize("name", ["streaming", "knorm", "paged_eviction"])
def test_dropping_again_while_a_request_generates_keeps_the_budget(name: str) -> None:
    long = Sampling(max_tokens=60, ignore_eos=True, logprobs=0)
    llm, _, wrong = served(name, prompts_of(2), long, own={"every": 16})
    assert llm.stats()["num_compressions"] > 4, llm.stats()
    assert wrong == []


def test_another_layout_changes_nothing() -> None:
    for name in ("keydiff", "adakv"):
        assert served(name, prompts_of(3), cache={"layout": "HND"}, own=OPTIONS.get(name))[2] == []


@pytest.mark.parametrize(("kv_dtype", "close"), [("int8", 0.5), ("float8_e4m3fn", 2.0), ("bfloat16", 0.1)])
def test_budgets_by_head_are_kept_in_a_narrower_pool(kv_dtype: str, close: float, tmp_path: Path) -> None:
    compression = build_component("compression", {"name": "adakv", "over": "knorm", "ratio": 0.5}, {})
    kept = recorded(compression)
    requests = llm_of(compression, cache={"kv_dtype": kv_dtype}).generate(prompts_of(2), GREEDY)
    assert differences(recall_model().decoder, requests, kept, close) == []
    assert differences(recall_model().decoder, requests, kept, 1e-5) != [], "nothing was rounded"
    result = run({
        "mode": "serve", "model": "recall", "workload": {"name": "recall", "documents": 2, "length": 60},
        "device": "cpu",
        "compression": {"name": "adakv", "ratio": 0.0}, "cache": {"kv_dtype": kv_dtype},
        "run": {"dir": str(tmp_path / kv_dtype), "progress": False},
    })  # fmt: skip
    assert result["dense_agreement"] > 0.8, result


@pytest.mark.parametrize(("kv_dtype", "close"), [("int8", 0.5), ("float8_e4m3fn", 2.0)])
def test_what_a_narrower_pool_keeps_is_chosen_by_its_values(kv_dtype: str, close: float) -> None:
    """Nearly the same tokens stay as of K in float32, and they are served as far as the dtype allows."""
    kept = []
    for cache in ({}, {"kv_dtype": kv_dtype}):
        compression = build_component("compression", {"name": "knorm", "ratio": 0.5}, {})
        found = recorded(compression)
        requests = llm_of(compression, cache=cache).generate(prompts_of(2), GREEDY)
        assert differences(recall_model().decoder, requests, found, close) == []
        kept.append([one.tokens for [(_, _, one)] in found.values()])
    same = [
        np.isin(*pair).mean() for pair in zip(*(np.concatenate(one, 2).reshape(-1, 151) for one in kept), strict=True)
    ]
    assert min(same) > 0.85, same


@pytest.mark.parametrize("name", ["streaming", "knorm", "paged_eviction"])
def test_decode_steps_that_were_captured_read_what_stays(name: str) -> None:
    compression = build_component("compression", {"name": name, "ratio": 0.5, "every": 16}, {})
    kept = recorded(compression)
    llm = llm_of(compression)
    llm.executor.capture(ReplayRecorder(check=False), (1, 2, 4))  # type: ignore[attr-defined]
    requests = llm.generate(prompts_of(3), Sampling(max_tokens=40, ignore_eos=True, logprobs=0))
    llm.engine.check()
    assert llm.executor.summary()["graph_steps"] > 30
    assert llm.stats()["num_compressions"] > 3
    assert differences(recall_model().decoder, requests, kept) == []


@pytest.mark.parametrize("kind", [ModelExecutor, ReplayExecutor])
def test_a_step_looks_for_dropped_tokens_only_where_something_drops_them(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would cost every step of every run."""
    forward = kind.forward

    def unable(self: Any, step: Any, rows: Any) -> None:
        removed, rows.removed = rows.removed, None
        try:
            forward(self, step, rows)
        finally:
            rows.removed = removed

    def serve(compression: Any) -> None:
        if kind is ModelExecutor:
            llm_of(compression).generate(prompts_of(1), GREEDY)
        else:
            replayed(compression)

    monkeypatch.setattr(kind, "forward", unable)
    serve(build_component("compression", "none", {}))
    with pytest.raises(TypeError, match="not subscriptable"):
        serve(build_component("compression", {"name": "streaming", "ratio": 0.5}, {}))


def test_at_ratio_zero_all_is_as_without() -> None:
    events: list[list[Any]] = [[], []]
    tokens = []
    for log, name in zip(events, ("none", "zero"), strict=True):
        trial = Trial(log=lambda event, log=log, **facts: log.append((event, facts)))
        compression = "none" if name == "none" else {"name": "keydiff", "ratio": 0.0}
        llm = llm_of(compression, num_blocks=40, trial=trial)
        tokens.append([r.completions[0].tokens for r in llm.generate(prompts_of(6), GREEDY)])
    assert tokens[0] == tokens[1]
    assert events[0] == events[1]


def test_a_prefix_is_found_again_as_far_as_its_blocks_were_left_alone() -> None:
    [prompt] = prompts_of(1, 200)
    hits = {}
    for name in ("streaming", "knorm", "paged_eviction"):
        llm, _, _ = served(name, [prompt])
        [again] = llm.generate([prompt], GREEDY)
        hits[name] = again.num_cached_tokens
    assert hits["knorm"] == 0  # each head keeps others of the first tokens
    assert hits["streaming"] == 0
    assert hits["paged_eviction"] == 192  # whole blocks went, and are cached


@pytest.mark.parametrize(
    ("name", "rule"),
    [("streaming", "on_eviction"), ("knorm", "write_through"), ("paged_eviction", "on_eviction"),
     *(pytest.param(*pair, marks=pytest.mark.slow) for pair in (
         ("streaming", "write_through"), ("knorm", "on_eviction"), ("paged_eviction", "write_through")))],
)  # fmt: skip
def test_what_leaves_the_pool_is_found_in_a_tier_below(name: str, rule: str) -> None:
    """A block goes there whole, before its tokens are moved; those that a request computes afterwards do not."""
    prompts, others = [prompts_of(count, 200, seed) for seed, count in ((0, 1), (3, 6))]
    long = Sampling(max_tokens=40, ignore_eos=True, logprobs=0)
    below = {"name": "tiers", "tiers": [{"store": "host", "num_blocks": 400}], "tiering": rule}
    compression = build_component("compression", {"name": name, "ratio": 0.5, "question_tokens": 7, "every": 16}, {})
    kept = recorded(compression)
    with llm_of(compression, num_blocks=40, below=below) as llm:
        requests = llm.generate([*prompts, *others], long)
        [again] = llm.generate([[*prompts[0], *requests[0].completions[0].tokens]], long)
        llm.engine.check()
    assert again.num_cached_tokens == 192, "all full blocks of the prompt, and none of what followed from less"
    assert differences(recall_model().decoder, [*requests, again], kept) == []


def test_a_replay_finds_below_what_left_its_pool(tmp_path: Path) -> None:
    hits = {}
    for below in ("none", {"name": "tiers", "tiers": [{"store": "host", "num_blocks": 4096}]}):
        result = run({
            "mode": "replay", "workload": {"name": "conversations"}, "cache": {"num_blocks": 96}, "below": below,
            "compression": {"name": "streaming", "ratio": 0.5},
            "run": {"dir": str(tmp_path / str(below == "none")), "progress": False},
        })  # fmt: skip
        hits[below == "none"] = result["hit_tokens"]
    assert hits[False] > 2 * hits[True], hits


@pytest.mark.parametrize("name", METHODS)
def test_a_budget_is_set_by_the_names_of_its_options(name: str) -> None:
    known = options_known("compression", name)
    assert known is not None, f"compression.ratio=0.25 is refused where {name} does not name its options"
    assert all(key in known for key in ("ratio", "question_tokens", "every")), known
    assert build_component("compression", {"name": name, "ratio": 0.25}, {}).ratio == 0.25


@pytest.mark.parametrize("window", [0, 2**31, 2**64])
def test_a_window_is_no_longer_than_a_sequence_may_be(window: int) -> None:
    with pytest.raises(ConfigError, match=rf"compression\.window must be 1 to {2**31 - 1}, found {window}"):
        build_component("compression", {"name": "snapkv", "window": window}, {})


@pytest.mark.parametrize("options", [{"every": 8}, {"over": "streaming"}, {"over": "adakv"}, {"safeguard": 1.5}])
def test_what_cannot_be_a_budget_by_head_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"compression.{next(iter(options))}"):
        build_component("compression", {"name": "adakv", **options}, {})


def test_what_heads_spare_together_comes_back_as_blocks() -> None:
    spared = {}
    for name in ("knorm", "adakv"):
        own = {"over": "knorm"} if name == "adakv" else {}
        llm, _, wrong = served(name, prompts_of(4, 331), own={"ratio": 0.75, **own}, num_blocks=400)
        assert wrong == []
        spared[name] = llm.stats()["returned_blocks"]
    # A table each costs no more than the block in which the full blocks of a layer's heads end.
    assert spared["knorm"] - 4 <= spared["adakv"] <= spared["knorm"], spared


def test_more_requests_fit_at_once() -> None:
    peaks = [
        served("knorm", prompts_of(8), own={"ratio": ratio}, num_blocks=30)[0].stats()["peak_running"]
        for ratio in (0.0, 0.8)
    ]
    assert peaks[0] < peaks[1], peaks


class _Wrong(TokenDropping):
    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def due(self, written: Any) -> bool:
        return written.compressed_at is None

    def keep(self, written: Any) -> Kept:
        return self._kept


@pytest.mark.parametrize("kept", [
    Kept(tokens=np.array([[[0, 0]]])), Kept(tokens=np.array([[[0, 150]]])), Kept(tokens=np.array([[[-1, 3]]])),
    Kept(tokens=np.array([1, 2])), Kept(blocks=[0, 1]), Kept(blocks=[]), Kept(blocks=[0, 0, 9]), None, 5,
])  # fmt: skip
def test_an_answer_that_cannot_be_ends_the_run(kept: Any) -> None:
    llm = llm_of(_Wrong(kept))
    if kept is None:
        llm.generate(prompts_of(1), GREEDY)
        return
    with pytest.raises(PluginError, match=r"_Wrong\.keep: must name, rising, some of 150 tokens"):
        llm.generate(prompts_of(1), GREEDY)


class Unaware(Below):
    """Says nothing of requests that lose tokens."""


@pytest.mark.parametrize(("options", "match"), [
    ({"allocator": "radix"}, "KNorm cannot be combined with allocator RadixAllocator"),
    ({"allocator": "contiguous"}, "KNorm cannot be combined with allocator ContiguousAllocator"),
    ({"name": "adakv", "backend": "quest"}, "a backend that declares a loss, by head"),
    ({"name": "adakv", "below": {"name": "tiers", "tiers": [{"store": "host", "num_blocks": 20}]}}, "pool, by head"),
    ({"below": Unaware()}, "Unaware below the pool"),
])  # fmt: skip
def test_what_it_cannot_be_combined_with_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        llm_of(options.pop("name", "knorm"), **options)


def test_a_replay_at_ratio_zero_is_the_same_to_the_byte(tmp_path: Path) -> None:
    logs = []
    for name in ("none", "streaming"):
        compression = {"name": name} if name == "none" else {"name": name, "ratio": 0.0}
        result = run({
            "mode": "replay", "workload": {"name": "conversations"}, "compression": compression,
            "cache": {"num_blocks": 96}, "run": {"events": True, "dir": str(tmp_path / name), "progress": False},
        })  # fmt: skip
        assert result["num_evictions"] > 0, result
        [log] = (tmp_path / name).rglob("events.jsonl")
        logs.append(log.read_bytes())
    assert logs[0] == logs[1]


def replayed(compression: Any) -> Engine:
    """A prompt of 100 tokens and four more; a second for each token whose K and V a step reads."""
    read = StepCosts(step_s=0, row_s=0, token_s=0, context_s=1, pair_s=0)
    engine = Engine(
        build_allocator("prefix_cow", "lru", "sha256", num_blocks=32, block_size=4, max_model_len=128),
        ReplayExecutor(read), limits=ModelLimits(max_model_len=128), options=EngineOptions(max_batch_tokens=256),
        virtual_clock=True, compression=compression,
    )  # fmt: skip
    engine.submit(list(range(100)), Sampling(max_tokens=4, ignore_eos=True))
    while engine.num_unfinished:
        engine.step()
    return engine


def test_the_time_of_a_replay_counts_what_is_still_in_the_pool() -> None:
    """99 tokens of a prompt, then those that stayed and the new ones."""
    engine = replayed(build_component("compression", {"name": "streaming", "ratio": 0.5, "question_tokens": 1}, {}))
    kept = int(99 * 0.5)
    assert engine.executor.now() == sum(kept + more for more in range(4)), engine.executor.now()
