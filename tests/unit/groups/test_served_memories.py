"""A model of all four kinds of KV, served over every way to lay its blocks out: tokens, hits and the replay of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from dense_greedy import greedy
from fake_engines import make_llm, noted_steps
from groups_served import hits_and_those_of_the_rule, replayed, workload

from framework.groups.allocator import GroupedAllocator
from framework.llm import EngineOptions, FaultOptions
from framework.model.loading import LoadedModel, load_model
from framework_testing.checkpoints import make_checkpoint

pytest.importorskip("framework_models")

SIZE = 4
LAYOUTS: dict[str, dict[str, Any]] = {
    "a pool a group": {},
    "states of 12 tokens": {"group_block_size": {"state": 12, "window": 8}},
    "equal pages": {"memory": "one_pool"},
    "two levels": {"memory": "two_level", "group_block_size": {"chunk": 8, "window": 8}},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> LoadedModel:
    types = ["full_attention", "linear_attention", "full_attention", "full_attention", "linear_attention"]
    states = {
        "num_hidden_layers": 5, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 12, "layer_types": types,
    }  # fmt: skip
    folder = make_checkpoint(tmp_path_factory.mktemp("four"), "qwen3_5_text", **states)
    window = {"sliding_window": 10, "sliding_layers": (False, False, True, False, False)}
    chunk = {"attention_chunk": 16, "chunked_layers": (3,)}
    return load_model(folder, change=lambda config: replace(config, **window, **chunk))


@pytest.mark.parametrize(("num_blocks", "seed"), [(300, 3), (44, 4)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_are_greedy_and_steps_and_hits_those_of_a_replay(
    model: LoadedModel, layout: str, num_blocks: int, seed: int
) -> None:
    """Requests in flight; in little room some are preempted, and contents of one group make place for another's."""
    options = EngineOptions(max_batch_requests=5, max_batch_tokens=48, chunk_size=20)
    llm = make_llm(model, block_size=SIZE, num_blocks=num_blocks, engine=options, faults=FaultOptions(poison=True),
                   **LAYOUTS[layout])  # fmt: skip
    asked, steps = workload(seed, 20), noted_steps(llm.engine)
    served = [llm.submit(prompt, sampling) for prompt, sampling in asked]
    llm.drain(on_step=lambda engine: engine.check())
    for (prompt, sampling), request in zip(asked, served, strict=True):
        assert request.completions[0].tokens == greedy(model.decoder, prompt, sampling.max_tokens).tokens
    again, steps_again, _ = replayed(llm, served, asked, options)
    assert [one.num_cached_tokens for one in again] == [one.num_cached_tokens for one in served]
    assert steps_again == steps
    stats = llm.stats()
    assert sum(one.num_cached_tokens for one in served) > 60
    assert num_blocks == 300 or stats["num_preemptions"] + stats["num_evictions"] > 0, stats


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hits_are_those_of_vllms_rule_and_of_the_end_of_each_request(model: LoadedModel, layout: str) -> None:
    options = EngineOptions(max_batch_requests=40, max_batch_tokens=64)  # for whose rows nothing is evicted
    llm = make_llm(model, block_size=SIZE, num_blocks=3000, engine=options, **LAYOUTS[layout])
    found, wanted = hits_and_those_of_the_rule(llm, workload(5, 24))
    assert found == wanted
    assert found.count(0) < 14
    assert isinstance(llm.allocator, GroupedAllocator)
    assert not any(llm.allocator.memory.evictions)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gather", "triton"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_backends_read_the_same_blocks(model: LoadedModel, layout: str, backend: str) -> None:
    pytest.importorskip("framework_triton")
    options = EngineOptions(max_batch_requests=3, max_batch_tokens=48, chunk_size=20)
    llm = make_llm(model, block_size=SIZE, num_blocks=60, engine=options, faults=FaultOptions(poison=True),
                   backend=backend, **LAYOUTS[layout])  # fmt: skip
    asked = workload(7, 4)
    served = [llm.submit(prompt, sampling) for prompt, sampling in asked]
    llm.drain(on_step=lambda engine: engine.check())
    for (prompt, sampling), request in zip(asked, served, strict=True):
        assert request.completions[0].tokens == greedy(model.decoder, prompt, sampling.max_tokens).tokens
