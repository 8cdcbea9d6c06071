"""A model of all four kinds of KV, served over every way to lay its blocks out: tokens, hits and the replay of them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dense_greedy import greedy
from fake_engines import make_llm, noted_steps
from groups_plain import Rule

from framework.engine.engine import Engine, ModelLimits
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.engine.request import Request
from framework.groups.allocator import GroupedAllocator
from framework.llm import LLM, EngineOptions, FaultOptions
from framework.model.loading import LoadedModel, load_model
from framework.sampling import Sampling
from framework_testing.checkpoints import make_checkpoint

pytest.importorskip("framework_models")

SIZE = 4
LAYOUTS: dict[str, dict[str, Any]] = {
    "a pool a group": {},
    "states of 12 tokens": {"group_block_size": {"state": 12, "window": 8}},
    "equal pages": {"memory": "one_pool"},
    "two levels": {"memory": "two_level", "group_block_size": {"chunk": 8, "window": 8}},
}
Asked = list[tuple[list[int], Sampling]]


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


def workload(seed: int, count: int) -> Asked:
    """Prompts that part from a few stems anywhere, and answers of any length."""
    draw, asked = random.Random(seed), []
    stems = [[draw.randrange(4, 250) for _ in range(56)] for _ in range(3)]
    for _ in range(count):
        prompt = draw.choice(stems)[: draw.choice((9, 30, 41, 56))]
        prompt = prompt + [draw.randrange(4, 250) for _ in range(draw.randint(1, 9))]
        asked.append((prompt, Sampling(max_tokens=draw.randint(1, 11), ignore_eos=True)))
    return asked


def replayed(llm: LLM, served: list[Request], asked: Asked, options: EngineOptions) -> tuple[list[Request], Any]:
    """The same requests through the same allocator without a model, and its steps."""
    outputs = {(number, 0): np.array(request.completions[0].tokens, dtype=np.int32)
               for number, request in enumerate(served)}  # fmt: skip
    executor = ReplayExecutor(constant_step(1.0), outputs=outputs)
    limits = ModelLimits(max_model_len=llm.max_model_len)
    engine = Engine(llm._build_allocator(), executor, limits=limits, options=options)
    steps = noted_steps(engine)
    requests = [engine.submit(prompt, sampling, namespace=llm.namespace) for prompt, sampling in asked]
    engine.run(on_step=lambda engine: engine.check())
    return requests, steps


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
    again, steps_again = replayed(llm, served, asked, options)
    assert [one.num_cached_tokens for one in again] == [one.num_cached_tokens for one in served]
    assert steps_again == steps
    stats = llm.stats()
    assert sum(one.num_cached_tokens for one in served) > 60
    assert num_blocks == 300 or stats["num_preemptions"] + stats["num_evictions"] > 0, stats


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hits_are_those_of_vllms_rule_and_of_the_end_of_each_request(model: LoadedModel, layout: str) -> None:
    options = EngineOptions(max_batch_requests=40, max_batch_tokens=64)  # for whose rows nothing is evicted
    llm = make_llm(model, block_size=SIZE, num_blocks=3000, engine=options, **LAYOUTS[layout])
    rule, found, wanted = Rule(llm.groups, ends=True), list[int](), list[int]()
    for prompt, sampling in workload(5, 24):
        request = llm.generate(prompt, sampling)[0]
        found.append(request.num_cached_tokens)
        wanted.append(rule.hit(prompt, [*prompt, *request.completions[0].tokens[:-1]]))
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
