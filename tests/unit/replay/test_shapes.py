"""framework.replay.shapes: what a step of a published model reads."""

from __future__ import annotations

import pytest

from framework.model.shapes import SHAPES
from framework.replay.roofline import Roofline
from framework.replay.shapes import ROOFLINE_SHAPES


def test_kv_bytes_a_token_are_the_published_ones() -> None:
    """bfloat16: 320 KiB for Llama 70B, 800 KiB for OPT-13B (arXiv 2309.06180, section 3), 70 kB for DeepSeek-V3."""
    found = {name: Roofline(shape=name).kv_bytes_per_token for name in ("llama-3.1-70b", "opt-13b", "deepseek-v3")}
    assert found == {"llama-3.1-70b": 327_680, "opt-13b": 819_200, "deepseek-v3": 70_272}


@pytest.mark.parametrize("name", sorted(ROOFLINE_SHAPES))
def test_one_token_reads_its_active_weights_and_many_read_all(name: str) -> None:
    shape = ROOFLINE_SHAPES[name]
    read = [shape.weights_read(tokens) for tokens in (1, 2, 16, 256, 10**6)]
    assert read[0] == pytest.approx(shape.active_parameters, rel=1e-9)
    assert read[-1] == pytest.approx(shape.num_parameters, rel=1e-9)
    assert read == sorted(read), read
    assert shape.source


def test_a_dense_shape_is_that_of_the_model_the_framework_runs() -> None:
    for name, config in SHAPES.items():
        shape = ROOFLINE_SHAPES[name]
        assert (shape.num_parameters, shape.active_parameters) == (config.num_parameters,) * 2, name
        assert shape.kv_numbers_per_token == 2 * config.num_kv_heads * config.head_dim, name


def test_experts_that_no_token_takes_are_not_read() -> None:
    """Two tokens that each take 2 of 8 experts touch 8 * (1 - (6 / 8) ** 2) = 3.5 of them."""
    shape = ROOFLINE_SHAPES["mixtral-8x7b"]
    expert = (shape.num_parameters - shape.active_parameters) / 6
    assert shape.weights_read(2) == pytest.approx(shape.num_parameters - 4.5 * expert)
