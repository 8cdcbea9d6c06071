"""Construction of the executor that computes: backend, KV pool, block tables, and a decoder made fast."""

from __future__ import annotations

import copy
from dataclasses import replace

from framework.config.sections import EngineOptions
from framework.engine import graphs
from framework.engine.executors.model import ModelExecutor
from framework.engine.kv_scales import set_scales
from framework.engine.opaque_group import opaque_group
from framework.engine.pool import KVPool
from framework.engine.rows import Rows
from framework.engine.states import StatePool
from framework.engine.tables import BlockTables
from framework.engine.warm_up import Limits, warm_up
from framework.errors import ConfigError, Unsupported
from framework.guard.backend import GuardedBackend
from framework.interfaces.backend import AttentionBackend, AttentionSpec
from framework.model import memory
from framework.model.decoder import Decoder, DecoderLayer


def make_executor(
    decoder: Decoder,
    backend: AttentionBackend,
    spec: AttentionSpec,
    *,
    num_blocks: int,
    max_len: int,
    options: EngineOptions,
    device: str,
    poison: bool = False,
    kv_scales: str | None = None,
    further_blocks: int | None = None,
) -> ModelExecutor:
    """Set the backend up, allocate the pool and the tables, and make the decoder fast.

    Args:
        spec: of the attention that `decoder` holds: one rank's heads where the model is spread over several.
        max_len: longest sequence, tokens.
        kv_scales: file with the scales of an fp8 pool; None calibrates them.
        further_blocks: of the layers with a sliding window or a recurrent state, which then are a group of KV with
            tables of its own; None: all layers share one table.

    Raises:
        PluginError, Unsupported: the backend's setup failed.
        OutOfMemory: the pool does not fit.
        ConfigError: CUDA graphs or compilation were asked for and cannot be.
    """
    by_layer = _backends(decoder, backend, spec, device)
    config, states = decoder.config, None
    attending = config.attention_layers
    sliding = [layer for layer in range(config.num_layers) if config.slides(layer)]
    further = [] if further_blocks is None or not sliding else [(further_blocks, sliding)]
    if config.recurrent is not None:
        further_blocks = further_blocks or 1  # a step that is only measured
        states = StatePool(decoder, further_blocks, spec.block_size, device, poison)
    pool = KVPool(
        num_blocks=num_blocks,
        block_size=spec.block_size,
        num_layers=len(attending),
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=spec.kv_dtype or spec.dtype,
        device=device,
        layout=spec.layout,
        poison=poison,
        further=further,
    )
    for at, kv in zip(attending, pool.layers, strict=True):
        layer = decoder.layers[at]
        assert isinstance(layer, DecoderLayer)
        kv.sinks = None if layer.sinks is None else layer.sinks.float()
    set_scales(pool, decoder, kv_scales)
    tables, *others = (
        BlockTables(options.max_batch_requests, -(-max_len // spec.block_size), device)
        for _ in range(1 + (further_blocks is not None))
    )
    sizes, off = graphs.choose(options, backend, device)
    if states is not None:
        sizes, off = (), "recurrent layers are not captured"
    executor = ModelExecutor(decoder, backend, pool, tables, by_layer, others, states)
    if options.compile:
        if decoder.group is not None:
            decoder.join(opaque_group(decoder.group))
        executor.compile()
    elif options.prepack:
        decoder.prepack(options.max_batch_requests)
    executor.graphs_off = off
    if sizes:
        executor.capture(graphs.CudaRecorder(device), sizes)
    return executor


def largest_step_bytes(
    decoder: Decoder,
    backend: AttentionBackend,
    spec: AttentionSpec,
    *,
    max_len: int,
    options: EngineOptions,
    device: str,
) -> int:
    """What steps of every kind hold at most beside weights and pool, measured over a pool just large enough for one.

    Args, errors: as `make_executor`; `backend` is not set up, a copy of it is.
    """
    num_blocks = -(-min(max_len, options.max_batch_tokens) // spec.block_size)
    plain = replace(options, cuda_graphs=False, compile=False, prepack=False)
    longest = min(max_len, num_blocks * spec.block_size)
    limits = Limits.of(options, num_blocks=num_blocks, block_size=spec.block_size, max_len=longest)

    def measured() -> int:
        executor = make_executor(
            decoder, _copy_of(backend), spec, num_blocks=num_blocks, max_len=longest, options=plain, device=device
        )
        rows = Rows(options.max_batch_requests, longest)
        return memory.peak_bytes(device, lambda: warm_up(executor, rows, limits))

    return measured() if memory.counts(device) else 0


def _copy_of(backend: AttentionBackend) -> AttentionBackend:
    try:
        return copy.deepcopy(backend)
    except Exception as error:
        raise Unsupported(
            f"{type(backend).__name__} cannot be copied ({error}), so what a step holds beside the pool cannot be "
            "measured; give cache.num_blocks, or the backend by name"
        ) from error


def _backends(decoder: Decoder, backend: AttentionBackend, spec: AttentionSpec, device: str) -> list[AttentionBackend]:
    """The backend of each layer with attention, set up: `backend`, and a copy where layers differ in their window.

    Raises:
        PluginError, Unsupported: the setup failed, or the backend cannot be copied.
    """
    windows = [decoder.config.window(layer) for layer in decoder.config.attention_layers]
    found = {spec.sliding_window: backend}
    for window in dict.fromkeys(windows):
        if window in found:
            continue
        try:
            found[window] = copy.deepcopy(backend)
        except Exception as error:
            raise Unsupported(
                f"{type(backend).__name__} cannot be copied ({error}), and this model has layers with and without a "
                "sliding window, each of which needs one; give the backend by name"
            ) from error
    for window, own in found.items():
        GuardedBackend(own).setup(replace(spec, sliding_window=window), device)
    return [found[window] for window in windows]


def require_writes_first(options: EngineOptions, backend: AttentionBackend) -> None:
    """Refuse to share blocks within a step over a backend that attends before all rows of the step are written.

    Raises:
        ConfigError: with the option that turns sharing off.
    """
    if options.share_within_step and not backend.capabilities.writes_before_attend:
        raise ConfigError(
            f"{type(backend).__name__} attends to a row before all rows of the step are written (its capabilities say "
            "writes_before_attend=False), so rows of one step cannot share blocks; set engine.share_within_step=false"
        )
