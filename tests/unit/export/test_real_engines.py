"""Our policies inside vLLM's own cache code: what they evict there is what they evict in our replay.

Tried with vllm 0.33.0 and sglang 0.5.23; `pip install --no-deps vllm sglang`, see installed_engines.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from engine_stand_ins import Node, StandIn
from installed_engines import SGLANG, VLLM, executed

from framework import registry
from framework.errors import Unsupported
from framework.export import as_vllm
from framework.replay.paths import build_paths
from framework.replay.reference import replay
from framework.workload.traces import WorkloadRequest

CAPACITY = 12
Prompt = tuple[int, ...]


@pytest.fixture(scope="module")
def vllm() -> Iterator[dict[str, Any]]:
    with executed(VLLM) as modules:
        yield modules


@pytest.fixture(scope="module")
def sglang() -> Iterator[dict[str, Any]]:
    with executed(SGLANG) as modules:
        yield modules


def flat(length: int, *, names: int = 40) -> list[Prompt]:
    """One-block prompts, some often."""
    draw = random.Random(3)
    return [(int(draw.paretovariate(0.7)) % names,) for _ in range(length)]


def chains(length: int) -> list[Prompt]:
    """Prompts of one to three blocks that share prefixes."""
    draw = random.Random(3)
    groups = [int(draw.paretovariate(0.7)) % 40 for _ in range(length)]
    return [tuple(100 * group + depth for depth in range(1 + group % 3)) for group in groups]


def in_replay(prompts: Sequence[Prompt], policy: str) -> tuple[list[int], list[Any]]:
    """Hit blocks of each prompt, and (request, path to the block that went), in order, by our own replay."""
    numbers: dict[Prompt, int] = {}
    requests = []
    for i, prompt in enumerate(prompts):
        ids = [numbers.setdefault(prompt[: depth + 1], len(numbers)) for depth in range(len(prompt))]
        tokens = 16 * len(prompt)
        requests.append(
            WorkloadRequest(
                arrival_s=float(i), input_tokens=tokens, output_tokens=1, block_ids=np.array(ids), block_tokens=16
            )
        )
    nodes, gone = list(numbers), []
    found = replay(
        build_paths(requests),
        registry.build("eviction", policy, {}, {"num_blocks": CAPACITY, "block_size": 16, "seed": 0}),
        CAPACITY,
        on_evict=lambda request, node: gone.append((request, nodes[node])),
    )
    return found.request_hits.tolist(), gone


class CpuTier:
    """vLLM's CPUOffloadingManager, called as its scheduler does: load what is there, store the rest, end."""

    def __init__(self, vllm: dict[str, Any], policy: str, module: str | None = None) -> None:
        self.base = vllm["base"]
        self.manager = vllm["manager"].CPUOffloadingManager(CAPACITY, policy, module)
        self.number, self.prompt_of, self.gone = -1, {}, []

    def request(self, prompt: Prompt) -> int:
        self.number += 1
        context = self.base.ReqContext(req_id=str(self.number))
        keys = [self.key(prompt[: depth + 1]) for depth in range(len(prompt))]
        for position, key in enumerate(keys):
            context.set_offload_key_position(key, 16 * (position + 1))
        self.manager.on_new_request(context)
        states = [self.manager.lookup(key, context) is self.base.LookupResult.HIT for key in keys]
        found = keys[: states.index(False)] if False in states else keys
        if found:
            self.manager.prepare_load(found, context)
            self.manager.complete_load(found, context)
        if len(found) < len(keys):
            output = self.manager.prepare_store(keys, context)
            assert output is not None, f"nothing could be stored for {prompt}"
            self.gone += [(self.number, self.prompt_of[key]) for key in output.evicted_keys]
            self.manager.complete_store(output.keys_to_store, context)
        self.manager.on_request_finished(context)
        return len(found)

    def key(self, path: Prompt) -> bytes:
        key: bytes = self.base.make_offload_key(repr(path).encode(), 0)
        self.prompt_of[key] = path
        return key


FLAT = ["lru", "fifo", "mru", "lfu", "clock", "sieve", "s3fifo", "slru", "2q", "arc", "gdsf", "leaf_lru"]
"""Not w_tinylfu: it counts in a sketch of the blocks' keys, which are vLLM's there and the replay's here."""


@pytest.mark.parametrize("policy", FLAT)
def test_vllms_cpu_tier_evicts_what_our_replay_evicts(policy: str, vllm: dict[str, Any]) -> None:
    prompts = flat(1500)
    tier = CpuTier(vllm, f"kvlab_{policy}", "framework.export.vllm")
    hits = [tier.request(prompt) for prompt in prompts]
    expected_hits, expected = in_replay(prompts, policy)
    assert sum(hits) > 0
    assert len(tier.gone) > 100, "a stream that evicts little shows little"
    assert (tier.gone, hits) == (expected, expected_hits)


def test_our_lru_evicts_what_vllms_own_lru_evicts_in_its_cpu_tier(vllm: dict[str, Any]) -> None:
    tiers = CpuTier(vllm, "lru"), CpuTier(vllm, "kvlab_lru", "framework.export.vllm")
    seen = [([tier.request(prompt) for prompt in chains(2000)], tier.gone) for tier in tiers]
    assert len(seen[0][1]) > 100
    assert seen[0] == seen[1]


def test_the_signatures_are_those_our_class_was_written_for(vllm: dict[str, Any]) -> None:
    real = vllm["policies_base"].CachePolicy
    for name in [name for name in vars(StandIn) if not name.startswith("_")]:
        asked = list(inspect.signature(getattr(real, name)).parameters)
        assert asked == list(inspect.signature(getattr(StandIn, name)).parameters), (name, asked)
    later = {name for name in vars(real) if not name.startswith("_")} - set(vars(StandIn))
    assert not later, f"vLLM's CachePolicy has gained {later}"
    made = as_vllm("lru")(4)
    assert isinstance(made, real)
    assert made.evict(0, set()) == []


def test_a_node_has_the_facts_our_strategy_reads(sglang: dict[str, Any]) -> None:
    real, ours = sglang["radix_cache"].TreeNode(), Node(None, "", 0.0)
    lacking = [fact for fact in vars(ours) if not hasattr(real, fact)]
    assert not lacking, f"SGLang's TreeNode has no {lacking}"
    assert sglang["evict_policy"].EvictionStrategy.__abstractmethods__ == {"get_priority"}


def test_a_vllm_of_another_interface_is_refused_by_name(vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(vllm["policies_base"], "CachePolicy")
    with pytest.raises(Unsupported, match="CachePolicy cannot be imported"):
        as_vllm("lru")
