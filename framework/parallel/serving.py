"""A model that is loaded to be served, and the executor over it: in this process, or over several that share it."""

# Shapes: B rows of a step  T packed tokens

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from framework.config.sections import CacheOptions, EngineOptions
from framework.engine.executors.base import BoolArray, Executor, FloatArray, Step
from framework.engine.executors.build import make_executor
from framework.engine.executors.checks import attention_spec, require_backend
from framework.engine.executors.model import ModelExecutor
from framework.engine.kv_scales import require_scales
from framework.engine.rows import IntArray, Rows
from framework.engine.served_pass import Gaps, served_pass
from framework.engine.sizes import Sizes
from framework.errors import ConfigError, RankError
from framework.interfaces.backend import AttentionBackend, AttentionSpec
from framework.model.config import ModelConfig
from framework.model.loading import LoadedModel, load_model, read_model_config
from framework.model.ranks import Call, Ranks, Worker
from framework.model.shard import Shard
from framework.registry.components import Component, build_component
from framework.types import BlockCopy

T = TypeVar("T")


class LeaderExecutor(Executor):
    """Passes every call on to `inner` and, with the next step, to the other ranks: one message a step.

    Tokens are drawn on rank 0 alone, which has the logits of the whole vocabulary. The clock is its own.

    Args:
        inner: over rank 0's part of the model and of the pool.
    """

    def __init__(self, inner: Executor, ranks: Ranks) -> None:
        self.inner, self.ranks = inner, ranks
        self._calls: list[Call] = []
        ranks.leader = self

    def begin_step(self, number: int) -> None:
        self.inner.begin_step(number)

    def restart_clock(self) -> None:
        self.inner.restart_clock()

    def summary(self) -> dict[str, Any]:
        return self.inner.summary()

    def reset(self) -> None:
        """See Executor.

        Raises:
            RankError: the interrupted step left the other ranks in the middle of it, which ended them.
        """
        self._require_ranks()
        self._calls = [(execute, ("reset",))]
        self.inner.reset()

    def set_table(self, row: int, start: int, ids: npt.NDArray[np.int32], group: int = 0) -> None:
        self._calls.append((execute, ("set_table", row, start, ids.copy(), group)))
        self.inner.set_table(row, start, ids, group)

    def clear_table(self, row: int) -> None:
        self._calls.append((execute, ("clear_table", row)))
        self.inner.clear_table(row)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._calls.append((execute, ("copy_blocks", list(copies))))
        self.inner.copy_blocks(copies)

    def fresh(self, ids: npt.NDArray[np.int32], group: int = 0) -> None:
        self._calls.append((execute, ("fresh", ids.copy(), group)))
        self.inner.fresh(ids, group)

    def forward(self, step: Step, rows: Rows) -> None:
        """See Executor.

        Raises:
            RankError: another rank failed, or another LLM has taken the ranks over.
        """
        self._require_ranks()
        calls, self._calls = self._calls, []
        with self.ranks.in_step():
            self.ranks.tell([*calls, (forward, (step, rows.tokens[step.packed]))])
            self.inner.forward(step, rows)

    def sample(self, indices: IntArray, streams: IntArray, step: Step, rows: Rows) -> tuple[IntArray, BoolArray]:
        return self._drawn(lambda: self.inner.sample(indices, streams, step, rows))

    def logprobs(self, indices: IntArray, tokens: IntArray, k: int) -> tuple[FloatArray, IntArray, FloatArray]:
        return self._drawn(lambda: self.inner.logprobs(indices, tokens, k))

    def now(self) -> float:
        return self.inner.now()

    def wait_until(self, when: float) -> None:
        self.inner.wait_until(when)

    def _require_ranks(self) -> None:
        self.ranks.require_alive()
        if self.ranks.leader is not self:
            raise RankError("another LLM was made over the same ranks, and their KV pool is now its own; load twice")

    def _drawn(self, draw: Callable[[], T]) -> T:
        """What `draw` reads of the device means nothing if a rank died meanwhile."""
        drawn = draw()
        self.ranks.require_alive()
        return drawn


