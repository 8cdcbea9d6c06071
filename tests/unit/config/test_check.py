"""A plain dict becomes a typed configuration, or one sentence on what is wrong; without Hydra."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from framework import registry
from framework.config.check import parse, without_effect
from framework.config.config import GROUPS, SECTIONS, Config, default_choices, default_settings
from framework.config.sections import EngineOptions, RunOptions
from framework.errors import ConfigError, FrameworkError

HERE = {"run": {"dir": "somewhere"}}


def test_absent_keys_have_the_defaults_of_the_command_line() -> None:
    config = parse(HERE)
    assert {group: choice.name for group, choice in config.choices().items()} == {
        group: name for group, name in default_choices().items() if group in GROUPS
    }
    assert config.engine == EngineOptions()
    assert config.run == RunOptions(dir="somewhere")


def test_the_plain_configuration_parses_to_itself() -> None:
    config = parse({**HERE, "mode": "replay", "cache": {"num_blocks": 7}, "eviction": {"name": "lru_k", "k": 3}})
    assert parse(config.plain()) == config
    assert config.plain()["eviction"]["k"] == 3


def test_every_top_level_key_and_group_is_known(repository: Path) -> None:
    written = yaml.safe_load((repository / "conf" / "config.yaml").read_text())
    groups = {group for group in default_choices() if group not in ("experiment", "sweep")}
    assert groups == set(GROUPS)
    assert set(default_settings()) | groups == set(Config.model_fields)
    assert set(written) == {"defaults", "run", "hydra"}, "a setting has its default in config/sections.py"


def test_shared_names_are_keys_of_the_configuration() -> None:
    for name, key in registry.SHARED.items():
        section, _, leaf = key.rpartition(".")
        assert leaf in (SECTIONS[section] if section else Config).model_fields, (name, key)


def test_every_setting_says_what_it_means() -> None:
    for section in (*SECTIONS.values(), Config):
        for name, field in section.model_fields.items():
            if section is not Config or name in default_settings().keys() - SECTIONS.keys():
                assert field.description, f"{section.__name__}.{name}"


def test_a_name_alone_is_a_component() -> None:
    config = parse({**HERE, "eviction": "lru", "allocator": {"name": "prefix", "watermark": 1}})
    assert config.eviction.plain() == {"name": "lru"}
    assert config.allocator.plain() == {"name": "prefix", "watermark": 1.0}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ([], "a configuration is a mapping"),
        ({"cach": {}}, "did you mean 'cache'"),
        ({3: {}}, "unknown key '3'"),
        ({"cache": 3}, "cache must be a mapping, found 3; set its keys, as in cache.KEY=VALUE"),
        ({"cache": {"num_block": 3}}, "unknown key 'cache.num_block'; keys: "),
        ({"cache": {"memory_fraction": 0}}, "cache.memory_fraction must be above 0, found 0"),
        ({"mode": {"name": "kernel", "batch": [4, 0]}}, "mode.batch[1] must be at least 1, found 0"),
        ({"run": {"dir": "x", "timeout_s": math.nan}}, "run.timeout_s must be a finite number, found nan"),
        ({"run": {"dir": "x", "timeout_s": 10**400}}, "run.timeout_s must be a valid number, found"),
        ({"run": {}}, "run.dir has no value; set run.dir=..."),
        ({"run": {"dir": "x", "chunk": 2**64}}, "run.chunk must be at most 9223372036854775807"),
        ({"seed": 10**5000}, "seed must be at most 9223372036854775807"),
        ({"mode": "serve", "executor": "roofline"}, "executor=roofline cannot be in mode=serve"),
        ({"replay": {"costs": "x"}}, "replay.costs times the steps of mode=replay executor=none, found mode=serve"),
        ({"mode": "replay", "executor": "cache_only"}, "cache_only"),
        ({"allocator": 3}, "allocator must be a name"),
        ({"allocator": {"watermark": 3}}, "allocator must be a name"),
        ({"model": None}, "model must be a name"),
    ],
)
def test_what_does_not_fit_is_refused(config: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({**HERE, **config} if isinstance(config, dict) else config)
    assert says in str(caught.value)


_LEAF: Any = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=4), st.dates(),
    st.sampled_from([10**400, -(10**400), 10**4000, 2**63, math.inf, "\ud800", "${mode}", "???", "1e3"]),
)  # fmt: skip
_VALUE = st.recursive(
    _LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_LEAF, inner, max_size=3), max_leaves=5
)
_KEYS = [*(f"{name}.{key}" for name, section in SECTIONS.items() for key in section.model_fields),
         *Config.model_fields, *(f"{kind}.name" for kind in registry.kinds()),
         "allocator.watermark", "cache.nothing", "nothing"]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(_KEYS), _VALUE), min_size=1, max_size=3))
@example([("cache", None)])
@example([("engine.max_batch_tokens", 10**4000)])
@example([("eviction.name", "\ud800")])
def test_any_value_anywhere_is_taken_or_refused_with_a_typed_error(changes: list[tuple[str, Any]]) -> None:
    config: dict[Any, Any] = {"run": {"dir": "somewhere"}}
    for key, value in changes:
        section, _, leaf = key.rpartition(".")
        if not section:
            config[leaf] = value
        elif isinstance(config.setdefault(section, {}), dict):
            config[section][leaf] = value
    try:
        parsed = parse(config)
    except FrameworkError:
        return
    assert parse(parsed.plain()) == parsed


def test_engine_settings_that_a_mode_never_reads_are_named() -> None:
    engine = {"compile": True, "cuda_graphs": "auto", "tensor_parallel_size": 2, "chunk_size": 8}
    assert without_effect(parse({**HERE, "mode": "serve", "engine": engine})) == []
    assert without_effect(parse({**HERE, "mode": "replay", "engine": {"chunk_size": 8}})) == []
    assert without_effect(parse({**HERE, "mode": "replay", "engine": engine})) == [
        "no effect in mode=replay: engine.compile=True"
    ]
    (said,) = without_effect(parse({**HERE, "mode": "replay", "run": {**HERE["run"], "record": True}}))
    assert said == "no effect in mode=replay: run.record=True", "a replay writes no recording"
    assert without_effect(parse({**HERE, "mode": "kernel"})) == []


def test_every_setting_that_only_a_model_reads_has_no_effect_in_a_replay() -> None:
    settings = {"compile": True, "prepack": False, "cuda_graphs": False}
    (said,) = without_effect(parse({**HERE, "mode": "replay", "engine": settings}))
    assert all(f"engine.{name}=" in said for name in settings), said


def test_observers_are_a_list_each_once_and_of_runs_that_they_can_hear() -> None:
    name = "observing:Counts"
    config = parse({**HERE, "observers": [name]})
    assert config.observers == ({"name": name},)
    assert parse(config.plain()) == config
    for changed, said in (
        ({"observers": name}, "observers must be a list"),
        ({"observers": [name, {"name": name}]}, "twice"),
        ({"observers": ["nope"]}, "no observer named"),
        ({"observers": [{"name": name, "x": 1}]}, "no option 'x'"),
        ({"observers": [name], "mode": "kernel"}, "observers cannot be in mode=kernel"),
    ):
        with pytest.raises(FrameworkError, match=said):
            parse({**HERE, **changed})
