"""`python -m framework calibrate STEPS...`: the costs of an engine's step, from steps that it timed."""

# Shapes: S steps  K = 5 costs, in the order of StepCosts

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.engine.executors.replay import StepCosts
from framework.errors import ConfigError, WorkloadError
from framework.files.atomic import require_new, write_json
from framework.interfaces.command import Command
from framework_workloads.lines import iter_objects

Floats = npt.NDArray[np.float64]

COSTS = tuple(StepCosts.model_fields)
WORK = ("rows", "new_tokens", "context_tokens", "pairs")
FEWEST_STEPS = 50
_OWN_SHARE = 0.02  # of a column that no other column explains, in which its cost is looked for
_RESAMPLES = 200
_MOST = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Fitted costs, as a file has them that `replay.costs` reads.

    Attributes:
        costs: seconds.
        intervals: 95 % of each cost, by a bootstrap over steps.
        num_steps: that were fitted.
        total_error: relative, of the seconds of all steps together; each half is timed by the other half's costs.
        step_error_p50, step_error_p95: absolute relative error of single steps there, median and 95th percentile.
        largest: of each kind of work in a step; beyond it the costs are extrapolated.
    """

    costs: StepCosts
    intervals: dict[str, list[float]]
    num_steps: int
    total_error: float
    step_error_p50: float
    step_error_p95: float
    largest: dict[str, float]


class Calibrate(Command):
    """The costs of an engine's step, from steps that it timed."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "steps", metavar="STEPS", nargs="+", type=Path,
            help="metrics.jsonl of a serve run, or what TraceConnector wrote under its option steps",
        )  # fmt: skip
        parser.add_argument("--out", type=Path, metavar="FILE", help="write the costs there, for replay.costs=FILE")
        parser.add_argument("--force", action="store_true", help="replace a file that exists already")
        parser.add_argument("--json", action="store_true", help="print JSON alone")

    def run(self, options: argparse.Namespace) -> int:
        require_new(options.out, inputs=options.steps, force=options.force)
        made = calibrate(*read_steps(options.steps))
        fitted = asdict(made) | {"costs": made.costs.plain()}
        if options.out is not None:
            write_json(options.out, fitted)
        print(json.dumps(fitted, indent=2) if options.json else _table(fitted))  # noqa: T201
        return 0


def read_steps(paths: Sequence[Path]) -> tuple[Floats, Floats]:
    """Work (S, K), of which the first column is 1 for the step itself, and seconds (S,).

    Raises:
        WorkloadError: a file that cannot be read, or a line without a step's work and seconds.
    """
    work, seconds = [], []
    for path in paths:
        for number, line in iter_objects(path, WorkloadError, drop_partial_last=True):
            values = [line.get(key) for key in (*WORK, "step_s")]
            if values[-1] is None and "step_s" in line:
                continue  # the last step before an engine had nothing to do
            if not all(_is_amount(value) for value in values):
                raise WorkloadError(
                    f"{path}:{number}: a timed step has {', '.join(WORK)} and step_s, numbers of 0 to 10^18; found "
                    f"{dict(zip((*WORK, 'step_s'), values, strict=True))}. A replay on a clock of steps times nothing"
                )
            work.append([1.0, *values[:-1]])
            seconds.append(values[-1])
    return np.array(work, dtype=np.float64).reshape(-1, len(COSTS)), np.array(seconds, dtype=np.float64)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST


def calibrate(work: Floats, seconds: Floats) -> Calibration:
    """Non-negative least squares of the relative error.

    Args:
        work: (S, K), the first column 1.
        seconds: (S,).

    Raises:
        ConfigError: too few steps; a cost that these steps cannot tell from the others; steps that took no time.
    """
    _require_tellable(work)
    if not seconds.any():
        raise ConfigError(f"step_s is 0 in all {len(work)} steps: their clock did not move; record steps of a real run")
    costs, half = _fitted(work, seconds), np.arange(len(work)) % 2 == 0
    predicted = np.empty(len(work))
    for part in (half, ~half):  # every second step: load and machine drift over a run
        predicted[part] = work[part] @ _fitted(work[~part], seconds[~part])
    draw = np.random.default_rng(0)
    drawn = np.array(
        [_fitted(work[steps], seconds[steps]) for steps in draw.integers(0, len(work), (_RESAMPLES, len(work)))]
    )
    ends = np.percentile(drawn, (2.5, 97.5), axis=0).T.tolist()
    off = np.abs(predicted - seconds) / seconds.clip(min=1e-9)
    return Calibration(
        costs=StepCosts(**dict(zip(COSTS, costs.tolist(), strict=True))),
        intervals=dict(zip(COSTS, ends, strict=True)),
        num_steps=len(work),
        total_error=float(predicted.sum() / seconds.sum() - 1),
        step_error_p50=float(np.percentile(off, 50)),
        step_error_p95=float(np.percentile(off, 95)),
        largest=dict(zip(WORK, work[:, 1:].max(axis=0).tolist(), strict=True)),
    )


def _require_tellable(work: Floats) -> None:
    """Raises ConfigError where a column is, all but a little, a sum of multiples of the others."""
    if len(work) < FEWEST_STEPS:
        raise ConfigError(
            f"{len(work)} timed steps are too few to fit {len(COSTS)} costs; record {FEWEST_STEPS} or more"
        )
    scaled = work / np.maximum(np.linalg.norm(work, axis=0), 1e-300)
    lost = []
    for column, name in enumerate(COSTS):
        others = np.delete(scaled, column, axis=1)
        rest = scaled[:, column] - others @ np.linalg.lstsq(others, scaled[:, column], rcond=None)[0]
        if np.linalg.norm(rest) < _OWN_SHARE:
            lost.append(name)
    if lost:
        raise ConfigError(
            f"these {len(work)} steps cannot tell {', '.join(lost)} apart: what they count hardly varies by itself. "
            "Record requests of short and long prompts and of several at once, so that steps differ in rows, tokens "
            "and context"
        )


def _fitted(work: Floats, seconds: Floats) -> Floats:
    """(K,) costs. Steps count by their relative error: a second fit weighs them by the seconds of the first."""
    from scipy.optimize import nnls

    scale = work.max(axis=0).clip(min=1e-300)
    weights = np.ones(len(work))
    for _ in range(2):
        costs = nnls(work / scale * weights[:, None], seconds * weights)[0] / scale
        weights = 1 / (work @ costs).clip(min=1e-9)
    return np.asarray(costs, dtype=np.float64)


def _table(fitted: dict[str, Any]) -> str:
    lines = [f"{name:10} {fitted['costs'][name]:.4g}   {low:.4g} to {high:.4g}"
             for name, (low, high) in fitted["intervals"].items()]  # fmt: skip
    return "\n".join(
        [
            f"{'':10} seconds and their 95 % interval, of {fitted['num_steps']} steps",
            *lines,
            f"held-out steps: all together {fitted['total_error']:+.1%}, "
            f"each {fitted['step_error_p50']:.1%} (median), {fitted['step_error_p95']:.1%} (95th percentile)",
            "not in these costs: what a request takes outside steps, such as HTTP (7 ms in vLLM on two CPU cores);",
            "a replay's times to first token and durations are short by that",
        ]
    )
