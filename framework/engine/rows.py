"""The running sequences as arrays: one row each, so that a step costs array work and not Python a token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from framework.engine.request import Sequence

IntArray = npt.NDArray[np.int64]


class Rows:
    """Preallocated columns of up to `max_rows` running sequences of up to `max_len` tokens.

    Columns (indexed by row): `length` tokens known; `computed` tokens with KV written; `room` tokens the table has
    slots for; `removed` of those computed, tokens that were dropped from the pool and have no slot any more, where
    anything `drops` tokens;
    `limit` length at which it ends; `passed` leading blocks that all layers' windows have passed; `touch`
    must be extended before its next write; sampling parameters.
    `tokens` is (max_rows, max_len) int32, and `known` a view of it that plugins may be handed: read-only.
    """

    def __init__(self, max_rows: int, max_len: int) -> None:
        self.max_rows, self.max_len = max_rows, max_len
        self.sequences: list[Sequence | None] = [None] * max_rows
        self.tokens = np.zeros((max_rows, max_len), dtype=np.int32)
        self.known = self.tokens.view()
        self.known.flags.writeable = False
        self.length, self.computed, self.room, self.limit = (np.zeros(max_rows, dtype=np.int64) for _ in range(4))
        self.passed, self.removed, self.order, self.priority = (np.zeros(max_rows, dtype=np.int64) for _ in range(4))
        self.number, self.stream, self.first_output = (np.zeros(max_rows, dtype=np.int64) for _ in range(3))
        self.drops = False
        self.touch, self.special, self.ignore_eos = (np.zeros(max_rows, dtype=bool) for _ in range(3))
        self.temperature = np.zeros(max_rows, dtype=np.float32)
        self.top_k = np.zeros(max_rows, dtype=np.int32)
        self.top_p = np.ones(max_rows, dtype=np.float32)
        self.seed = np.zeros(max_rows, dtype=np.uint64)
        self._free = list(range(max_rows - 1, -1, -1))
        self._active: IntArray | None = None

    @property
    def num_free(self) -> int:
        """Rows nobody uses."""
        return len(self._free)

    @property
    def num_active(self) -> int:
        """Rows in use."""
        return self.max_rows - len(self._free)

    def active(self) -> IntArray:
        """Rows in use, most important first: by priority, then by `Request.order`. Do not write to it."""
        if self._active is None:
            rows = np.array([row for row, seq in enumerate(self.sequences) if seq is not None], dtype=np.int64)
            self._active = rows[np.lexsort((rows, self.order[rows], -self.priority[rows]))]
        return self._active

    def add(self, seq: Sequence, computed: int, room: int, *, touch: bool = True) -> int:
        """Give `seq` a row; its tokens move into the row's buffer."""
        row = self._free[-1]  # taken once all is written: a value that no column can hold changes nothing
        request, sampling, count = seq.request, seq.request.sampling, len(seq.tokens)
        self.tokens[row, :count] = seq.tokens
        self.length[row], self.computed[row], self.room[row] = count, computed, room
        self.limit[row] = request.max_total_tokens
        self.order[row] = request.number if request.order is None else request.order
        self.number[row], self.priority[row] = request.number, request.priority
        self.touch[row] = touch
        self.special[row] = bool(
            sampling.stop_token_ids
            or sampling.stop
            or sampling.logprobs is not None
            or request.group is not None
            or seq.forks_due
        )
        self.ignore_eos[row] = sampling.ignore_eos
        self.temperature[row], self.top_k[row], self.top_p[row] = (sampling.temperature, sampling.top_k, sampling.top_p)
        self.seed[row], self.stream[row] = request.seed, seq.stream
        self.first_output[row] = len(request.prompt)
        self._free.pop()
        self.sequences[row] = seq
        seq.row = row
        self._active = None
        return row

    def remove(self, seq: Sequence) -> None:
        """Take `seq` off its row; its tokens move back into the sequence."""
        row = seq.row
        seq.tokens = self.tokens[row, : int(self.length[row])].copy()
        self.sequences[row] = None
        self.touch[row] = self.special[row] = False
        self.length[row] = self.computed[row] = self.room[row] = self.passed[row] = self.removed[row] = 0
        self._free.append(row)
        seq.row = -1
        self._active = None

    def generated(self, seq: Sequence) -> npt.NDArray[np.int32]:
        """The tokens that `seq`, which has a row, has generated: a view."""
        return self.tokens[seq.row, self.first_output[seq.row] : self.length[seq.row]]

    def sequence(self, row: int) -> Sequence:
        """The sequence on `row`, which must be in use."""
        seq = self.sequences[row]
        assert seq is not None, f"row {row} is not in use"
        return seq
