"""The roofline by hand, how it grows, and what a step of a published model reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.engine.executors.base import Step
from framework.errors import FrameworkError
from framework.model.shapes import SHAPES
from framework.replay.roofline import DEVICES, ROOFLINE_SHAPES, Roofline


def step_of(new: list[int], before: list[int]) -> Step:
    count = len(new)
    return Step(1, np.arange(count), np.array(new), np.array(before), sum(n == 1 for n in new), np.arange(count))


def test_the_roofline_is_the_larger_of_bytes_and_operations_by_hand() -> None:
    shape, device = ROOFLINE_SHAPES["llama-3.1-8b"], DEVICES["h100"]
    roofline = Roofline(device="h100", shape="llama-3.1-8b", efficiency=0.5, overhead_s=0.001)
    weights, kv = 2 * shape.num_parameters, 2 * 2 * 32 * 8 * 128
    assert roofline.kv_bytes_per_token == kv == 131_072
    moved = weights + kv * (4 * 1001 + 4)
    decode = roofline(step_of([1] * 4, [1000] * 4), None)  # type: ignore[arg-type]
    assert decode == pytest.approx(0.001 + moved / (0.5 * device.bytes_per_s))
    pairs = 2048 * 2049 / 2
    work = 2.0 * shape.num_parameters * 2048 + 4 * 128 * 32 * 32 * pairs
    prefill = roofline(step_of([2048], [0]), None)  # type: ignore[arg-type]
    assert prefill == pytest.approx(0.001 + work / (0.5 * device.flops_per_s))


def test_the_roofline_grows_with_batch_context_and_falls_with_efficiency() -> None:
    def seconds(rows: int = 8, context: int = 500, new: int = 1, **options: Any) -> float:
        return Roofline(**options)(step_of([new] * rows, [context] * rows), None)  # type: ignore[arg-type]

    for name, values in (("rows", (1, 8, 64, 512)), ("context", (0, 100, 10_000)), ("new", (1, 64, 512, 4096))):
        times = [seconds(**{name: value}) for value in values]
        assert times == sorted(set(times)), (name, times)
    assert seconds(efficiency=0.4) > seconds(efficiency=0.8)
    assert seconds(device="a100") > seconds(device="h200")
    assert seconds(num_devices=8) < seconds()


@pytest.mark.parametrize(
    ("options", "said"),
    [({"device": "abacus"}, "abacus"), ({"shape": "x"}, "shape"), ({"kv_dtype": "int3"}, "kv_dtype")],
)
def test_a_roofline_of_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(FrameworkError, match=said):
        Roofline(**options)


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
        assert shape.num_parameters == shape.active_parameters, name
        assert shape.kv_numbers_per_token == 2 * config.num_kv_heads * config.head_dim, name


def test_experts_that_no_token_takes_are_not_read() -> None:
    """Two tokens that each take 2 of 8 experts touch 8 * (1 - (6 / 8) ** 2) = 3.5 of them."""
    shape = ROOFLINE_SHAPES["mixtral-8x7b"]
    expert = (shape.num_parameters - shape.active_parameters) / 6
    assert shape.weights_read(2) == pytest.approx(shape.num_parameters - 4.5 * expert)
