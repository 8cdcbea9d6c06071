"""What a compression decides, applied: tables, rows and the pool are changed between two steps."""

# Shapes: L layers  K kv heads  H query heads  D head dim  T query tokens (packed)  n tokens in the pool

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from framework.engine.lifecycle import Lifecycle
from framework.engine.request import Sequence
from framework.engine.state import EngineState
from framework.errors import OutOfBlocks
from framework.guard.boundary import Guard
from framework.interfaces.compression import PAST, Compressor, LayerCache
from framework_lossy.compression import Kept, TokenDropping, Written

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Dropped:
    """What became of a sequence on its row.

    Attributes:
        at: tokens computed when some were last dropped; None: never.
        positions: (L or 1, K or 1, m) int64, of the tokens that stayed then; those computed since follow.
        queries: of each layer, (w, H, D) in parts: the last, as many as are wanted.
    """

    at: int | None = None
    positions: npt.NDArray[np.int64] | None = None
    queries: list[list[Tensor]] = field(default_factory=list)


class TokenDropper(Guard, Compressor):
    """Asks a compression about each row of a step, and drops what it does not keep.

    NOTE. What a request computes after tokens of it were dropped differs from what its tokens name, so it publishes
    nothing any more. What it published before is exact, and stays findable in the blocks that did not change.
    """

    def __init__(self, compression: TokenDropping, state: EngineState, life: Lifecycle) -> None:
        super().__init__("compression", compression)
        self._state, self._life, self._size = state, life, state.guarded.block_size
        self._of: dict[Sequence, Dropped] = {}
        state.rows.drops = True
        self._step: SequenceOf[tuple[Sequence, int, int]] = ()
        self.num_compressions = self.seen_tokens = self.dropped_tokens = self.seen_blocks = self.returned_blocks = 0
        if compression.num_queries != 0:
            state.executor.listen(self._heard)

    def step_end(self, seq: Sequence, start: int, end: int) -> int:
        found: Any = self.plugin.step_end(seq.info, start, end)
        if type(found) is not int or not start < found <= end:
            self.wrong("step_end", f"must return a count from {start + 1} to {end}", found)
        return int(found)

    def begin(self, rows: npt.NDArray[np.int64], num_new: npt.NDArray[np.int64]) -> None:
        ends = np.cumsum(num_new).tolist()
        self._step = [*zip(map(self._state.rows.sequence, rows.tolist()), [0, *ends], ends, strict=False)]

    def _heard(self, layer: int, queries: Tensor) -> None:
        """(T, H, D) of the step at hand, in one layer."""
        wanted = self.plugin.num_queries
        for seq, first, last in self._step:
            kept = self._of.setdefault(seq, Dropped()).queries
            if layer == len(kept):
                kept.append([])
            kept[layer].append(queries[first if wanted is None else max(first, last - wanted) : last].clone())
            while wanted is not None and (more := sum(map(len, kept[layer])) - wanted) > 0:
                kept[layer][0] = kept[layer][0][more:]
                if not len(kept[layer][0]):
                    del kept[layer][0]

    def end(self) -> None:
        for seq, _, _ in self._step:
            if seq.row < 0:
                continue
            written = self._written(seq)
            if not self.plugin.due(written):
                continue
            kept: Any = self.plugin.keep(written)
            if kept is not None:
                try:
                    self._drop(seq, written, kept)
                except OutOfBlocks:  # for the copies of shared blocks: asked again after the next step
                    continue
        self._step = ()

    def forked(self, parent: Sequence, child: Sequence) -> None:
        if parent in self._of:
            found = self._of[parent]
            self._of[child] = Dropped(found.at, found.positions, [list(layer) for layer in found.queries])
            if parent.row >= 0:
                self._state.executor.fork_heads(parent.row, child.row)

    def released(self, seq: Sequence) -> None:
        self._of.pop(seq, None)

    def _written(self, seq: Sequence) -> Written:
        rows, row = self._state.rows, seq.row
        computed, known = int(rows.computed[row]), self._of.get(seq)
        return Written(
            info=seq.info,
            computed=computed,
            stored=computed - int(rows.removed[row]),
            block_size=self._size,
            compressed_at=None if known is None else known.at,
            layers=lambda: self._layers(seq),
        )

    def _positions(self, seq: Sequence) -> npt.NDArray[np.int64]:
        """(L or 1, K or 1, n) of all that `seq` has in the pool."""
        computed, known = int(self._state.rows.computed[seq.row]), self._of.get(seq)
        if known is None or known.positions is None or known.at is None:
            return np.arange(computed)[None, None]
        since = np.arange(known.at, computed)
        found = np.pad(known.positions, ((0, 0), (0, 0), (0, len(since))), constant_values=PAST)
        first = (known.positions != PAST).sum(2)[..., None]
        np.put_along_axis(found, first + np.arange(len(since)), since[None, None], 2)
        return found

    def _layers(self, seq: Sequence) -> SequenceOf[LayerCache]:
        state, positions, known = self._state, self._positions(seq), self._of.get(seq)
        queries = [] if known is None else known.queries
        return state.executor.read(seq.row, positions, queries, int(state.rows.computed[seq.row]))

    def _drop(self, seq: Sequence, written: Written, kept: Kept) -> None:
        state, row, size = self._state, seq.row, self._size
        self._life.commit(seq, written.computed)
        before = state.guarded.table(seq.id).copy()
        positions = self._positions(seq)
        tokens, num_kept = self._checked(kept, written, positions)
        if ((tokens >= 0).sum(2) == (positions != PAST).sum(2)).all():  # all stay
            return
        used = state.guarded.stats().used_blocks
        if kept.tokens is None:
            dropped = [index for index in range(len(before)) if index not in {*kept.blocks}]
            change = state.guarded.drop(seq.id, num_kept, dropped)
        else:
            moved = (tokens != np.arange(tokens.shape[2])).any((0, 1))
            first = 0 if self.plugin.by_head else int(moved.argmax()) // size if moved.any() else None
            change = state.guarded.drop(seq.id, num_kept, range(-(-num_kept // size), len(before)), first)
            state.tiers.flush()  # what loses its content below, before it is written anew
            if first is not None:
                after = state.guarded.table(seq.id)
                state.executor.compact(row, before, after, tokens, first * size)
        shape = np.broadcast_shapes(positions.shape[:2], tokens.shape[:2])
        positions, tokens = (np.broadcast_to(one, (*shape, one.shape[2])) for one in (positions, tokens))
        found = self._of.setdefault(seq, Dropped())
        found.at = written.computed
        found.positions = np.where(tokens < 0, PAST, np.take_along_axis(positions, np.maximum(tokens, 0), 2))
        state.rows.removed[row] = written.computed - num_kept
        self._life.take_table(seq, change.start)
        if state.guarded.groups:  # whose other tables have no more room than before
            state.rows.room[row] = min(int(state.rows.room[row]), state.guarded.steady_tokens(seq.id))
        num_kept = round(float((tokens >= 0).sum(2).mean()))
        self.num_compressions += 1
        self.seen_tokens += written.stored
        self.dropped_tokens += written.stored - num_kept
        self.seen_blocks += len(before)
        self.returned_blocks += used - state.guarded.stats().used_blocks
        state.note("drop", seq, dropped=written.stored - num_kept, kept=num_kept)

    def _checked(
        self, kept: Any, written: Written, positions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], int]:
        """The tokens that stay, (L or 1, K or 1, m), and how many slots they take: of blocks, all of theirs."""
        size, stored, by_head = self._size, written.stored, self.plugin.by_head
        if isinstance(kept, Kept) and kept.tokens is None and not by_head:
            last, blocks = (stored - 1) // size, np.array([*kept.blocks], dtype=np.int64)
            sound = len(blocks) > 0 and (np.diff(blocks) > 0).all() and blocks[0] >= 0 and blocks[-1] <= last
            if sound and (stored % size == 0 or blocks[-1] == last):
                tokens = kept.tokens_of(written)
                return tokens, tokens.shape[2]
        elif isinstance(kept, Kept) and isinstance(kept.tokens, np.ndarray) and kept.tokens.ndim == 3:
            tokens = kept.tokens
            if by_head:
                return tokens, self._slots_by_head(tokens, positions)
            if tokens.shape[-1] and (np.diff(tokens) > 0).all() and tokens.min() >= 0 and tokens.max() < stored:
                return tokens, tokens.shape[-1]
        self.wrong("keep", f"must name, rising, some of {stored} tokens or of their blocks of {size}", kept)
        raise AssertionError

    def _slots_by_head(self, tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> int:
        """How many slots of one table hold what the heads keep: their full blocks together, and as much as behind them.

        All have as many tokens behind their full blocks, so that all come to the end of a block in the same step.
        """
        there, had = tokens >= 0, (positions != PAST).sum(2)
        counts, last = there.sum(2), tokens.max(2, initial=-1)
        rising = (np.diff(tokens) > 0) | ~there[..., 1:]
        inside = (counts > 0).all() and (there == (np.arange(tokens.shape[2]) < counts[..., None])).all()
        if not (inside and rising.all() and (last < had).all() and len({*(counts % self._size).ravel().tolist()}) == 1):
            self.wrong(
                "keep", f"must name, rising and then -1, tokens of each head, whose numbers differ by blocks of "
                f"{self._size}, of {had.min()} to {had.max()} that it has", counts.tolist(),
            )  # fmt: skip
        full = counts // self._size
        return int((-(-full.sum(1) // full.shape[1])).max() * self._size + counts.flat[0] % self._size)

    def summary(self) -> dict[str, Any]:
        seen, blocks = self.seen_tokens, self.seen_blocks
        return {
            "num_compressions": self.num_compressions,
            "dropped_tokens": self.dropped_tokens,
            "dropped_share": self.dropped_tokens / seen if seen else None,
            "returned_blocks": self.returned_blocks,
            "returned_share": self.returned_blocks / blocks if blocks else None,
            **self.plugin.results(),
        }
