"""conf/config.yaml and the typed sections say the same keys, and a plain dict is checked without Hydra."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from framework import registry
from framework.config import check as settings
from framework.config import sections
from framework.config.check import without_effect
from framework.errors import ConfigError, FrameworkError


@pytest.fixture(scope="module")
def written(repository: Path) -> Any:
    return yaml.safe_load((repository / "conf" / "config.yaml").read_text())


def test_every_section_has_the_keys_of_its_type(written: Any) -> None:
    for name, section in sections.SECTIONS.items():
        assert list(written[name]) == [field.name for field in fields(section)], name


@pytest.mark.parametrize("name", ["engine", "replay", "kernel"])
def test_the_command_line_and_python_share_their_defaults(written: Any, name: str) -> None:
    given = settings.check({name: written[name]})[name]
    for field in fields(sections.SECTIONS[name]):
        value = tuple(given[field.name]) if type(given[field.name]) is list else given[field.name]
        assert value == field.default, f"{name}.{field.name}"


def test_every_top_level_key_and_group_is_known(written: Any) -> None:
    groups = [next(iter(entry)) for entry in written["defaults"] if isinstance(entry, dict)]
    named = {key for key in written if key not in ("defaults", "hydra")}
    named |= {group for group in groups if not group.startswith("override")}
    assert named == {field.name for field in fields(sections.Root)}


def test_the_order_of_the_defaults_lets_an_experiment_win(written: Any) -> None:
    entries = [entry for entry in written["defaults"] if "override" not in str(entry)]
    assert entries[0] == "_self_"
    assert list(entries[-1]) == ["experiment"]


def test_shared_names_are_keys_of_the_configuration() -> None:
    for name, key in registry.SHARED.items():
        section, _, leaf = key.rpartition(".")
        owner = sections.SECTIONS[section] if section else sections.Root
        assert leaf in {field.name for field in fields(owner)}, (name, key)


def test_a_name_alone_is_a_component() -> None:
    checked = settings.check({"eviction": "lru", "allocator": {"name": "prefix", "watermark": 1}, "cache": {}})
    assert checked["eviction"] == {"name": "lru"}
    assert checked["allocator"] == {"name": "prefix", "watermark": 1.0}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"cach": {}}, "did you mean 'cache'"),
        ({"cache": 3}, "cache must be a mapping"),
        ({"cache": {"num_block": 3}}, "did you mean 'num_blocks'"),
        ({"cache": {"memory_fraction": 0}}, "must be above 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"allocator": 3}, "allocator must be a name"),
        ({"allocator": {"watermark": 3}}, "allocator must be a name"),
        ({"allocator": {"name": "prefix", "watermrk": 3}}, "did you mean 'watermark'"),
        ({"model": None}, "model must be a name"),
    ],
)
def test_what_does_not_fit_is_refused(config: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings.check(config)
    assert says in str(caught.value)
    assert isinstance(caught.value, FrameworkError)


def test_engine_settings_that_a_mode_never_reads_are_said() -> None:
    engine = {"compile": True, "cuda_graphs": "auto", "tensor_parallel_size": 2, "chunk_size": 8}
    assert without_effect({"mode": "serve", "engine": engine}) == []
    assert without_effect({"mode": "replay", "engine": {"chunk_size": 8}}) == []
    assert without_effect({"mode": "replay", "engine": engine}) == [
        "no effect in mode=replay: engine.compile=True, engine.tensor_parallel_size=2"
    ]
    (said,) = without_effect({"mode": "replay", "executor": "cache_only", "engine": engine})
    assert "mode=replay executor=cache_only" in said, said
    assert "engine.chunk_size=8" in said, said
    assert without_effect({"mode": "kernel", "engine": {}}) == []
