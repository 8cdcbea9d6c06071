"""Settings of a run as flat keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from framework.results.settings import settings_of

TIERS = [
    {"store": {"name": "host"}, "eviction": {"name": "lru"}, "num_blocks": 4},
    {"store": {"name": "disk", "path": "p"}, "eviction": {"name": "lru_k", "k": 3}, "num_blocks": 9},
]


def settings(folder: Path, **config: Any) -> dict[str, Any]:
    (folder / "config.yaml").write_text(yaml.safe_dump({"tiering": {"name": "on_second_hit", "uses": 2}, **config}))
    return settings_of(folder, ())


def test_a_tier_s_settings_stand_under_its_number(tmp_path: Path) -> None:
    found = settings(tmp_path, mode="replay", executor="cache_only", tiers=TIERS, replay={"shape": "tiny"})
    assert {key: value for key, value in found.items() if key.startswith("tier")} == {
        "tiering": "on_second_hit",
        "tiering.uses": 2,
        "tiers.1.store": "host",
        "tiers.1.eviction": "lru",
        "tiers.1.num_blocks": 4,
        "tiers.2.store": "disk",
        "tiers.2.store.path": "p",
        "tiers.2.eviction": "lru_k",
        "tiers.2.eviction.k": 3,
        "tiers.2.num_blocks": 9,
    }
    assert found["replay.shape"] == "tiny", "bytes moved are of this shape"


def test_where_there_are_no_tiers_the_rule_is_no_setting(tmp_path: Path) -> None:
    for mode in (
        {"mode": "serve"},
        {"mode": "kernel"},
        {"mode": "replay"},
        {"mode": "replay", "executor": "cache_only", "tiers": []},
    ):
        assert not [key for key in settings(tmp_path, **mode) if key.startswith("tier")], mode
