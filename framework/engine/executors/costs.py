"""What an engine's step works on, and how long it takes by costs that were fitted to an engine."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from framework.engine.executors.base import Step
from framework.engine.rows import IntArray, Rows
from framework.errors import ConfigError


def work_of(num_new: IntArray, computed: IntArray) -> dict[str, int]:
    """A step's rows, the tokens it computes, those whose K and V were there before, and attention's (query, key) pairs.

    Args:
        num_new: (B,) tokens to compute, of each row.
        computed: (B,) tokens of each row that were computed before.
    """
    return {
        "rows": len(num_new),
        "new_tokens": int(num_new.sum()),
        "context_tokens": int(computed.sum()),
        "pairs": int((num_new * computed + num_new * (num_new + 1) // 2).sum()),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds of a step: `step_s` whatever it does, and so much for each of what `work_of` counts."""

    step_s: float
    row_s: float
    token_s: float
    context_s: float
    pair_s: float

    def __call__(self, step: Step, rows: Rows) -> float:
        """Seconds of `step`."""
        return self._seconds(step.num_new, step.computed)

    def prefill_s(self, cached: int, tokens: int) -> float:
        """Seconds to compute a prompt's tokens from number `cached` up to `tokens` in one step of its own."""
        return self._seconds(np.array([tokens - cached]), np.array([cached])) if tokens > cached else 0.0

    def _seconds(self, num_new: IntArray, computed: IntArray) -> float:
        work = work_of(num_new, computed)
        return (
            self.step_s
            + self.row_s * work["rows"]
            + self.token_s * work["new_tokens"]
            + self.context_s * work["context_tokens"]
            + self.pair_s * work["pairs"]
        )

    @classmethod
    def read(cls, path: str | Path) -> StepCosts:
        """The costs in a file of `python -m framework.calibrate`.

        Raises:
            ConfigError: no such file, or a cost in it is missing or no finite number of at least 0.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))["costs"]
            costs = {field.name: float(found[field.name]) for field in fields(cls)}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"replay.costs={path} has no costs of a step ({error!r}); write the file with "
                "`python -m framework.calibrate STEPS --out FILE`"
            ) from error
        if wrong := [name for name, value in costs.items() if not (math.isfinite(value) and value >= 0)]:
            raise ConfigError(f"replay.costs={path}: {', '.join(wrong)} must be finite numbers of at least 0")
        if not any(costs.values()):
            raise ConfigError(f"replay.costs={path}: every cost is 0, and time would stand still")
        return cls(**costs)
