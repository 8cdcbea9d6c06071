"""mode=hybrid on the command line and in a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import Command
from synthetic_workloads import mooncake

from framework.api import run
from framework.config.check import parse, without_effect
from framework.errors import ConfigError
from framework.interfaces.below import Below
from framework.results.catalogue import find
from framework_hybrid.mode import groups_input
from framework_hybrid.plugin import HybridOptions


class Something(Below):
    """Anything below the pool."""


HYBRID: dict[str, Any] = {
    "mode": {"name": "hybrid", "model": "gemma-3-27b"}, "run": {"dir": "somewhere"},
}  # fmt: skip


def test_it_replays_without_what_one_group_has() -> None:
    for executor in ("none", "roofline"):
        assert parse({**HYBRID, "executor": executor}).mode.options == {"model": "gemma-3-27b"}
    refused: dict[str, dict[str, Any]] = {
        "observers=": {"observers": ["explain"], "mode": {**HYBRID["mode"], "cache_only": True}},
        "scheduling=": {"scheduling": "longest_prefix", "mode": {**HYBRID["mode"], "cache_only": True}},
        "below=": {"below": f"{__file__}:Something"},
        "allocator=radix": {"allocator": "radix"},
        "cache.kv_dtype": {"cache": {"kv_dtype": "int8"}},
        r"replay\.optimum=True": {"replay": {"optimum": True}},
    }  # fmt: skip
    for found, changed in refused.items():
        with pytest.raises(ConfigError, match=found):
            parse({**HYBRID, **changed})
    for wrong, said in (({}, "needs a value for 'model'"), ({"model": "x", "order": "mru"}, "coupled")):
        with pytest.raises(ConfigError, match=said):
            parse({**HYBRID, "mode": {"name": "hybrid", **wrong}})


def test_only_the_counted_replay_reads_nothing_of_the_engine() -> None:
    engine = {"engine": {"chunk_size": 8}}
    assert without_effect(parse({**HYBRID, **engine})) == []
    counted = {"mode": {**HYBRID["mode"], "cache_only": True}}
    assert without_effect(parse({**HYBRID, **counted, **engine})) == ["no effect in mode=hybrid: engine.chunk_size=8"]


@pytest.mark.parametrize(("cache_only", "model"), [(True, "qwen3-next-80b"), (False, "gemma-3-27b")])
def test_every_key_of_its_result_is_declared(cache_only: bool, model: str, tmp_path: Path) -> None:
    trace = mooncake(tmp_path / "trace.jsonl", ([1, 2, 3 + at] for at in range(4)))
    result = run({
        **HYBRID, "mode": {"name": "hybrid", "model": model, "cache_only": cache_only},
        "workload": {"name": "trace", "path": str(trace)}, "cache": {"num_blocks": 8, "block_size": 512},
        "run": {"dir": str(tmp_path / "run"), "progress": False},
    })  # fmt: skip
    assert (result["mode"], "allocator" in result) == ("hybrid", False)
    assert not [key for key in result if find(key) is None]


@pytest.mark.parametrize(
    ("given", "num_blocks", "pages"),
    [({"replay": {"capacity": "6.25GiB"}}, 825, 5120), ({"cache": {"num_blocks": 825, "block_size": 16}}, 825, 5115)],
)
def test_a_capacity_in_bytes_is_all_the_pages_that_it_holds(given: Any, num_blocks: int, pages: int) -> None:
    """A page has 10 layers of 16 tokens, a block of all layers 6.2 pages."""
    config = parse({**HYBRID, "cache": {"block_size": 16}, **given})
    asked = groups_input(config, HybridOptions(model="gemma-3-27b"), [])
    assert (asked.num_blocks, asked.memory.pools[0].num_blocks) == (num_blocks, pages)


def test_a_hybrid_model_is_replayed_by_name(command: Command, tmp_path: Path) -> None:
    prompts = ([1, 2, 3, 4 + at, 9 + at, 20] for at in range(4))
    mooncake(tmp_path / "trace.jsonl", prompts, every_ms=1, input_length=2600)
    words = ("+mode=hybrid", "mode.model=qwen3-next-80b", "mode.cache_only=true", "workload=trace",
             f"workload.path={tmp_path}/trace.jsonl",
             "cache.block_size=512", "replay.capacity=1GiB", "run.progress=false")  # fmt: skip
    command.ok(
        *words, f"run.dir={tmp_path}/run",
        "cache.memory=pool_per_group", "mode.rule=every", "mode.interval=512", "mode.order=marconi",
    )  # fmt: skip
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["hit_tokens"], result["state_lost_tokens"], result["prompt_tokens"]) == (3 * 1536, 0, 4 * 2600), (
        result
    )
    assert result["bound_hit_tokens"] >= result["hit_tokens"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "requests.jsonl").read_text().splitlines()]
    assert [line["cached_tokens"] for line in lines] == [0, 1536, 1536, 1536]
    status, _, errors = command(*words, "cache.memory=two_level", "mode.order=quota",
                                f"run.dir={tmp_path}/refused")  # fmt: skip
    assert (status, "order=quota cannot lead here" in errors) == (2, True), errors
