"""A value of a wrong type is refused in the configuration's words, whichever option it was given to."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pytest

from framework import registry
from framework.config.config import GROUPS
from framework.config.hydra.compose import compose
from framework.config.sections import SECTIONS
from framework.errors import ConfigError, FrameworkError
from framework.model.options import MODELS
from framework.registry.signatures import Parameter, signature

OF_OTHERS = re.compile(
    r"OmegaConf|DictConfig|ListConfig|Cannot|could not be|is not a valid|not Optional|Error merging|full_key"
)
"""What the sentences of OmegaConf and Hydra say."""
WRONG = {"mapping": "{a: 1}", "list": "[[1]]", "scalar": "@x"}


def options_of(group: str, name: str) -> Sequence[Parameter]:
    cls = MODELS[name] if group == "model" else registry.load(group, name)
    return (signature(cls) if group == "model" else registry.own_options(cls)).parameters


def is_open(annotation: Any, kind: type) -> bool:
    """Whether a value of this kind may fit, as far as its outermost type says."""
    origins = [typing.get_origin(one) or one for one in (annotation, *typing.get_args(annotation))]
    return any(one is Any or (isinstance(one, type) and issubclass(kind, one)) for one in origins)


def component_options() -> Iterator[tuple[str, str, Parameter]]:
    """Each option of each installed component; one that does not load has none."""
    for group in GROUPS:
        for name in MODELS if group == "model" else registry.names(group):
            try:
                yield from ((group, name, parameter) for parameter in options_of(group, name))
            except FrameworkError:
                continue


def refusal(*overrides: str) -> str:
    with pytest.raises(FrameworkError) as caught:
        compose(["run.dir=x", *overrides])
    text = str(caught.value)
    assert isinstance(caught.value, ConfigError), text
    assert not OF_OTHERS.search(text), text
    return text


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_a_section_or_setting_of_another_type_says_what_it_must_be(section: str, value: str) -> None:
    cls = SECTIONS[section]
    if value != WRONG["mapping"]:
        assert f"{section} must be a mapping, found " in refusal(f"{section}={value.replace('@', '')}")
    else:
        assert refusal(f"{section}={value}").startswith(f"unknown key '{section}.a'; keys: ")
    asked: set[str] = set()
    for field in fields(cls):
        text = "str" in str(field.type)
        if value == WRONG["scalar"] and text and "tuple" not in str(field.type):
            continue
        if value != WRONG["mapping"] and str(field.type) in asked:
            continue  # a mapping is given to every setting, the others once to each type
        if value == WRONG["mapping"] and "Mapping" in str(field.type):
            assert refusal(f"{section}.{field.name}={value}").startswith(f"unknown key '{section}.{field.name}.a'; ")
            continue
        asked.add(str(field.type))
        said = refusal(f"{section}.{field.name}={value.replace('@', '')}")
        assert re.match(rf"{section}\.{field.name}(\[0\])? must be ", said), said
        assert ", found " in said, said


@pytest.mark.parametrize("key", ["mode", "executor", "seed", "device", "tiers"])
def test_a_setting_of_the_top_says_what_it_must_be(key: str) -> None:
    for value in WRONG.values():
        if (key, value) == ("device", WRONG["scalar"]):
            continue
        said = refusal(f"{key}={value.replace('@', '')}")
        assert re.match(rf"{key}(\[0\])? must be .*, found ", said), said


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("value", ["{a: 1}", "[]", "[1]", "[lru]", "[a,b]", "[{a: 1}]", "[[1]]", "5", "null"])
def test_a_component_is_chosen_by_its_name(group: str, value: str) -> None:
    for sign in ("", "+") if value == "[lru]" else ("",):
        said = refusal(f"{sign}{group}={value}")
        assert f"the {group} is chosen by its name, set {group}=NAME" in said, said
        assert f"{group}={value}" in said, said


def test_an_option_of_any_component_says_what_it_must_be() -> None:
    """Every type of an option, and every group, is asked at least once with each value."""
    asked: set[tuple[str, str]] = set()
    for group, name, parameter in component_options():
        for value, kind in ((WRONG["mapping"], dict), (WRONG["list"], list)):
            coming = {(group, value), (str(parameter.annotation), value)}
            if is_open(parameter.annotation, kind) or coming <= asked:
                continue
            asked |= coming
            needed = [f"{group}.{one.name}=x" for one in options_of(group, name) if one.required and one != parameter]
            said = refusal(f"{group}={name}", *needed, f"{group}.{parameter.name}={value}")
            assert re.match(rf"{group}\.{parameter.name}(\[0\])? must be .*, found ", said), (name, said)
    assert len(asked) > 8, asked


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "tiers={store: host, num_blocks: 5}",
            r"tiers must be a list of mappings, found \{.*\}; as in tiers=\[\{store: host",
        ),
        ("+tiers.a=1", r"\+tiers\.a=1: the list has no such entry; set it whole"),
        ("tiers.0.num_blocks=1", r"tiers\.0\.num_blocks=1: the list has no such entry; set it whole"),
        ("cache={num_blocks: x}", "cache.num_blocks must be int or null, found 'x'"),
        ("kernel.lengths={}", r"kernel\.lengths must be a list of Literal\['uniform', 'ragged'\], found \{\}"),
        ("seed=1,2", r"seed=1,2: several values are a sweep, run it with -m \(--multirun\); a list is written \[A,B\]"),
        ("allocator.watermark=[1]", r"allocator\.watermark must be float, found \[1\]"),
    ],
)
def test_the_sentence_names_what_was_asked_and_found(override: str, says: str) -> None:
    assert re.match(says, refusal(override)), refusal(override)


def test_the_first_wrong_value_is_named_and_right_ones_are_not() -> None:
    said = refusal(
        "cache.block_size=4", "tiers=[]", "kernel.lengths={a: 1}", "seed=[1]", "eviction=lru_k", "eviction.k=2"
    )
    assert said.startswith("kernel.lengths must be a list of "), said


def test_a_value_that_refers_to_another_is_left_to_its_composition() -> None:
    found: Mapping[Any, Any] = compose(
        ["run.dir=x", "seed=${cache.block_size}", "eviction=lru_k", "eviction.k=${cache.block_size}"]
    )
    assert found["eviction"]["k"] == 16
