"""The executor of a model over several ranks: rank 0's, which the others follow, and what they do."""

# Shapes: T packed tokens

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from framework.engine.executors.base import BoolArray, FloatArray, Step
from framework.engine.executors.model import ModelExecutor
from framework.engine.rows import IntArray, Rows
from framework.engine.served_pass import Gaps, served_pass
from framework.errors import RankError
from framework.interfaces.compression import LayerCache
from framework.model.ranks import Call, Ranks, Worker
from framework.model.shard import Shard
from framework.types import BlockCopy

T = TypeVar("T")


class LeaderExecutor(ModelExecutor):
    """Over rank 0's part of the model and of the pool. Sends the calls of a step to the other ranks, in one message.

    Tokens are drawn here alone, from the logits of the whole vocabulary. What a compression reads is that of all heads:
    the others send theirs, which costs an answer to each step that somebody listens to, and a message for each read.
    """

    def __init__(self, ranks: Ranks, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ranks = ranks
        self._calls: list[Call] = []
        self._listens: Callable[[int, Tensor], Any] | None = None
        self._heard: list[tuple[int, Tensor]] = []  # of the step at hand: layers, and the queries of this rank's heads
        ranks.leader = self

    def reset(self) -> None:
        """See Executor.

        Raises:
            RankError: the interrupted step left the other ranks in the middle of it, which ended them.
        """
        self.ranks.require_alive()
        self._calls = [(execute, ("reset",))]
        super().reset()

    def set_table(self, row: int, start: int, ids: npt.NDArray[np.int32], group: int = 0) -> None:
        self._calls.append((execute, ("set_table", row, start, ids.copy(), group)))
        super().set_table(row, start, ids, group)

    def clear_table(self, row: int) -> None:
        self._calls.append((execute, ("clear_table", row)))
        super().clear_table(row)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._calls.append((execute, ("copy_blocks", list(copies))))
        super().copy_blocks(copies)

    def fresh(self, ids: npt.NDArray[np.int32], group: int = 0) -> None:
        self._calls.append((execute, ("fresh", ids.copy(), group)))
        super().fresh(ids, group)

    def forward(self, step: Step, rows: Rows) -> None:
        """See Executor.

        Raises:
            RankError: another rank failed, or another LLM has taken the ranks over.
        """
        if self.ranks.leader is not self:
            raise RankError("another LLM was made over the same ranks, and their KV pool is now its own; load twice")
        removed, compute = rows.removed[step.rows] if rows.drops else None, super().forward
        calls = [*self._taken(), (forward, (step, rows.tokens[step.packed], removed))]
        if self._listens is None:
            with self.ranks.in_step():
                self.ranks.tell(calls)
                compute(step, rows)
            return
        _, others = self.ranks.run(lambda: compute(step, rows), queries, before=calls)
        heard, self._heard = self._heard, []
        for number, (layer, own) in enumerate(heard):
            self._listens(layer, torch.cat([own, *(torch.from_numpy(rank[number]).to(own) for rank in others)], 1))

    def listen(self, listener: Callable[[int, Tensor], Any]) -> None:
        self._listens = listener
        self._calls.append((listen, ()))
        super().listen(lambda layer, queries: self._heard.append((layer, queries)))

    def read(
        self, row: int, positions: npt.NDArray[np.int64], queries: Sequence[Sequence[Tensor]], computed: int
    ) -> Sequence[LayerCache]:
        mine = super().read
        own, others = self.ranks.run(
            lambda: mine(row, positions, queries, computed), read, row, positions, computed, before=self._taken()
        )
        config, size = self.decoder.config, self.ranks.size
        held = [head for rank in range(size) for head in Shard(rank, size).kv_heads(config)]
        first = [held.index(head) for head in range(config.num_kv_heads)]  # several ranks may hold one
        caches = []
        for layer, cache in enumerate(own):
            keys, values = (
                torch.cat([one, *(torch.from_numpy(rank[layer][part]).to(one) for rank in others)])[first]
                for part, one in enumerate((cache.keys, cache.values))
            )
            places = np.broadcast_to(positions, (len(own), len(first), positions.shape[2]))[layer]
            at = torch.from_numpy(places.copy()).to(keys.device)
            caches.append(replace(cache, keys=keys, values=values, positions=at))
        return caches

    def compact(
        self,
        row: int,
        source: npt.NDArray[np.int32],
        destination: npt.NDArray[np.int32],
        tokens: npt.NDArray[np.int64],
        start: int,
    ) -> None:
        self._calls.append((execute, ("compact", row, source.copy(), destination.copy(), tokens, start)))
        super().compact(row, source, destination, tokens, start)

    def sample(self, indices: IntArray, streams: IntArray, step: Step, rows: Rows) -> tuple[IntArray, BoolArray]:
        return self._drawn(super().sample(indices, streams, step, rows))

    def logprobs(self, indices: IntArray, tokens: IntArray, k: int) -> tuple[FloatArray, IntArray, FloatArray]:
        return self._drawn(super().logprobs(indices, tokens, k))

    def _taken(self) -> list[Call]:
        """The calls that the other ranks have yet to make."""
        calls, self._calls = self._calls, []
        return calls

    def _drawn(self, drawn: T) -> T:
        """What was read of the device means nothing if a rank died meanwhile."""
        self.ranks.require_alive()
        return drawn


@dataclass(frozen=True, slots=True)
class Serving:
    """What serves another rank's part of the model."""

    executor: ModelExecutor
    rows: Rows
    heard: list[Tensor] = field(default_factory=list)


def execute(worker: Worker, name: str, *arguments: Any) -> None:
    """On another rank: a method of the executor."""
    getattr(worker.serving.executor, name)(*arguments)


def forward(worker: Worker, step: Step, tokens: IntArray, removed: IntArray | None) -> None:
    """On another rank: compute the step's tokens (T,), packed row by row, of rows that lost `removed` (B,) if any."""
    rows = worker.serving.rows
    rows.tokens[step.packed] = tokens
    rows.length[step.rows] = step.computed + step.num_new
    if removed is not None:
        rows.drops = True
        rows.removed[step.rows] = removed
    worker.serving.executor.forward(step, rows)


def listen(worker: Worker) -> None:
    """On another rank: keep what `queries` answers."""
    worker.serving.executor.listen(lambda layer, queries: worker.serving.heard.append(queries))


def queries(worker: Worker) -> list[npt.NDArray[np.float64]]:
    """On another rank: the queries of its heads in the last step, (T, H, D) for each layer. Exact: float64."""
    heard = [one.double().cpu().numpy() for one in worker.serving.heard]
    worker.serving.heard.clear()
    return heard


def read(
    worker: Worker, row: int, positions: npt.NDArray[np.int64], computed: int
) -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """On another rank: keys and values of its heads in each layer; see `Executor.read`. Exact: float64."""
    caches = worker.serving.executor.read(row, positions, (), computed)
    return [(one.keys.double().cpu().numpy(), one.values.double().cpu().numpy()) for one in caches]


def measure_gaps(worker: Worker, tokens: list[int], num_prompt: int) -> Gaps:
    """On another rank: what attention over its heads lost; see `served_pass`."""
    executor = worker.serving.executor
    return served_pass(worker.decoder, executor.by_layer, executor.pool, tokens, num_prompt)[1]
