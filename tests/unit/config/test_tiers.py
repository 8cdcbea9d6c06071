"""Tiers below the pool in a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from framework.api import run
from framework.config.check import parse
from framework.config.hydra.compose import compose
from framework.errors import ConfigError, UnknownPlugin

CACHE_ONLY = {"mode": "replay", "executor": "cache_only", "run": {"dir": "somewhere"}}
HOST = {"store": "host", "num_blocks": 4}
PCIE = {"read_bytes_per_s": 25e9, "write_bytes_per_s": 25e9, "operation_s": 1e-4}


def test_a_tier_has_a_store_a_size_and_a_policy_and_parses_again_as_itself() -> None:
    config = parse({**CACHE_ONLY, "tiering": "on_eviction", "tiers": [HOST, {"store": None, "num_blocks": 9}]})
    assert config.tiers == (
        {"store": {"name": "host"}, "eviction": {"name": "lru"}, "num_blocks": 4, **PCIE},
        {"store": {"name": "null"}, "eviction": {"name": "lru"}, "num_blocks": 9, **PCIE},
    )
    assert parse(config.plain()) == config


def test_without_tiers_the_rule_is_never() -> None:
    config = parse(CACHE_ONLY)
    assert (config.tiers, config.tiering.name) == ((), "never")


def test_the_command_line_takes_a_list() -> None:
    words = ["mode=replay", "executor=cache_only", "+tiering=on_second_hit", "+tiering.uses=3"]
    config = compose([*words, "tiers=[{store: host, num_blocks: 20000, eviction: {name: lru_k, k: 3}}]"])
    assert config.tiers[0].eviction.k == 3
    assert config.tiering.uses == 3


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"tiering": "write_through"}, ConfigError, "tiering=write_through has no tier to move blocks to"),
        ({"tiers": "host"}, ConfigError, "tiers must be a list of mappings, found 'host'"),
        ({"tiers": ["host"]}, ConfigError, r"tiers\[0\] must be a mapping"),
        ({"tiers": [{"num_blocks": 4}]}, ConfigError, r"tiers\[0\] has no store"),
        ({"tiers": [HOST, {"store": "host"}]}, ConfigError, r"tiers\[1\] has no num_blocks; as in \{store"),
        ({"tiers": [{**HOST, "num_blocks": 0}]}, ConfigError, "num_blocks must be at least 1, found 0"),
        ({"tiers": [{**HOST, "blocks": 4}]}, ConfigError, "unknown key 'tiers.blocks'"),
        ({"tiers": [{**HOST, "store": "hots"}]}, UnknownPlugin, "did you mean 'host'"),
        ({"tiers": [{**HOST, "eviction": "lrv"}]}, UnknownPlugin, "did you mean 'lru'"),
        ({"tiers": [{**HOST, "store": "disk"}]}, ConfigError, "store 'disk' needs a value for 'path'"),
        ({"tiers": [HOST] * 5}, ConfigError, "tiers has 5 entries; at most 4"),
        ({"tiers": [{**HOST, "read_bytes_per_s": 0}]}, ConfigError, "read_bytes_per_s must be above 0"),
        ({"tiers": [HOST], "mode": "kernel", "executor": None}, ConfigError, "mode=kernel, which has no cache"),
    ],
)
def test_what_cannot_be_run_is_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        parse({**CACHE_ONLY, **change})


def trace(folder: Path) -> Path:
    rows = [
        {"timestamp": 1000 * i, "input_length": 1024, "output_length": 1, "hash_ids": ids}
        for i, ids in enumerate([[1, 2], [3, 4], [5, 6], [1, 2], [3, 9]])
    ]
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ran(folder: Path, **changes: Any) -> dict[str, Any]:
    config = {
        **CACHE_ONLY,
        "workload": {"name": "trace", "path": str(trace(folder))},
        "cache": {"num_blocks": 2, "block_size": 512},
        "run": {"dir": str(folder / "run"), "progress": False},
    }
    return run({**config, **changes})


def test_a_pool_whose_policy_declines_content_takes_no_tiers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="eviction=optimum may decline"):
        ran(tmp_path, eviction="optimum", tiers=[HOST])