@dataclass(frozen=True, slots=True)
class Serving:
    """What serves another rank's part of the model."""

    executor: ModelExecutor
    spec: AttentionSpec
    rows: Rows


def serve(
    worker: Worker, chosen: Component, sizes: Sizes, options: EngineOptions, seed: int, facts: dict[str, Any]
) -> None:
    """On another rank: make the executor, with a backend, a pool and tables of its own. A former one is dropped.

    Args:
        sizes: of one rank's heads. facts: of `make_executor`.
    """
    worker.serving = None
    backend = build_component("backend", chosen, {"seed": seed})
    require_backend(backend, sizes.spec, worker.device)
    executor = make_executor(worker.decoder, backend, sizes, options, worker.device, **facts)
    worker.serving = Serving(executor, sizes.spec, Rows(options.max_batch_requests, sizes.max_len))


def execute(worker: Worker, name: str, *arguments: Any) -> None:
    """On another rank: a method of the executor."""
    getattr(worker.serving.executor, name)(*arguments)


def forward(worker: Worker, step: Step, tokens: IntArray) -> None:
    """On another rank: compute the step's tokens (T,), packed row by row."""
    rows = worker.serving.rows
    rows.tokens[step.packed] = tokens
    rows.length[step.rows] = step.computed + step.num_new
    worker.serving.executor.forward(step, rows)


def measure_gaps(worker: Worker, tokens: list[int], num_prompt: int) -> Gaps:
    """On another rank: what attention over its heads lost; see `served_pass`."""
    serving: Serving = worker.serving
    return served_pass(
        worker.decoder, serving.executor.by_layer, serving.spec, serving.executor.pool, tokens, num_prompt
    )[1]


def load_served(
    model: str | LoadedModel, backend: AttentionBackend, *, device: str, cache: CacheOptions, options: EngineOptions
) -> LoadedModel:
    """The model, after its shape alone has shown that the backend can serve it. Arguments as of `LLM`.

    Raises:
        ConfigError, BackendUnavailable, ModelError: as `LLM`.
    """
    size = options.tensor_parallel_size
    if isinstance(model, LoadedModel):
        num_ranks = model.decoder.shard.size
        if num_ranks != size:
            raise ConfigError(
                f"engine.tensor_parallel_size is {size}, the model was loaded over {num_ranks} ranks; "
                f"load it with load_model(..., tensor_parallel_size={size}), or give its name"
            )
        return model
    require_served(read_model_config(model), None, backend, device, cache, size)
    return load_model(model, device=device, tensor_parallel_size=size)


def require_served(
    model: ModelConfig, dtype: str | None, backend: AttentionBackend, device: str, cache: CacheOptions, num_ranks: int
) -> None:
    """Raise unless the backend can serve a model of this shape, divided over so many ranks, here.

    Args:
        dtype: of the weights; None: the model's own.

    Raises:
        BackendUnavailable: with its reasons and what would work.
        InvalidArgument: the model does not divide so.
        ConfigError: scales that do not fit.
    """
    require_scales(cache.kv_scales, cache.kv_dtype, model)
    shape = Shard(0, num_ranks).config(model)
    spec = attention_spec(shape, dtype or shape.dtype, cache)
    require_backend(backend, spec, device)


def serving_executor(
    model: LoadedModel,
    backend: AttentionBackend,
    sizes: Sizes,
    options: EngineOptions,
    device: str,
    *,
    chosen: Component,
    seed: int,
    **facts: Any,
) -> tuple[Executor, ModelExecutor]:
    """What the engine steps, and this process's own executor, which it leads where there are other ranks.

    Args:
        chosen: what `backend` was built from; the other ranks build theirs from it.
        facts: of `make_executor`, the same on each rank.
    """
    ranks, decoder = model.ranks, model.decoder
    if ranks is None:
        executor = make_executor(decoder, backend, sizes, options, device, **facts)
        return executor, executor
    ranks.post(serve, chosen, sizes, options, seed, facts)
    with ranks.in_step():
        executor = make_executor(decoder, backend, sizes, options, device, **facts)
        ranks.answers()
    return LeaderExecutor(executor, ranks), executor
