"""The options of each choice of model are declared once, and wrong ones are refused by name."""

from __future__ import annotations

import pytest

from framework.errors import ConfigError
from framework.model.options import Checkpoint, Random, Tiny, model_of


def test_a_choice_without_options_has_its_defaults() -> None:
    assert model_of("tiny", {}) == Tiny()
    assert model_of("random", {}) == Random(shape="qwen3-100m", dtype="auto", seed=None)
    assert model_of("checkpoint", {"path": "a/b"}) == Checkpoint(path="a/b")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nope", {}, "no model 'nope'; there are .*checkpoint.*random.*tiny"),
        ("checkpoint", {}, "model .checkpoint. needs a value for .path.; set model.path"),
        ("random", {"shap": "x"}, "has no option .shap.; its options: .*; did you mean .shape."),
        ("tiny", {"seed": "many"}, "model.seed must be a valid integer"),
    ],
)
def test_a_wrong_choice_or_option_is_named(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_of(name, options)
