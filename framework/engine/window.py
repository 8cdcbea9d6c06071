"""Blocks that the sliding windows of all layers have passed: unreferenced while their request runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from framework.engine.executors.base import Step
from framework.errors import FrameworkError, InvalidArgument

if TYPE_CHECKING:
    from framework.engine.lifecycle import Lifecycle
    from framework.engine.state import EngineState


class Window:
    """Where every layer sees the last `num_tokens` tokens only, itself included: frees what no later token reads.

    NOTE 1. A request still needs room for its whole prompt when it is admitted, and a hit still is a whole prefix: the
    gain is that of long outputs, and of long prompts that are computed in chunks.
    NOTE 2. The last full block of a row is kept even where the window is shorter: the next one is published below it.

    Raises:
        InvalidArgument: `num_tokens` below 1.
    """

    def __init__(self, state: EngineState, life: Lifecycle, num_tokens: int) -> None:
        if num_tokens < 1:
            raise InvalidArgument(f"a sliding window has at least 1 token, found {num_tokens}")
        self._state, self._life, self._num_tokens = state, life, num_tokens

    def unref_passed(self, step: Step) -> None:
        """The step's tokens are committed: the next token of each row is at position `computed`."""
        rows, size = self._state.rows, self._state.guarded.block_size
        computed = rows.computed[step.rows]
        first_read = computed + 1 - self._num_tokens
        passed = np.minimum(first_read // size, computed // size - 1)
        due = (passed > rows.passed[step.rows]).nonzero()[0]
        for row, count in zip(step.rows[due].tolist(), passed[due].tolist(), strict=True):
            seq = rows.sequences[row]
            if seq is None:
                continue
            try:
                self._life.unref_leading(seq, count)
            except FrameworkError as error:
                self._life.fail(seq, error)
