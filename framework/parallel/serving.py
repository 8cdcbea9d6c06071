"""A model that is loaded to be served, and the executor over it: in this process, or over several that share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from framework.errors import ConfigError, Unsupported
from framework.interfaces.backend import AttentionBackend, AttentionSpec
from framework.model.loading import LoadedModel, load_model, read_model_config
from framework.model.shard import Shard
from framework.parallel.messages import Outbox
from framework.parallel.ranks import Ranks
from framework.parallel.spread import spread_over
from framework.registry.components import Component
from framework.types import BlockCopy

T = TypeVar("T")


class LeaderExecutor:
    """Passes every call on to `inner` and, with the next step, to the other ranks: one message a step.

    Tokens are drawn on rank 0 alone, which has the logits of the whole vocabulary. The clock is its own.

    Args:
        inner: over rank 0's part of the model and of the pool.
    """

    def __init__(self, inner: Executor, ranks: Ranks) -> None:
        self.inner, self.ranks = inner, ranks
        self._outbox = Outbox()
        self._turn = ranks.take_turn()

    def begin_step(self, number: int) -> None:
        """See Executor."""
        self.inner.begin_step(number)

    def restart_clock(self) -> None:
        """See Executor."""
        self.inner.restart_clock()

    def summary(self) -> dict[str, Any]:
        """See Executor."""
        return self.inner.summary()

    def reset(self) -> None:
        """See Executor.

        Raises:
            RankError: the interrupted step left the other ranks in the middle of it, which ended them.
        """
        self.ranks.require_turn(self._turn)
        self._outbox = Outbox()
        self._outbox.reset()
        self.inner.reset()

    def set_table(self, row: int, start: int, ids: npt.NDArray[np.int32]) -> None:
        """See Executor."""
        self._outbox.set_table(row, start, ids)
        self.inner.set_table(row, start, ids)

    def set_further(self, group: int, row: int, ids: npt.NDArray[np.int32], kept: int) -> None:
        """See Executor.

        Raises:
            Unsupported: other ranks are sent one table a row.
        """
        raise Unsupported("several groups of KV are served on one rank; set engine.tensor_parallel_size=1")

    def clear_table(self, row: int) -> None:
        """See Executor."""
        self._outbox.clear_table(row)
        self.inner.clear_table(row)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """See Executor."""
        self._outbox.copy_blocks(copies)
        self.inner.copy_blocks(copies)

    def fresh(self, ids: npt.NDArray[np.int32]) -> None:
        """See Executor."""
        self._outbox.fresh(ids)
        self.inner.fresh(ids)

    def forward(self, step: Step, rows: Rows) -> None:
        """See Executor.

        Raises:
            RankError: another rank failed, or another LLM has taken the ranks over.
        """
        self.ranks.require_turn(self._turn)
        self._outbox.forward(step, rows)
        with self.ranks.in_step():
            self.ranks.group.send(self._outbox.take())
            self.inner.forward(step, rows)

    def sample(self, at: IntArray, streams: IntArray, step: Step, rows: Rows) -> tuple[IntArray, BoolArray]:
        """See Executor."""
        return self._drawn(lambda: self.inner.sample(at, streams, step, rows))

    def logprobs(self, at: IntArray, tokens: IntArray, k: int) -> tuple[FloatArray, IntArray, FloatArray]:
        """See Executor."""
        return self._drawn(lambda: self.inner.logprobs(at, tokens, k))

    def now(self) -> float:
        """See Executor."""
        return self.inner.now()

    def wait_until(self, when: float) -> None:
        """See Executor."""
        self.inner.wait_until(when)

    def _drawn(self, draw: Callable[[], T]) -> T:
        """What `draw` reads of the device means nothing if a rank died meanwhile."""
        drawn = draw()
        self.ranks.require_alive()
        return drawn


def load_served(
    model: str | LoadedModel,
    backend: AttentionBackend,
    *,
    device: str,
    cache: CacheOptions,
    options: EngineOptions,
) -> LoadedModel:
    """The model, after its shape alone has shown that the backend can serve it. Arguments as of `LLM`.

    Raises:
        ConfigError, BackendUnavailable, ModelError: as `LLM`.
    """
    size = options.tensor_parallel_size
    if isinstance(model, LoadedModel):
        held = model.decoder.shard.size
        if held != size:
            raise ConfigError(
                f"engine.tensor_parallel_size is {size}, the model was loaded over {held} ranks; "
                f"load it with load_model(..., spread=spread_over({size})), or give its name"
            )
        return model
    whole = read_model_config(model)
    require_scales(cache.kv_scales, cache.kv_dtype, whole)
    shape = Shard(0, size).config(whole)
    spec = attention_spec(shape, str(shape.dtype), cache.block_size, cache.layout, cache.kv_dtype)
    require_backend(backend, spec, device)
    spread = spread_over(size, timeout_s=options.collective_timeout_s)
    return load_model(model, device=device, spread=spread)


def serving_executor(
    model: LoadedModel,
    backend: AttentionBackend,
    spec: AttentionSpec,
    *,
    chosen: Component,
    seed: int,
    device: str,
    **facts: Any,
) -> tuple[Executor, ModelExecutor]:
    """What the engine steps, and this process's own executor, which it leads where there are other ranks.

    Args:
        chosen: what `backend` was built from; the other ranks build theirs from it.
        facts: of `make_executor`, the same on each rank.
    """
    ranks, decoder = model.ranks, model.decoder
    if ranks is None:
        own = make_executor(decoder, backend, spec, device=device, **facts)
        return own, own
    ranks.post("serve", backend=chosen, spec=spec, seed=seed, **facts)
    with ranks.in_step():
        own = make_executor(decoder, backend, spec, device=device, **facts)
        ranks.answers()
    from framework.parallel.serving import LeaderExecutor

    return LeaderExecutor(own, ranks), own
