"""Served tokens against a dense model that reads only what stayed; sharing, forks, preemption; and mutants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from framework.engine.executors.model import ModelExecutor
from framework.errors import ConfigError, PluginError
from framework.interfaces.compression import Compression, Kept
from framework.llm import FaultOptions, Trial
from framework.paged.cache import BlockCache
from framework.registry.components import build_component, options_known
from framework.sampling import Sampling

from .reference import METHODS, Recorded, differences, llm_of, prompts_of

GREEDY = Sampling(max_tokens=12, ignore_eos=True)
OPTIONS: dict[str, dict[str, Any]] = {
    "snapkv": {"window": 16}, "openvino": {"start_tokens": 16, "recent_tokens": 32}
}  # fmt: skip


def served(name: str, prompts: list[list[int]], sampling: Sampling = GREEDY, **options: Any) -> tuple[Any, Any, Any]:
    """(LLM, requests, what was kept) of these prompts, over a pool that is checked at the end."""
    own = {key: options.pop(key) for key in ("ratio", "question_tokens", "every") if key in options}
    recorded = Recorded(name, **({"ratio": 0.5, "question_tokens": 7} | OPTIONS.get(name, {}) | own))
    llm = llm_of(recorded, **options)
    requests = llm.generate(prompts, sampling)
    llm.engine.check()
    return llm, requests, recorded


@pytest.mark.parametrize(("name", "block_size"), [*((name, 16) for name in METHODS), ("keydiff", 1), ("openvino", 1)])
def test_what_is_served_follows_from_what_stayed(name: str, block_size: int) -> None:
    llm, requests, recorded = served(name, prompts_of(3), block_size=block_size, num_blocks=3200 // block_size)
    stats = llm.stats()
    assert stats["num_compressions"] == 3, stats
    assert 0.4 < stats["dropped_share"] <= 0.53, stats
    assert differences(requests, recorded) == []
    dense = llm_of("none").generate(prompts_of(3), GREEDY)
    assert [r.completions[0].tokens for r in requests] != [r.completions[0].tokens for r in dense]  # it was lossy


@pytest.mark.parametrize("name", ["streaming", "knorm", "paged_eviction"])
def test_dropping_again_while_a_request_generates_keeps_the_budget(name: str) -> None:
    llm, requests, recorded = served(name, prompts_of(2), Sampling(max_tokens=60, ignore_eos=True), every=16)
    assert llm.stats()["num_compressions"] > 4, llm.stats()
    assert differences(requests, recorded) == []


@pytest.mark.parametrize("options", [
    {"engine": {"chunk_size": 40}}, {"cache_layout": "HND"}, {"engine": {"max_batch_tokens": 64}},
])  # fmt: skip
def test_chunks_and_layouts_change_nothing(options: dict[str, Any]) -> None:
    layout = options.get("cache_layout", "NHD")
    engine = options.get("engine", {})
    _, requests, recorded = served("keydiff", prompts_of(3), engine=engine, layout=layout)
    assert differences(requests, recorded) == []


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


def test_shared_blocks_are_copied_and_nothing_of_others_changes() -> None:
    [prompt] = prompts_of(1, 200)
    prompts = [prompt, [*prompt[:180], 9, 11, 13], prompt[:170] + [15] * 9]
    _, requests, recorded = served("keydiff", prompts)
    assert requests[1].num_cached_tokens == 176, requests
    assert differences(requests, recorded) == []


def test_a_prefix_is_found_again_as_far_as_its_blocks_were_left_alone() -> None:
    [prompt] = prompts_of(1, 200)
    hits = {}
    for name in ("streaming", "knorm", "paged_eviction"):
        llm, _, _ = served(name, [prompt], ratio=0.5)
        [again] = llm.generate([prompt], GREEDY)
        hits[name] = again.num_cached_tokens
    assert hits["knorm"] == 0  # each head keeps others of the first tokens
    assert hits["streaming"] == 0
    assert hits["paged_eviction"] == 192  # whole blocks went, and are cached


def test_samples_share_what_stayed_and_copy_what_they_write() -> None:
    prompts = prompts_of(2)
    sampling = Sampling(n=3, temperature=1.0, max_tokens=20, ignore_eos=True, seed=5)
    for name in ("keydiff", "paged_eviction"):
        llm, requests, _ = served(name, prompts, sampling, ratio=0.6, every=8)
        assert all(len(request.completions) == 3 for request in requests)
        assert llm.stats()["used_blocks"] == 0


def test_beams_go_on_over_what_stayed() -> None:
    llm, requests, _ = served("knorm", prompts_of(2), Sampling(beam_width=3, max_tokens=10, ignore_eos=True))
    assert [len(request.completions) for request in requests] == [3, 3]
    assert llm.stats()["used_blocks"] == 0


def test_a_preempted_request_is_compressed_anew() -> None:
    trial = Trial(faults=FaultOptions(preempt_every=5))
    llm, requests, _ = served("keydiff", prompts_of(6), trial=trial)
    assert llm.stats()["num_preemptions"] > 0, llm.stats()
    assert llm.stats()["num_compressions"] > 6
    assert all(request.status == "finished" for request in requests)


@pytest.mark.parametrize("name", METHODS)
def test_a_budget_is_set_by_the_names_of_its_options(name: str) -> None:
    known = options_known("compression", name)
    assert known is not None, f"compression.ratio=0.25 is refused where {name} does not name its options"
    assert all(key in known for key in ("ratio", "question_tokens", "every")), known
    assert build_component("compression", {"name": name, "ratio": 0.25}, {}).ratio == 0.25


def test_more_requests_fit_at_once() -> None:
    peaks = [
        served("knorm", prompts_of(8), num_blocks=30, ratio=ratio)[0].stats()["peak_running"] for ratio in (0, 0.8)
    ]
    assert peaks[0] < peaks[1], peaks


class _Wrong(Compression):
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


@pytest.mark.parametrize(("options", "match"), [
    ({"allocator": "radix"}, "RadixAllocator"), ({"allocator": "contiguous"}, "ContiguousAllocator"),
])  # fmt: skip
def test_what_it_cannot_be_combined_with_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=f"compression KNorm cannot be combined with allocator {match}"):
        llm_of("knorm", **options)


# Mutants: each breaks one thing, and the tests above must see it.


@contextmanager
def broken(target: Any, name: str, mutant: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, mutant)
        yield


def test_a_freed_block_that_is_still_read_is_seen() -> None:
    set_table = ModelExecutor.set_table

    def stale(self: Any, row: int, start: int, ids: Any, group: int = 0) -> None:
        if len(ids) < 5 and start == 0:  # as if the change had not reached the executor
            return
        set_table(self, row, start, ids, group)

    with broken(ModelExecutor, "set_table", stale):
        _, requests, recorded = served("paged_eviction", prompts_of(1), ratio=0.6)
        assert differences(requests, recorded)


def test_a_kept_token_at_another_position_is_seen() -> None:
    compact = ModelExecutor.compact

    def shifted(self: Any, source: Any, destination: Any, tokens: Any, start: int) -> None:
        compact(self, source, destination, np.maximum(tokens - 1, 0), start)

    with broken(ModelExecutor, "compact", shifted):
        _, requests, recorded = served("keydiff", prompts_of(2))
        assert differences(requests, recorded)


def test_a_head_that_gets_another_heads_tokens_is_seen() -> None:
    compact = ModelExecutor.compact

    def mixed(self: Any, source: Any, destination: Any, tokens: Any, start: int) -> None:
        compact(self, source, destination, tokens[:, ::-1], start)

    with broken(ModelExecutor, "compact", mixed):
        _, requests, recorded = served("keydiff", prompts_of(2))
        assert differences(requests, recorded)


def test_a_next_token_rotated_as_if_nothing_had_been_dropped_is_right_and_otherwise_seen() -> None:
    forward = ModelExecutor._hidden

    def renumbered(self: Any, tokens: Any, positions: Any, batches: Any, rows: Any = None) -> Any:
        return forward(self, tokens, positions.clamp_max(int(batches[0].max_context_len) - 1), batches, rows)

    with broken(ModelExecutor, "_hidden", renumbered):
        _, requests, recorded = served("keydiff", prompts_of(2))
        assert differences(requests, recorded)


def test_a_hash_that_outlives_its_tokens_is_seen() -> None:
    [prompt] = prompts_of(1, 200)
    with broken(BlockCache, "unpublish", lambda self, blocks: None):
        llm = llm_of({"name": "knorm", "ratio": 0.5})
        first = llm.generate([prompt], GREEDY)
        again = llm.generate([prompt], GREEDY)
        assert again[0].num_cached_tokens > 0
        right = llm_of("none").generate([prompt], Sampling(max_tokens=1))
        assert first[0].completions[0].tokens[0] == right[0].completions[0].tokens[0]
        assert again[0].completions[0].tokens[0] != right[0].completions[0].tokens[0]
