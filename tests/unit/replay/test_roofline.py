"""The roofline by hand, and how it grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.engine.executors.base import Step
from framework.errors import FrameworkError
from framework.model.shapes import SHAPES
from framework.replay.roofline import DEVICES, Roofline


def step_of(new: list[int], before: list[int]) -> Step:
    count = len(new)
    return Step(1, np.arange(count), np.array(new), np.array(before), sum(n == 1 for n in new), np.arange(count))


def test_the_roofline_is_the_larger_of_bytes_and_operations_by_hand() -> None:
    shape, device = SHAPES["llama-3.1-8b"], DEVICES["h100"]
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


def test_a_roofline_with_a_window_reads_and_computes_what_the_window_shows() -> None:
    options = {"device": "h100", "efficiency": 1.0, "overhead_s": 0.0}
    shape, device, window, kv = SHAPES["llama-3.1-8b"], DEVICES["h100"], 100, 131_072
    for new, before in ((1, 1000), (1, 20), (70, 60), (700, 0), (5000, 1000), (99, 1)):
        seen = [min(before + at + 1, window) for at in range(new)]
        read = min(before, window - 1) + new
        moved = 2 * shape.num_parameters + kv * (read + new)
        work = 2.0 * shape.num_parameters * new + 4 * 128 * 32 * 32 * sum(seen)
        wanted = max(moved / device.bytes_per_s, work / device.flops_per_s)
        found = Roofline(window=window, **options)(step_of([new], [before]), None)  # type: ignore[arg-type]
        assert found == pytest.approx(wanted), (new, before)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"device": "abacus"}, "abacus"),
     ({"num_devices": 0}, "num_devices"), ({"shape": "x"}, "shape"), ({"efficiency": 1.5}, "efficiency"),
     ({"efficiency": 0}, "efficiency"), ({"overhead_s": -1}, "overhead_s"), ({"dtype": "int3"}, "dtype")],
)  # fmt: skip
def test_a_roofline_of_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(FrameworkError, match=said):
        Roofline(**options)
