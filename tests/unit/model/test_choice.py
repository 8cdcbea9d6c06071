"""A model that a configuration names is built from its options; its shape is known without its weights."""

from __future__ import annotations

import pytest
import torch

from framework.errors import ModelError
from framework.model.choice import build_model, model_config
from framework.model.shapes import SHAPES


def weights(**given: object) -> torch.Tensor:
    options = {key: value for key, value in given.items() if key != "run_seed"}
    loaded = build_model("tiny", options, seed=int(str(given.get("run_seed", 0))))
    return next(iter(loaded.decoder.parameters())).detach()


def test_the_tiny_model_is_the_same_whatever_the_run_s_seed() -> None:
    assert torch.equal(weights(), weights(run_seed=7))
    assert not torch.equal(weights(), weights(seed=7))


def test_shapes_are_known_before_weights() -> None:
    assert model_config("random", {}) is SHAPES["qwen3-100m"]
    assert model_config("random", {"shape": "nobody"}) is None
    tiny = model_config("tiny", {})
    assert tiny is not None
    assert tiny == build_model("tiny", {}).config


def test_a_checkpoint_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError):
        model_config("checkpoint", {"path": "/no/such/folder"})
