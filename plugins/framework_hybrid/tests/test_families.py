"""Every family that keeps more than plain K and V, with every feature at once: the table of docs/layouts.md."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dense_greedy import greedy
from fake_engines import finished, make_llm
from test_recorded import FAMILIES as SMALL
from tier_helpers import over

from framework.llm import LLM, CacheOptions, EngineOptions, FaultOptions
from framework.model.loading import LoadedModel, load_model
from framework.modes.serve import record
from framework.sampling import Sampling
from framework_explain.observer import Explain
from framework_kv_events.observer import EventObserver
from framework_kv_events.schema import BlockStored, Event
from framework_kv_events.stream import EventStream
from framework_testing.checkpoints import make_checkpoint

_STATES = SMALL["qwen3_5_text"]
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 24}  # fmt: skip
_LATENT = {"num_key_value_heads": 4, "head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
           "kv_lora_rank": 32, "q_lora_rank": 24, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4,
           "topk_group": 2, "moe_intermediate_size": 40, "first_k_dense_replace": 1}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama4_text": SMALL["llama4_text"],
    "gemma3_text": SMALL["gemma3_text"],
    "gpt_oss": {"sliding_window": 20, "num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen3_5_text": _STATES,
    "qwen3_5_moe_text": _STATES | _EXPERTS,
    "qwen3_next": _STATES | _EXPERTS,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT | {"index_topk": 24, "index_head_dim": 16, "index_n_heads": 16},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
        "num_hidden_layers": 4,
        "ssm_state_size": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 12,
        "n_groups": 2,
        "n_routed_experts": 8,
        "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 24,
    },
    "kimi_linear": SMALL["kimi_linear"],
}
_SHARED = [(7 * i) % 250 + 4 for i in range(48)]
OTHERS = [[(11 * at + 40 * number) % 250 + 4 for at in range(90)] for number in range(3)]
PROMPTS = [[*_SHARED, 100 + i, 9, 4 + i] for i in range(4)] + [_SHARED[:30], [5, 6, 7]]
SAMPLINGS = (
    Sampling(max_tokens=12, ignore_eos=True), Sampling(max_tokens=8, n=2, temperature=1.0, seed=3, ignore_eos=True),
    Sampling(max_tokens=7, beam_width=3, ignore_eos=True),
)  # fmt: skip


class Kept:
    """A sink that keeps the events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def put(self, sequence: int, step: float, events: Any) -> None:
        self.events += events

    def close(self) -> None: ...

    def facts(self) -> dict[str, Any]:
        return {}


