"""What cannot be composed is refused in the configuration's words, whichever key it was given to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from framework.config.config import GROUPS, SECTIONS, Config
from framework.config.hydra.compose import compose
from framework.errors import ConfigError


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(["run.dir=x", *overrides])
    return str(caught.value)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_of_another_type_says_what_it_must_be(section: str) -> None:
    assert f"{section} must be a mapping, found " in refusal(f"{section}=x")
    assert refusal(f"{section}={{a: 1}}").startswith(f"unknown key '{section}.a'; keys: ")
    key = f"{section}.{next(iter(SECTIONS[section].model_fields))}"
    assert re.match(rf"{key}(\[0\])? must be .*, found ", refusal(f"{key}=[{{a: 1}}]"))


@pytest.mark.parametrize("key", ["executor", "seed", "device"])
@pytest.mark.parametrize("value", ["{a: 1}", "[[1]]"])
def test_a_setting_of_the_top_says_what_it_must_be(key: str, value: str) -> None:
    assert key in Config.model_fields
    assert re.match(rf"{key}(\[0\])? must be .*, found ", refusal(f"{key}={value}"))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("value", ["{a: 1}", "[]", "[lru]", "[{a: 1}]", "5", "null", ""])
def test_a_component_is_chosen_by_its_name(group: str, value: str) -> None:
    for sign in ("", "+") if value == "[lru]" else ("",):
        said = refusal(f"{sign}{group}={value}")
        assert said.startswith(f"{sign}{group}={value}: the {group} is chosen by its name, set {group}=NAME"), said


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("cache={num_blocks: x}",), "cache.num_blocks must be a valid integer, found 'x'"),
        (("cache.num_blocks.x=1",), "cache.num_blocks must be a valid integer, found {'x': 1}"),
        (("mode=kernel", "mode.lengths=[odd]"), "mode.lengths[0] must be 'uniform' or 'ragged', found 'odd'"),
        (("allocator.watermark=[1]",), "allocator.watermark must be a valid number, found [1]"),
        (("workload.num_requests={a: 1}",), "workload.num_requests must be a valid integer, found {'a': 1}"),
        (("eviction=lru_k", "eviction.k=x"), "eviction.k must be a valid integer, found 'x'"),
        (("model=random", "model.seed=x"), "model.seed must be a valid integer, found 'x'"),
        (("eviction=lru_k", "eviction.kk=3"), "eviction 'lru_k' has no option 'kk'; its options: k, history; did "),
        (("allocator.block_size=8",), "allocator.block_size is shared by all components; set cache.block_size instead"),
        (("cache.blocksize=8",), "unknown key 'cache.blocksize'; keys: "),
        (("seed=1,2",), "cannot compose the configuration: Ambiguous value for argument 'seed=1,2'"),
        (
            ("cache.block_size=4", "engine.chunk_size={a: 1}", "eviction=lru_k", "eviction.k=2"),
            "engine.chu",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_the_sentence_names_what_was_asked_and_found(overrides: tuple[str, ...], says: str) -> None:
    said = refusal(*overrides)
    assert said.startswith(says), said


def test_a_value_that_refers_to_another_is_left_to_its_composition() -> None:
    found: Mapping[Any, Any] = compose(
        ["run.dir=x", "seed=${cache.block_size}", "eviction=lru_k", "eviction.k=${cache.block_size}"]
    )
    assert found["eviction"]["k"] == 16
