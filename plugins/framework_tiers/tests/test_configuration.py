"""Tiers in a configuration: what is refused, and what identity and results make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from framework import registry
from framework.api import run
from framework.config.check import parse
from framework.errors import ConfigError, InvalidPlugin, UnknownPlugin
from framework.sweep.identity import components, inputs
from framework_report.records import settings_of
from framework_tiers.plugin import Tiers

CACHE_ONLY = {"mode": "cache_only", "run": {"dir": "somewhere"}}
HOST = {"store": "host", "num_blocks": 4}
PCIE = {"bytes_per_s": 25e9, "operation_s": 1e-4}


def below(*tiers: Any, **options: Any) -> dict[str, Any]:
    return {"below": {"name": "tiers", "tiers": list(tiers), **options}}


def test_a_tier_has_a_store_a_size_and_a_policy_and_parses_again_as_itself() -> None:
    config = parse({**CACHE_ONLY, **below(HOST, {"store": None, "num_blocks": 9})})
    assert parse(config.plain()) == config
    made = Tiers(**config.below.options)
    assert made.tiers == (
        {"store": {"name": "host"}, "eviction": {"name": "lru"}, "num_blocks": 4, **PCIE},
        {"store": {"name": "null"}, "eviction": {"name": "lru"}, "num_blocks": 9, **PCIE},
    )
    assert (made.tiering, made.names()) == ({"name": "on_eviction"}, {"tiering": "on_eviction"})


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"below": "tiers"}, ConfigError, "needs a value for 'tiers'; set below.tiers="),
        (below(), ConfigError, r"below.tiers must be a list of mappings, found \[\]"),
        ({"below": {"name": "tiers", "tiers": "host"}}, ConfigError, "below.tiers must be a list, found 'host'"),
        (below("host"), ConfigError, r"below.tiers\[0\] must be a mapping"),
        (below({"num_blocks": 4}), ConfigError, r"^below.tiers\[0\] has no store"),
        (below(HOST, {"store": "host"}), ConfigError, r"tiers\[1\] has no num_blocks; as in \{store"),
        (below({**HOST, "num_blocks": 0}), ConfigError, "num_blocks must be at least 1, found 0"),
        (below({**HOST, "blocks": 4}), ConfigError, "unknown key 'below.tiers.blocks'"),
        (below({**HOST, "store": "hots"}), UnknownPlugin, "did you mean 'host'"),
        (below({**HOST, "eviction": "lrv"}), UnknownPlugin, "did you mean 'lru'"),
        (below({**HOST, "store": "disk"}), ConfigError, "store 'disk' needs a value for 'path'"),
        (below(*[HOST] * 5), ConfigError, "tiers has 5 entries; at most 4"),
        (below({**HOST, "bytes_per_s": 0}), ConfigError, "bytes_per_s must be above 0"),
        (below(HOST, tiering="no"), UnknownPlugin, "no tiering named 'no'"),
        ({**below(HOST), "mode": "kernel"}, ConfigError, "mode=kernel, which has no cache"),
    ],
)  # fmt: skip
def test_tiers_that_cannot_be_run_are_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        parse({**CACHE_ONLY, **change})


def test_a_pool_whose_policy_declines_content_takes_no_tiers(tmp_path: Path) -> None:
    drawn = {"workload": "conversations", "run": {"dir": str(tmp_path / "run"), "progress": False}}
    with pytest.raises(ConfigError, match="Optimum may decline"):
        run({**CACHE_ONLY, **drawn, "eviction": "optimum", **below(HOST)})


def test_stores_policies_and_the_rule_are_components_and_settings_of_a_run(tmp_path: Path) -> None:
    disk = {"store": {"name": "disk", "path": "kv"}, "eviction": {"name": "lru_k", "k": 3}, "num_blocks": 9}
    config = {"mode": "replay", "executor": "none", **below(HOST, disk, tiering={"name": "on_second_hit", "uses": 2})}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    settings = settings_of(tmp_path, ())
    assert {key: value for key, value in settings.items() if key.startswith("below")} == {
        "below": "tiers",
        "below.tiering": "on_second_hit",
        "below.tiering.uses": 2,
        "below.tiers.1.store": "host",
        "below.tiers.1.num_blocks": 4,
        "below.tiers.2.store": "disk",
        "below.tiers.2.store.path": "kv",
        "below.tiers.2.eviction": "lru_k",
        "below.tiers.2.eviction.k": 3,
        "below.tiers.2.num_blocks": 9,
    }
    assert dict(components(config)) == {
        "mode": "replay",
        "below": "tiers", "below.tiering": "on_second_hit", "below.tiers.1.store": "host",
        "below.tiers.2.store": "disk", "below.tiers.2.eviction": "lru_k",
    }  # fmt: skip
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    linked = {"store": {"name": "disk", "path": str(kept)}, "link": str(kept)}
    assert dict(inputs(below(linked))) == {"below.tiers.1.link": kept}, "what a store keeps is no input"


def test_the_kinds_of_tiers_are_found_with_their_kits() -> None:
    assert {"store", "tiering"} <= set(registry.kinds(with_kit=True))
    assert {"store", "tiering"}.isdisjoint(registry.groups())
    assert registry.load("tiering", "never").__module__ == "framework_tiers.rules"
    with pytest.raises(InvalidPlugin, match="is not a subclass of Store"):
        registry.load("store", "framework_tiers.rules:Never")