def table() -> dict[str, list[str]]:
    """Family -> the cells of its row, of the table of families and features in the docs."""
    page = (Path(__file__).parents[3] / "docs" / "layouts.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows if row[0].strip(" `") in FAMILIES}


def test_the_docs_have_every_family() -> None:
    assert table().keys() == FAMILIES.keys()


ALIKE = ("gemma3_text", "qwen3_5_moe_text", "qwen3_next", "deepseek_v3")
"""Each has a family beside it here that keeps the same and more: slow tests."""


@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=[pytest.mark.slow] * (family in ALIKE)) for family in FAMILIES]
)
def test_every_feature_at_once_changes_no_token(family: str, tmp_path: Path) -> None:
    shown = seen_of(load_model(make_checkpoint(tmp_path, family, **FAMILIES[family])), tmp_path)
    assert table()[family][-len(shown) :] == ["yes"] * len(shown)


@pytest.mark.parametrize("family", [
    family if family == "qwen3_5_text" else pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES
])  # fmt: skip
def test_two_ranks_give_the_tokens_of_one(family: str, tmp_path: Path) -> None:
    folder = str(make_checkpoint(tmp_path, family, **FAMILIES[family]))
    options: dict[str, Any] = {"block_size": 4, "num_blocks": 44}
    shared = EngineOptions(chunk_size=16, max_batch_requests=6, max_batch_tokens=48)
    faults = FaultOptions(poison=True, preempt_every=9)
    one = make_llm(folder, engine=shared, faults=faults, **options)
    with make_llm(folder, engine=shared.changed(tensor_parallel_size=2), faults=faults, **options) as two:
        for sampling in SAMPLINGS:
            found, alone = two.generate(PROMPTS, sampling), one.generate(PROMPTS, sampling)
            assert finished(found) == finished(alone), sampling
            assert [request.num_cached_tokens for request in found] == [request.num_cached_tokens for request in alone]
        two.engine.check()
        ours, theirs = two.stats(), one.stats()
    assert ours["hit_tokens"] == theirs["hit_tokens"] > 0
    assert ours["num_preemptions"] == theirs["num_preemptions"] > 0
    if one._states:
        assert [2 * states.bytes for states in two._states.values()] == [
            states.bytes for states in one._states.values()
        ]
        assert 2 * ours["state_bytes"] == theirs["state_bytes"]
    assert table()[family][2] == "yes"


@pytest.mark.parametrize(
    "laid_out",
    [
        {},
        {"group_block_size": {"window": 8, "state": 8}},
        {"memory": "one_pool", "num_blocks": 110},
        {"memory": "two_level"},
    ],
    ids=["pools", "block sizes", "equal pages", "two levels"],
)
def test_a_model_may_have_all_four_kinds_of_kv(laid_out: dict[str, Any], tmp_path: Path) -> None:
    types = ["full_attention", "linear_attention", "full_attention", "full_attention", "linear_attention"]
    folder = make_checkpoint(tmp_path, "qwen3_5_text", **_STATES | {"layer_types": types})
    window = {"sliding_window": 10, "sliding_layers": (False, False, True, False, False)}
    chunk = {"attention_chunk": 16, "chunked_layers": (3,)}
    model = load_model(folder, change=lambda config: replace(config, **window, **chunk))
    kinds = (
        ("full", "window", "state") if laid_out.get("memory") == "one_pool" else ("full", "window", "chunk", "state")
    )
    seen_of(model, tmp_path, kinds, **laid_out)


def test_a_chunk_that_is_no_multiple_of_a_block_is_kept_whole_and_the_reason_named(tmp_path: Path) -> None:
    model = load_model(make_checkpoint(tmp_path, "llama4_text", **SMALL["llama4_text"]))
    llm = make_llm(model, block_size=5, num_blocks=40)
    assert (llm.groups, llm.kv_groups_off) == ((), "a chunk of 16 tokens is no multiple of blocks of 5")
    [request] = llm.generate(PROMPTS[:1], SAMPLINGS[0])
    assert [*request.completions[0].tokens] == [*greedy(model.decoder, PROMPTS[0], 12).tokens]


def seen_of(model: LoadedModel, folder: Path, kinds: tuple[str, ...] = (), **laid_out: Any) -> dict[str, bool]:
    """The features, each of which was seen; of a model whose groups of KV have these kinds, if any are given."""
    sink, explain = Kept(), Explain()
    explain._policy = "lru"  # a run would tell it
    engine = EngineOptions(chunk_size=16, max_batch_requests=6, max_batch_tokens=48)
    llm = make_llm(
        model, block_size=4, engine=engine, record=True,
        faults=FaultOptions(poison=True, preempt_every=9),
        observers=(EventObserver(EventStream([sink])), explain),
        below=over([{"store": "host", "num_blocks": 300}], "on_eviction"), **{"num_blocks": 44} | laid_out,
    )  # fmt: skip
    assert kinds in ((), tuple(dict.fromkeys(group.kind for group in llm.groups)))
    alone = LLM(model, cache=CacheOptions(block_size=4, num_blocks=400), allocator="naive")
    served = []
    for sampling in SAMPLINGS:
        found = llm.generate(PROMPTS, sampling)
        assert finished(found) == finished(alone.generate(PROMPTS, sampling)), sampling
        served += found + llm.generate(OTHERS, SAMPLINGS[0])  # which take the room
    assert [[*one.completions[0].tokens] for one in served[: len(PROMPTS)]] == [
        [*greedy(model.decoder, prompt, 12).tokens] for prompt in PROMPTS
    ]
    llm.engine.check()
    stats, account = llm.stats(), explain.account()
    missed = sum(count for outcome, count in account.totals("tokens").items() if outcome != "hit")
    record(llm, served, folder / "recording.jsonl")
    lines = (folder / "recording.jsonl").read_text().splitlines()
    groups = {event.group_idx for event in sink.events if isinstance(event, BlockStored)}
    shown = {
        "hit": stats["hit_tokens"] > 0, "fork": stats["num_forks"] > 0, "beam": len(served[-5].completions) == 3,
        "preemption": stats["num_preemptions"] > 0, "tier": stats["tier1_hit_blocks"] > 0,
        "event": groups == set(range(max(1, len(llm.groups)))),
        "explain": missed + account.totals("tokens")["hit"] == sum(len(one.prompt) for one in served),
        "recording": len(lines) == 1 + len(served) and json.loads(lines[0])["format"] != "",
    }  # fmt: skip
    llm.close()
    assert {name for name, seen in shown.items() if not seen} == set(), shown
    return shown
