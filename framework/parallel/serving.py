"""A model that is loaded to be served, and the executor over it: in this process, or over several that share it."""

from __future__ import annotations

from typing import Any

from framework.config.sections import EngineOptions
from framework.engine.executors.base import Executor
from framework.engine.executors.build import make_executor
from framework.engine.executors.checks import attention_spec, require_backend
from framework.engine.executors.model import ModelExecutor
from framework.engine.kv_scales import require_scales
from framework.errors import ConfigError
from framework.interfaces.backend import AttentionBackend, AttentionSpec
from framework.model.loading import LoadedModel, load_model, read_model_config
from framework.model.shard import Shard
from framework.parallel.spread import spread_over
from framework.registry.components import Component


def load_served(
    model: str | LoadedModel,
    backend: AttentionBackend,
    *,
    device: str,
    dtype: str | None,
    kv_dtype: str | None,
    kv_scales: str | None,
    block_size: int,
    layout: str,
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
    require_scales(kv_scales, kv_dtype, whole)
    shape = Shard(0, size).config(whole)
    own = dtype if dtype not in (None, "auto") else shape.dtype
    require_backend(backend, attention_spec(shape, str(own), block_size, layout, kv_dtype), device)
    spread = spread_over(size, timeout_s=options.collective_timeout_s)
    return load_model(model, dtype=dtype, device=device, spread=spread)


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
    from framework.parallel.leader import LeaderExecutor

    return LeaderExecutor(own, ranks), own
