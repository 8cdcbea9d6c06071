"""Models of full attention beside windows or states, served over a group of KV each: tokens, bytes and refusals."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_greedy import greedy
from fake_engines import finished, make_llm, noted_steps
from groups_served import hits_and_those_of_the_rule, replayed, workload
from static_backend import StaticBackend

from framework.config.check import parse
from framework.engine.engine import Engine
from framework.engine.request import Request
from framework.engine.warm_up import warm_up
from framework.errors import ConfigError, FrameworkError, OutOfMemory
from framework.groups.allocator import GroupedAllocator
from framework.groups.memory import Memory
from framework.groups.pool import Pool
from framework.llm import LLM, CacheOptions, EngineOptions, FaultOptions
from framework.model.loading import LoadedModel, load_model
from framework.sampling import Sampling
from framework_builtin.eviction.lru import Lru
from framework_testing.attention_runs import ReplayRecorder
from framework_testing.checkpoints import make_checkpoint

pytest.importorskip("framework_models")

WINDOW, SIZE = 20, 4
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3_text", {"sliding_window": WINDOW, "num_hidden_layers": 7, "query_pre_attn_scalar": 24}),
    "gpt_oss": ("gpt_oss", {"sliding_window": WINDOW, "num_local_experts": 6, "num_experts_per_tok": 2}),
}
STATES = {
    "num_hidden_layers": 5, "full_attention_interval": 3, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 12,
}  # fmt: skip
SHARED = [(7 * i) % 250 + 4 for i in range(48)]
PROMPTS = [[*SHARED, 100 + i, 9, 4 + i] for i in range(4)] + [SHARED[:30], [5, 6, 7]]


@pytest.fixture(scope="module")
def windows(tmp_path_factory: Any) -> dict[str, LoadedModel]:
    return {
        name: load_model(make_checkpoint(tmp_path_factory.mktemp(family), family, **overrides))
        for name, (family, overrides) in CASES.items()
    }


@pytest.fixture(params=CASES)
def model(request: Any, windows: dict[str, LoadedModel]) -> LoadedModel:
    return windows[request.param]


@pytest.fixture(scope="module")
def states(tmp_path_factory: Any) -> LoadedModel:
    return load_model(make_checkpoint(tmp_path_factory.mktemp("qwen3_5"), "qwen3_5_text", **STATES))


@pytest.fixture(params=["gemma3", "qwen3_5"])
def mixed(request: Any) -> LoadedModel:
    if request.param == "qwen3_5":
        return request.getfixturevalue("states")  # type: ignore[no-any-return]
    return request.getfixturevalue("windows")[request.param]  # type: ignore[no-any-return]


def serve(model: LoadedModel, sampling: Sampling, *, passes: int = 1, **options: Any) -> tuple[LLM, list[Request]]:
    options = {"num_blocks": 160, "backend": "torch", "faults": FaultOptions(poison=True)} | options
    engine = options.pop("engine", EngineOptions(chunk_size=16, max_batch_requests=8, max_batch_tokens=64))
    llm = make_llm(model, block_size=SIZE, engine=engine, **options)
    for _ in range(passes):
        requests = llm.generate(PROMPTS, sampling)
    llm.engine.check()
    return llm, requests


GREEDY = Sampling(max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize(
    ("mixed", "options"),
    [
        ("gemma3", {"allocator": "prefix", "backend": "gather"}),
        ("gemma3", {"num_blocks": 34, "faults": FaultOptions(poison=True, preempt_every=7)}),
        ("gemma3", {"num_blocks": 30, "faults": FaultOptions(poison=True, preempt_every=7), "memory": "one_pool"}),
        ("qwen3_5", {"allocator": "naive"}),
        ("qwen3_5", {"num_blocks": 34, "faults": FaultOptions(poison=True, preempt_every=7)}),
        ("qwen3_5", {"engine": EngineOptions(chunk_size=5, max_batch_tokens=11, max_batch_requests=3)}),
    ],
    ids=["prefix", "preemption of windows", "preemption in one pool", "naive", "preemption of states", "small chunks"],
    indirect=["mixed"],
)
def test_tokens_are_greedy_with_hits_chunks_and_preemption(mixed: LoadedModel, options: dict[str, Any]) -> None:
    llm, requests = serve(mixed, GREEDY, passes=2, **options)
    assert isinstance(llm.allocator, GroupedAllocator)
    assert finished(requests) == [[greedy(mixed.decoder, prompt, 24).tokens] for prompt in PROMPTS]
    if options.get("allocator") != "naive":
        assert sum(request.num_cached_tokens for request in requests) > 40
    if "num_blocks" in options:
        assert llm.stats()["num_preemptions"] > 0


@pytest.mark.parametrize(
    ("mixed", "allocator", "size", "preempt_every"),
    [("gemma3", "prefix_cow", 4, 5), ("gemma3", "cow", 1, 0), ("qwen3_5", "prefix", 7, 5)],
    indirect=["mixed"],
)
def test_forks_and_beams_give_what_no_sharing_gives(
    mixed: LoadedModel, allocator: str, size: int, preempt_every: int
) -> None:
    for sampling in (
        Sampling(max_tokens=14, n=3, temperature=1.0, seed=3, ignore_eos=True),
        Sampling(max_tokens=14, beam_width=3, ignore_eos=True),
    ):
        faults = FaultOptions(poison=True, preempt_every=preempt_every)
        llm = make_llm(mixed, block_size=size, num_blocks=640, allocator=allocator, faults=faults)
        apart = LLM(mixed, cache=CacheOptions(block_size=size, num_blocks=640), allocator="naive")
        assert len(llm.groups) == 2, llm.kv_groups_off
        for _ in range(2):
            found, wanted = llm.generate(PROMPTS, sampling), apart.generate(PROMPTS, sampling)
            assert finished(found) == finished(wanted)
        llm.engine.check()
        assert llm.stats()["num_forks"] > 0


def test_bytes_are_those_of_the_window(model: LoadedModel) -> None:
    """A prompt of 160 tokens in chunks of 8, then 40 more: the window's layers never hold more than the window."""
    config, chunk = model.config, 8
    slides = sum(map(config.slides, range(config.num_layers)))
    token_bytes = 2 * config.num_kv_heads * config.head_dim * 4  # K and V of a layer, float32
    most: list[int] = []

    def note(engine: Engine) -> None:
        assert isinstance(engine.allocator, GroupedAllocator)
        most.append(engine.allocator.memory.pools[1].used)

    engine = EngineOptions(chunk_size=chunk, max_batch_requests=2, max_batch_tokens=16)
    llm = LLM(model, cache=CacheOptions(block_size=SIZE, num_blocks=60), engine=engine)
    llm.submit([(5 * i) % 200 + 4 for i in range(160)], Sampling(max_tokens=40, ignore_eos=True))
    llm.drain(on_step=note)
    stats, needed = llm.stats(), -(-(WINDOW - 1 + chunk) // SIZE) + 1
    assert stats["window_peak_used_bytes"] <= needed * SIZE * slides * token_bytes, stats
    assert max(most[30:]) == -(-(WINDOW - 1) // SIZE) + 1, "19 tokens touch at most 6 blocks of 4"
    assert stats["full_peak_used_bytes"] == 50 * SIZE * (config.num_layers - slides) * token_bytes, stats
    window = 2 * (5 + 2) + 4
    assert llm.group_blocks[1] == window, "2 rows of 5 blocks of window and 2 more, and 16 tokens a step"
    pool = (61 * (config.num_layers - slides) + (window + 1) * slides) * SIZE * token_bytes
    assert (stats["kv_bytes"], stats["window_bytes"]) == (pool, window * SIZE * slides * token_bytes), stats
    whole = make_llm(model, block_size=SIZE, num_blocks=60, engine=engine, hash="xxh64")
    assert whole.stats()["kv_bytes"] == 61 * config.num_layers * SIZE * token_bytes > pool


def test_a_share_of_memory_holds_more_where_the_window_spares_some(model: LoadedModel, monkeypatch: Any) -> None:
    monkeypatch.setattr("framework.engine.pool.free_bytes", lambda device: 4 * 2**20)
    engine = EngineOptions(max_batch_requests=2, max_batch_tokens=16)
    groups, one = (
        make_llm(model, block_size=SIZE, memory_fraction=0.5, engine=engine, hash=hash) for hash in ("sha256", "xxh64")
    )
    assert groups.num_blocks > one.num_blocks
    assert 0 <= one.kv_bytes - groups.kv_bytes < 2 * groups.groups[0].block_bytes + groups.groups[1].block_bytes


@pytest.mark.parametrize(
    ("name", "memory"),
    [("gemma3", "two_level"), ("gemma3", "one_pool"), ("qwen3_5", None), ("qwen3_5", "one_pool")],
)
def test_captured_steps_over_groups_give_greedy_tokens_after_a_warm_up(
    name: str, memory: str | None, request: Any
) -> None:
    model = request.getfixturevalue("states" if name == "qwen3_5" else "windows")
    model = copy.deepcopy(model if isinstance(model, LoadedModel) else model[name])  # others' packed weights stay there
    llm = make_llm(model, block_size=SIZE, num_blocks=40, backend=StaticBackend(), memory=memory, max_model_len=64,
                   max_batch_requests=3, max_batch_tokens=52, prepack=False, poison=True)  # fmt: skip
    assert len(llm.groups) > 1, llm.kv_groups_off
    warm_up(llm.executor, llm.engine.state.rows, llm.sizes, EngineOptions(max_batch_requests=1, max_batch_tokens=9))
    llm.executor.capture(ReplayRecorder(), (3,))  # type: ignore[attr-defined]
    prompts, sampling = PROMPTS[3:5], Sampling(max_tokens=7, ignore_eos=True)
    assert finished(llm.generate(prompts, sampling)) == [[greedy(model.decoder, one, 7).tokens] for one in prompts]
    assert llm.stats()["graph_steps"] >= 5
    null = [stored[0] for group in range(len(llm.groups)) for stored in llm.pool.tensors_of(group)]
    assert not any(block.any() for block in null), "rows that pad a step write nothing"
    llm.engine.check()


@pytest.mark.slow
def test_compiled_recurrent_layers_give_greedy_tokens(states: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced into one graph as always; nothing is generated from it, which takes minutes."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    options = EngineOptions(max_batch_requests=3, max_batch_tokens=52, prepack=False, compile=True)
    _, found = serve(states, Sampling(max_tokens=7, ignore_eos=True), engine=options)
    assert finished(found) == [[greedy(states.decoder, prompt, 7).tokens] for prompt in PROMPTS]


def test_groups_of_one_pool_have_equally_many_layers_in_the_same_tensors(windows: dict[str, LoadedModel]) -> None:
    """Seven layers of Gemma 3, one of them of full attention: seven groups of one layer, and one pair of tensors."""
    model = windows["gemma3"]
    llm, _ = serve(model, GREEDY, memory="one_pool", num_blocks=50)
    config, stats = model.config, llm.stats()
    page = 2 * SIZE * config.num_kv_heads * config.head_dim * 4  # K and V of a layer, float32
    assert [group.name for group in llm.groups] == ["full", *(f"window{number}" for number in range(6))]
    assert {group.block_bytes for group in llm.groups} == {page}
    assert llm.group_blocks == (50 * 7,) * 7
    assert len({layer.k.data_ptr() for layer in llm.pool.layers}) == 1
    assert (stats["shared_bytes"], stats["kv_bytes"]) == (350 * page, 351 * page)
    assert stats["shared_peak_used_bytes"] <= stats["shared_bytes"]


def test_one_pool_serves_what_a_replay_of_it_hits(windows: dict[str, LoadedModel]) -> None:
    """Little room: contents of one group make place for those of another, and tokens stay the dense model's."""
    model, asked = windows["gemma3"], workload(1, 24)
    options = EngineOptions(max_batch_requests=4, max_batch_tokens=48, chunk_size=20)
    llm = make_llm(model, block_size=SIZE, num_blocks=34, memory="one_pool", engine=options,
                   faults=FaultOptions(poison=True))  # fmt: skip
    served = [llm.submit(prompt, sampling) for prompt, sampling in asked]
    llm.drain(on_step=lambda engine: engine.check())
    for (prompt, sampling), request in zip(asked, served, strict=True):
        assert request.completions[0].tokens == greedy(model.decoder, prompt, sampling.max_tokens).tokens
    assert llm.stats()["full_evictions"] > 0 < llm.stats()["window_evictions"]
    again, _, _ = replayed(llm, served, asked, options)
    assert [request.num_cached_tokens for request in again] == [request.num_cached_tokens for request in served]
    assert sum(request.num_cached_tokens for request in served) > 100


class Sized(Lru):
    """Knows how many blocks its pool has."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self.num_blocks = num_blocks


def test_a_policy_knows_its_pools_blocks_and_one_pool_takes_an_object(windows: dict[str, LoadedModel]) -> None:
    options: dict[str, Any] = {"block_size": SIZE, "num_blocks": 30, "eviction": Sized}
    llm = make_llm(windows["gemma3"], memory="one_pool", **options)
    assert (llm.policy.num_blocks, llm.group_blocks[0]) == (210, 210)  # type: ignore[attr-defined]
    llm = make_llm(windows["gemma3"], **options, max_batch_requests=1, max_batch_tokens=8)
    pools = llm.allocator.memory.pools  # type: ignore[attr-defined]
    assert [pool.host.policy.plugin.num_blocks for pool in pools] == list(llm.group_blocks) == [30, 9]
    for memory, says in (("one_pool", ""), (None, "a policy that is an object: each pool has its own")):
        llm = make_llm(windows["gemma3"], memory=memory, **options | {"eviction": (own := Sized(7))})
        assert llm.kv_groups_off == (says and f"no groups with {says}")
        assert llm.policy is own


def test_forks_and_beams_over_one_pool_give_what_no_sharing_gives(windows: dict[str, LoadedModel]) -> None:
    model = windows["gemma3"]
    for sampling in (
        Sampling(max_tokens=14, n=3, temperature=1.0, seed=3, ignore_eos=True),
        Sampling(max_tokens=14, beam_width=3, ignore_eos=True),
    ):
        faults = FaultOptions(poison=True, preempt_every=5)
        llm = make_llm(model, block_size=SIZE, num_blocks=640, memory="one_pool", faults=faults)
        apart = LLM(model, cache=CacheOptions(block_size=SIZE, num_blocks=640), allocator="naive")
        for _ in range(2):
            assert finished(llm.generate(PROMPTS, sampling)) == finished(apart.generate(PROMPTS, sampling))
        llm.engine.check()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_layers_that_share_tensors_have_scales_of_their_own(windows: dict[str, LoadedModel], dtype: str) -> None:
    model, found = windows["gemma3"], []
    for memory in ("one_pool", None):
        llm = make_llm(model, block_size=SIZE, num_blocks=60, memory=memory, kv_dtype=dtype)
        found.append([llm.generate(PROMPTS, GREEDY) for _ in range(2)])
        scales = [layer.k_scale for layer in llm.pool.layers]
    assert [finished(requests) for requests in found[0]] == [finished(requests) for requests in found[1]]
    assert len({scale.data_ptr() for scale in scales if scale is not None}) == len(scales)


REFUSED_MEMORIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "unequal pages": ("gemma3", {"memory": "one_pool", "group_block_size": {"window": 8}}, "OnePool keeps blocks of"),
    "few pages": ("gemma3", {"memory": "two_level", "num_blocks": 1}, "pages of the least common multiple have"),
    "no room": ("qwen3_5", {"memory": "one_pool", "num_blocks": 1}, "a request of one token needs"),
    "no such kind": ("gemma3", {"group_block_size": {"chunk": 8}}, "cache.group_block_size has 'chunk'"),
    "full attention": ("gemma3", {"group_block_size": {"full": 8}}, "cache.group_block_size has 'full'"),
    "no multiple": ("qwen3_5", {"group_block_size": {"state": 10}}, "10 tokens are no multiple of the 4"),
    "blocks of one group": ("tiny", {"group_block_size": {"state": 8}}, "model 'tiny' has one; leave it out"),
    "one table": ("gemma3", {"memory": "one_pool", "allocator": "radix"}, "no groups with|for one table"),
    "unknown": ("gemma3", {"memory": "one_poll"}, "did you mean 'one_pool'"),
    "one group": ("tiny", {"memory": "one_pool"}, "model 'tiny' has one; leave it out"),
}


def test_a_memory_without_a_name_is_refused_and_not_the_default() -> None:
    with pytest.raises(ConfigError, match="memory must be a name, or a mapping with a name"):
        parse({"cache": {"memory": {}}})


@pytest.mark.parametrize("name", REFUSED_MEMORIES)
def test_a_memory_that_cannot_be_served_over_is_refused(
    name: str, request: Any, windows: dict[str, LoadedModel]
) -> None:
    which, options, says = REFUSED_MEMORIES[name]
    model = request.getfixturevalue("states") if which == "qwen3_5" else windows.get(which, "tiny")
    with pytest.raises(FrameworkError, match=says):
        make_llm(model, block_size=SIZE, **{"num_blocks": 60} | options)


class ByTurns(Memory):
    """Somebody's own: pools that are as large as they are asked for, without saying more."""

    def make_pools(self, policy: Any, *, num_bytes: int, num_blocks: Sequence[int]) -> Sequence[Pool]:
        return [Pool(count, policy(count), self.clock) for count in num_blocks]


def test_a_memory_of_ones_own_serves(windows: dict[str, LoadedModel]) -> None:
    path, model = f"{__file__}:ByTurns", windows["gpt_oss"]
    llm, requests = serve(model, GREEDY, memory=path)
    assert finished(requests) == [[greedy(model.decoder, prompt, 24).tokens] for prompt in PROMPTS]
    assert type(llm.allocator.memory).__name__ == "ByTurns"  # type: ignore[attr-defined]


@pytest.mark.parametrize("memory", [pytest.param(None, marks=pytest.mark.slow), "one_pool"])
def test_windows_are_a_group_on_every_rank(tmp_path: Path, memory: str | None) -> None:
    family, overrides = CASES["gemma3"]
    folder = make_checkpoint(tmp_path, family, **overrides)
    model, prompts = load_model(folder), PROMPTS[:4]
    engine = EngineOptions(tensor_parallel_size=2, chunk_size=16, max_batch_requests=8, max_batch_tokens=64)
    faults = FaultOptions(poison=True, preempt_every=7)
    with make_llm(str(folder), block_size=SIZE, num_blocks=34, engine=engine, faults=faults, memory=memory) as llm:
        assert len(llm.groups) == (7 if memory else 2), llm.kv_groups_off
        for hits in ([0, 0, 16, 16], [0 if memory else 48] * 4):  # what the pool of all groups gives up sooner
            found = llm.generate(prompts, GREEDY)
            assert finished(found) == [[greedy(model.decoder, prompt, 24).tokens] for prompt in prompts]
            assert [request.num_cached_tokens for request in found] == hits
        assert llm.stats()["num_preemptions"] > 0


def test_after_a_reset_the_groups_are_empty_and_serve_again(mixed: LoadedModel) -> None:
    llm, requests = serve(mixed, GREEDY)
    wanted = finished(requests)
    llm.reset()
    assert isinstance(llm.allocator, GroupedAllocator)
    assert llm.allocator.memory.pools[1].unreferenced == 0
    assert finished(llm.generate(PROMPTS, GREEDY)) == wanted


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "radix": ({"allocator": "radix"}, "for one table; prefix and prefix_cow have not"),
    "contiguous": ({"allocator": "contiguous"}, "one table a request and one index"),
    "weak_hash": ({"hash": "xxh64"}, "collision-resistant hash"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_groups_cannot_serve_has_one_table_and_says_why(model: LoadedModel, name: str) -> None:
    options, says = REFUSED[name]
    with make_llm(model, block_size=SIZE, num_blocks=60, **options) as llm:
        assert says in llm.stats()["kv_groups_off"]
        found = llm.generate(PROMPTS[:2], GREEDY)
        assert finished(found) == [[greedy(model.decoder, prompt, 24).tokens] for prompt in PROMPTS[:2]]


def test_a_model_of_one_kind_has_no_groups(tmp_path: Path) -> None:
    llm = LLM(load_model(make_checkpoint(tmp_path, "llama")), cache=CacheOptions(block_size=SIZE, num_blocks=40))
    assert (llm.groups, llm.kv_groups_off, llm.group_blocks) == ((), "", ())
    assert not {"window_bytes", "kv_groups_off"} & llm.stats().keys()
    assert llm.engine.state.guarded.groups == ()


def test_few_states_are_kept_and_at_the_places_that_later_prompts_resume_from(states: LoadedModel) -> None:
    prompt, s = [(7 * i) % 250 + 4 for i in range(50)], Sampling(max_tokens=9, ignore_eos=True)
    llm = make_llm(states, block_size=SIZE, num_blocks=160, max_batch_requests=2, max_batch_tokens=32)
    assert isinstance(llm.allocator, GroupedAllocator)
    answer = llm.generate(prompt, s)[0].completions[0].tokens
    # 58 tokens are computed, the last chosen one is not: states after 48, before the prompt's last token, and 56.
    assert llm.allocator.memory.pools[1].unreferenced == 2
    assert llm.generate(prompt, s)[0].num_cached_tokens == 48
    assert llm.generate([*prompt, *answer], s)[0].num_cached_tokens == 56
    first, second = (llm.generate([*prompt[:30], *tail], s)[0] for tail in ([5] * 9, [6] * 9))
    assert first.num_cached_tokens == 0, "no state lies where these prompts part from the first one"
    assert second.num_cached_tokens == 28, "they part at 30 tokens, which the first of them made known"
    assert llm.stats()["state_lost_tokens"] == 28


def test_served_hits_are_those_of_vllms_rule_and_of_the_end_of_each_request(mixed: LoadedModel) -> None:
    engine = EngineOptions(max_batch_requests=40, max_batch_tokens=64)  # for whose rows nothing is evicted
    llm = make_llm(mixed, block_size=SIZE, num_blocks=800, engine=engine)
    found, wanted = hits_and_those_of_the_rule(llm, workload(1, 24))
    assert found == wanted
    assert found.count(0) < 12
    assert llm.stats()[f"{llm.groups[1].kind}_evictions"] == 0


@pytest.mark.parametrize("num_blocks", [300, 40])
def test_served_steps_and_hits_are_those_of_a_replay(mixed: LoadedModel, num_blocks: int) -> None:
    """The same allocator without a model, requests in flight; in 40 blocks some are preempted."""
    options = EngineOptions(max_batch_requests=5, max_batch_tokens=48, chunk_size=20)
    llm, asked = make_llm(mixed, block_size=SIZE, num_blocks=num_blocks, engine=options), workload(3, 30)
    steps = noted_steps(llm.engine)
    served = [llm.submit(prompt, sampling) for prompt, sampling in asked]
    llm.drain()
    again, steps_again, num_preemptions = replayed(llm, served, asked, options)
    assert [request.num_cached_tokens for request in again] == [request.num_cached_tokens for request in served]
    assert steps_again == steps
    assert sum(request.num_cached_tokens for request in served) > 300
    assert (num_preemptions, llm.stats()["num_preemptions"]) in (
        [(0, 0)] if num_blocks == 300 else [(count, count) for count in range(1, 99)]
    )


def test_a_prompt_of_one_token_begins_with_no_state(states: LoadedModel) -> None:
    llm = LLM(states, cache=CacheOptions(block_size=SIZE, num_blocks=60))
    for pool in llm.executor.states.values():  # type: ignore[attr-defined]
        pool.blocks[0] = 63  # as in a step that was captured: any numbers, 0.75 each
    for prompt in ([9], [10], [9]):
        assert finished(llm.generate([prompt], GREEDY)) == [[greedy(states.decoder, prompt, 24).tokens]]


def test_bytes_of_states_are_counted(states: LoadedModel) -> None:
    engine = EngineOptions(max_batch_requests=2, max_batch_tokens=32)
    llm = LLM(states, cache=CacheOptions(block_size=SIZE, num_blocks=60), engine=engine)
    channels, layers = 2 * 2 * 8 + 4 * 12, 4
    state = layers * 4 * (4 * 8 * 12 + channels * 3)  # float32
    rows = 2 * 3 + 32 // SIZE
    kv = (5 - layers) * SIZE * 2 * states.config.num_kv_heads * states.config.head_dim * 4
    stats = llm.stats()
    assert (llm.group_blocks[1], stats["state_bytes"], stats["full_bytes"]) == (rows, rows * state, 60 * kv)
    assert llm.kv_bytes == (rows + 1) * state + 61 * kv


@pytest.mark.parametrize("name", REFUSED)
def test_what_states_are_not_served_with_is_refused(states: LoadedModel, name: str) -> None:
    options, says = REFUSED[name]
    with pytest.raises(ConfigError, match=f"recurrent layers.*{says}"):
        make_llm(states, block_size=SIZE, num_blocks=60, **options)


def test_states_that_do_not_fit_are_refused_with_their_bytes(states: LoadedModel, monkeypatch: Any) -> None:
    monkeypatch.setattr("framework.engine.states.free_bytes", lambda device: 1000)
    with pytest.raises(OutOfMemory, match="recurrent states of 14 blocks"):
        make_llm(states, block_size=SIZE, num_blocks=60, max_batch_requests=2, max_batch_tokens=32)
