"""Construction of the executor that computes: model, backend, KV pool, block tables, and a decoder made fast."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

from framework.config.sections import CacheOptions, EngineOptions
from framework.engine import graphs
from framework.engine.compiled import OpaqueGroup
from framework.engine.executors.checks import require_backend, require_served
from framework.engine.executors.leader import LeaderExecutor, Serving
from framework.engine.executors.model import ModelExecutor
from framework.engine.kv_scales import set_scales
from framework.engine.pool import KVPool
from framework.engine.rows import Rows
from framework.engine.sizes import Sizes
from framework.engine.sparse import sparse_attention
from framework.engine.states import StatePool
from framework.engine.tables import BlockTables
from framework.engine.warm_up import warm_up
from framework.errors import ConfigError, Unsupported
from framework.interfaces.backend import AttentionBackend, AttentionSpec
from framework.interfaces.groups import GroupSizes, KVGroup
from framework.model import memory
from framework.model.decoder import Decoder
from framework.model.loading import LoadedModel, load_model, read_model_config
from framework.model.ranks import Ranks, Worker
from framework.registry.components import Component, build_component


def load_served(
    model: str | LoadedModel, backend: AttentionBackend, *, device: str, cache: CacheOptions, options: EngineOptions
) -> LoadedModel:
    """The model, after its shape alone has shown that the backend can serve it. Arguments as of `LLM`.

    Raises:
        ConfigError, BackendUnavailable, ModelError: as `LLM`.
    """
    size = options.tensor_parallel_size
    if isinstance(model, LoadedModel):
        if (num_ranks := model.decoder.shard.size) != size:
            raise ConfigError(
                f"engine.tensor_parallel_size is {size}, the model was loaded over {num_ranks} ranks; "
                f"load it with load_model(..., tensor_parallel_size={size}), or give its name"
            )
        return model
    require_served(read_model_config(model), None, backend, device, cache, size)
    return load_model(model, device=device, tensor_parallel_size=size)


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
) -> ModelExecutor:
    """The executor of a model, which leads those of the other ranks, where there are any.

    Args:
        chosen: what `backend` was built from; the other ranks build theirs from it.
        facts: of `make_executor`, the same on each rank.
    """
    make = partial(make_executor, model.decoder, backend, sizes, options, device, ranks=model.ranks, **facts)
    if model.ranks is None:
        return make()
    return model.ranks.run(make, serve, chosen, sizes, options, seed, facts)[0]


def serve(
    worker: Worker, chosen: Component, sizes: Sizes, options: EngineOptions, seed: int, facts: dict[str, Any]
) -> None:
    """On another rank: make the executor, with a backend, a pool and tables of its own. A former one is dropped."""
    worker.serving = None
    backend = build_component("backend", chosen, {"seed": seed})
    require_backend(backend, sizes.spec, worker.device)
    executor = make_executor(worker.decoder, backend, sizes, options, worker.device, **facts)
    worker.serving = Serving(executor, Rows(options.max_batch_requests, sizes.max_len))


def make_executor(
    decoder: Decoder,
    backend: AttentionBackend,
    sizes: Sizes,
    options: EngineOptions,
    device: str,
    *,
    poison: bool = False,
    kv_scales: str | None = None,
    kind: type[ModelExecutor] | None = None,
    ranks: Ranks | None = None,
) -> ModelExecutor:
    """Set the backend up, allocate the pool and the tables, and make the decoder fast.

    Args:
        decoder: with the heads that `sizes` counts: one rank's where the model is spread over several.
        kv_scales: file with the scales of an fp8 pool; None calibrates them.
        kind: of executor, in place of the usual one.
        ranks: that hold the other parts of the model and make executors of their own; see `serving_executor`.

    Raises:
        Unsupported: the backend's setup failed.
        OutOfMemory: the pool does not fit.
        ConfigError: CUDA graphs or compilation were asked for and cannot be.
    """
    config, groups = decoder.config, sizes.groups
    kind = kind or ModelExecutor
    sizes = kind.pool_sizes(sizes)
    pool = KVPool(sizes.spec, sizes.num_layers, sizes.num_blocks, device, poison, groups)
    backends = _backends(decoder, backend, pool, sizes.spec, device)
    of_states = {at: one for at, one in enumerate(groups) if one.group.kind == "state"}
    if config.state_layers and not groups:  # a step that is only measured
        alone = KVGroup(name="state", kind="state", block_tokens=sizes.spec.block_size, block_bytes=1)
        of_states = {1: GroupSizes(group=alone, layers=(*range(len(config.state_layers)),), num_blocks=1)}
    states = {at: StatePool(decoder, one, device, poison, pool.pages.get(one.memory)) for at, one in of_states.items()}
    for layer, kv in zip(config.attention_layers, pool.layers, strict=True):
        sinks = decoder.mixer(layer).sinks
        kv.sinks = None if sinks is None else sinks.float()
    set_scales(pool, decoder, kv_scales)
    tokens_of = [one.group.block_tokens for one in groups] or [sizes.spec.block_size] * (1 + len(states))
    tables, *others = (
        BlockTables(options.max_batch_requests, -(-sizes.max_len // tokens), tokens, device) for tokens in tokens_of
    )
    captured, off = graphs.choose(options, backend, device)
    sparse = sparse_attention(decoder, backends, sizes.spec)
    if sparse is not None:
        captured, off = (), "what an indexer selects is not captured"
    made: Any = kind if ranks is None else partial(LeaderExecutor, ranks)
    executor: ModelExecutor = made(decoder, backends, pool, tables, others, states, sparse)
    if options.compile:
        if decoder.group is not None and not isinstance(decoder.group, OpaqueGroup):
            decoder.join(OpaqueGroup(decoder.group))
        executor.compile()
    elif options.prepack:
        decoder.prepack(options.max_batch_requests)
    executor.graphs_off = off
    if captured:
        executor.capture(graphs.CudaRecorder(device), captured)
    return executor


def largest_step_bytes(
    decoder: Decoder, backend: AttentionBackend, sizes: Sizes, options: EngineOptions, device: str
) -> int:
    """What steps of every kind hold at most beside weights and pool, measured over a pool just large enough for one.

    Args, errors: as `make_executor`; the pool of `sizes` is not made, and `backend` not set up: a copy of it is.
    """
    if not memory.counts(device):
        return 0
    num_blocks = sizes.blocks_of(min(sizes.max_len, options.max_batch_tokens))
    small = replace(sizes, num_blocks=num_blocks, max_len=min(sizes.max_len, num_blocks * sizes.spec.block_size))
    plain = options.changed(cuda_graphs=False, compile=False, prepack=False)
    executor = make_executor(decoder, _copy_of(backend, "a step is measured first"), small, plain, device)
    rows = Rows(options.max_batch_requests, small.max_len)
    return memory.peak_bytes(device, lambda: warm_up(executor, rows, small, options))


def _copy_of(backend: AttentionBackend, why: str) -> AttentionBackend:
    try:
        return copy.deepcopy(backend)
    except Exception as error:
        raise Unsupported(
            f"{type(backend).__name__} cannot be copied ({error}), and {why}; give the backend by name"
        ) from error


def _backends(
    decoder: Decoder, backend: AttentionBackend, pool: KVPool, spec: AttentionSpec, device: str
) -> list[AttentionBackend]:
    """The backend of each layer with attention, set up: `backend`, and a copy where layers differ in what they see.

    Raises:
        Unsupported: the setup failed, or the backend cannot be copied.
    """
    config = decoder.config
    seen = [(config.window(layer), config.chunk(layer), kv.block_size)
            for layer, kv in zip(config.attention_layers, pool.layers, strict=True)]  # fmt: skip
    by_span = {
        span: _copy_of(backend, "layers of this model differ in what they see") if number else backend
        for number, span in enumerate(dict.fromkeys(seen))
    }
    for (window, chunk, size), layer_backend in by_span.items():
        own = replace(spec, sliding_window=window, attention_chunk=chunk, block_size=size)
        layer_backend.setup(own, device)
    return [by_span[span] for span in seen]
