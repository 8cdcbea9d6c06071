"""The share of reserved memory that holds live KV: in closed form, and by the whole engine in a saturated pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framework.config.sections import EngineOptions
from framework.engine.engine import Engine, ModelLimits
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.registry.components import build_allocator
from framework.sampling import Sampling

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reservation:
    """One way to reserve: `max`, `pow2`, `oracle`, or blocks of `block_size` tokens as they are needed."""

    name: str
    block_size: int = 1

    @property
    def is_paged(self) -> bool:
        return self.name == "paged"

    @property
    def label(self) -> str:
        return f"paged {self.block_size}" if self.is_paged else self.name


CONTIGUOUS = tuple(Reservation(name) for name in ("max", "pow2", "oracle"))
PAGED = tuple(Reservation("paged", size) for size in (8, 16, 32, 128, 256, 512))


def closed_form(prompts: Ints, outputs: Ints, limit: int, how: Reservation) -> float:
    """Sum of live slots over sum of reserved slots, over all iterations of all requests.

    A request of p prompt and o output tokens runs o iterations; in iteration k it holds p + k - 1 live slots. It
    reserves, for its whole life, `limit` (max), p + 2**ceil(log2 o) and at most `limit` (pow2), p + o (oracle); or,
    paged, whole blocks for its live slots.

    Args:
        prompts, outputs: (R,) tokens, outputs at least 1.
        limit: tokens of the longest sequence.
    """
    live = outputs * prompts + outputs * (outputs - 1) // 2
    if how.is_paged:
        size = how.block_size
        # Sum over k of ceil((p + k - 1) / B): the difference of two running sums of ceil(i / B).
        reserved = size * (_sum_of_ceilings(prompts + outputs - 1, size) - _sum_of_ceilings(prompts - 1, size))
    elif how.name == "max":
        reserved = outputs * limit
    elif how.name == "pow2":
        rounded = np.array([1 << (int(o) - 1).bit_length() for o in outputs], dtype=np.int64)
        reserved = outputs * np.minimum(limit, prompts + rounded)
    else:
        reserved = outputs * (prompts + outputs)
    return float(live.sum() / reserved.sum())


def _sum_of_ceilings(n: Ints, size: int) -> Ints:
    """Sum of ceil(i / size) for i from 1 to n."""
    full, rest = np.divmod(n, size)
    return size * full * (full + 1) // 2 + rest * (full + 1)


@dataclass(frozen=True, slots=True)
class Saturated:
    """Where the slots of a saturated pool are, as shares of it, while requests wait."""

    live: float
    internal: float
    reserved: float
    external: float
    free: float
    steps: int
    peak_rows: int
    preemptions: int


def saturated(prompts: Ints, outputs: Ints, limit: int, how: Reservation, pool_slots: int) -> Saturated:
    """Run the engine (executor `none`, one step an iteration) on requests that all wait from the start.

    Admission is first come, first served: the head of the queue enters when its reservation (contiguous, first fit)
    or its prompt's blocks (paged) are free, and nobody overtakes it. A paged row that finds no block takes those of
    the newest request, which is computed again later. Counted from the first step to the last at which anybody waits.
    """
    choice = "naive" if how.is_paged else {"name": "contiguous", "reserve": how.name}
    allocator = build_allocator(
        choice, "lru", "xxh64", num_blocks=pool_slots // how.block_size, block_size=how.block_size, max_model_len=limit
    )
    engine = Engine(
        allocator,
        ReplayExecutor(constant_step(1.0)),
        limits=ModelLimits(max_model_len=limit),
        options=EngineOptions(max_batch_tokens=pool_slots, max_batch_requests=256),
    )
    for number, (prompt, output) in enumerate(zip(prompts.tolist(), outputs.tolist(), strict=True)):
        tokens = np.full(prompt, number, dtype=np.int32)
        engine.submit(tokens, Sampling(max_tokens=output, ignore_eos=True), arrival_s=0.0)
    sums, steps = np.zeros(len(engine.metrics.slots), dtype=np.int64), 0
    while True:
        engine.step()
        if not engine.state.waiting:
            break
        sums += engine.metrics.slots
        steps += 1
    live, internal, reserved, external, cached, free = (sums / max(1, sums.sum())).tolist()
    assert cached == 0, "nothing is published by these allocators"
    preemptions = engine.metrics.num_preemptions
    return Saturated(live, internal, reserved, external, free, steps, engine.metrics.peak_rows, preemptions)
