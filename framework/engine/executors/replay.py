"""The engine without a model: outputs come from the trace, and time from a counter or a roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from framework.engine.executors.base import BoolArray, Executor, FloatArray, Step, work_of
from framework.engine.rows import IntArray, Rows
from framework.errors import ConfigError, Unsupported
from framework.files.jsonl import read_object
from framework.types import BlockCopy, TokenArray
from framework.validation import Options

OUTPUT_BASE = 2**30
"""Generated tokens of a replay start here, prompt tokens end below: no output equals a prompt's block by chance."""

StepTime = Callable[[Step, Rows], float]


def constant_step(step_s: float) -> StepTime:
    """Every step takes `step_s` seconds: the clock of `executor=none`."""
    return lambda step, rows: step_s


Cost = Annotated[float, Field(ge=0, le=1e9)]


class StepCosts(Options):
    """Seconds of a step: `step_s` whatever it does, and so much for each of what `work_of` counts."""

    section = "replay.costs"

    step_s: Cost
    row_s: Cost
    token_s: Cost
    context_s: Cost
    pair_s: Cost

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
        """The costs in a file of `python -m framework calibrate`.

        Raises:
            ConfigError: no such file, a cost in it that is missing, unknown or no number of 0 to 10^9, all of them 0.
        """
        try:
            costs = cls(**(read_object(path, ConfigError).get("costs") or {}))
        except (ConfigError, TypeError) as error:
            how = "write the file with `python -m framework calibrate STEPS --out FILE`"
            raise ConfigError(f"replay.costs={path}: {error}; {how}") from error
        if not any(costs.plain().values()):
            raise ConfigError(f"replay.costs={path}: every cost is 0, and time would stand still")
        return costs


class ReplayExecutor(Executor):
    """Computes nothing. A virtual clock moves on by `step_time` a step and jumps to the next arrival when idle.

    Args:
        step_time: seconds a step takes, of its rows.
        outputs: (request number, sample) -> recorded tokens, for requests whose output is known; the others generate
            tokens that no prompt and no other request has. May grow while the replay runs; an entry is taken out
            with its last token.
        tops: (request number, call) -> recorded candidates of a beam search; see `Engine.candidates`.
        step_clock: the clock is the number of the step that began last, instead of virtual seconds; for recordings,
            whose arrivals are step numbers.
    """

    def __init__(
        self,
        step_time: StepTime,
        *,
        outputs: MutableMapping[tuple[int, int], TokenArray] | None = None,
        tops: Mapping[tuple[int, int], tuple[list[list[int]], list[list[float]]]] | None = None,
        step_clock: bool = False,
    ) -> None:
        self._step_time, self._outputs, self._tops = step_time, {} if outputs is None else outputs, tops or {}
        self._step_clock, self._now = step_clock, 0.0
        self._beam_calls: dict[int, int] = {}
        self._where: IntArray = np.empty(0, dtype=np.int64)
        self._rows: Rows | None = None
        self.copied_blocks = 0

    def begin_step(self, number: int) -> None:
        if self._step_clock:
            self._now = float(number)

    def now(self) -> float:
        """Virtual seconds, or the number of the step."""
        return self._now

    def wait_until(self, when: float) -> None:
        """Jump; a clock of steps goes on by steps alone."""
        if not self._step_clock:
            self._now = max(self._now, when)

    def restart_clock(self) -> None:
        self._now = 0.0

    def reset(self) -> None:
        self._beam_calls.clear()

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self.copied_blocks += len(copies)

    def forward(self, step: Step, rows: Rows) -> None:
        self._where, self._rows = step.rows[step.sampled], rows
        if not self._step_clock:
            if rows.drops:  # what is no longer in the pool is not read
                step = replace(step, computed=step.computed - rows.removed[step.rows])
            self._now += self._step_time(step, rows)

    def sample(self, indices: IntArray, streams: IntArray, step: Step, rows: Rows) -> tuple[IntArray, BoolArray]:
        """See Executor. Token = OUTPUT_BASE + a number of the request and sample: equal within one sequence."""
        where = self._where[indices]
        number = rows.number[where]
        tokens = OUTPUT_BASE + ((number * 64 + streams) & (OUTPUT_BASE - 1))
        if self._outputs:
            position = rows.length[where] - rows.first_output[where]
            for i, key in enumerate(zip(number.tolist(), streams.tolist(), strict=True)):
                recorded = self._outputs.get(key)
                if recorded is not None and position[i] < len(recorded):
                    tokens[i] = recorded[position[i]]
                    if position[i] + 1 == len(recorded):
                        del self._outputs[key]
        return tokens, np.zeros(len(indices), dtype=bool)

    def logprobs(self, indices: IntArray, tokens: IntArray, k: int) -> tuple[FloatArray, IntArray, FloatArray]:
        """See Executor: recorded candidates, or a fixed pseudo-random fork tree for beams nobody recorded."""
        assert self._rows is not None
        numbers = self._rows.number[self._where[indices]]
        number = int(numbers[0])
        call = self._beam_calls.get(number, 0)
        self._beam_calls[number] = call + 1
        if (number, call) in self._tops:
            recorded = [np.array(column) for column in self._tops[number, call]]
            return np.zeros(len(indices), np.float32), recorded[0], recorded[1]
        if self._tops:
            raise Unsupported(f"the recording holds no candidates for beam search step {call} of request {number}")
        # As alike as a language model's: log-probabilities of a geometric tail, jittered by a hash.
        random, beams = np.random.Generator(np.random.Philox(key=[number, call])), len(indices)
        values = np.log(0.5) * np.arange(1, k + 1) + random.normal(0.0, 0.35, size=(beams, k))
        values = -np.sort(-np.minimum(values, -1e-3), axis=1)
        ids = OUTPUT_BASE + random.permuted(np.tile(np.arange(4 * k), (beams, 1)), axis=1)[:, :k]
        return np.zeros(beams, np.float32), ids.astype(np.int64), values.astype(np.float32)
