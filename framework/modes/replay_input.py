"""Input of both replay executors: the workload, and the pool's size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from framework import workload
from framework.config.config import Config
from framework.config.sections import CacheOptions, ReplayOptions
from framework.errors import ConfigError
from framework.interfaces.workload import Workload
from framework.replay.curves import capacity_blocks
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.roofline import Roofline
from framework.workload import requests_of
from framework.workload.trace_file import TraceFile
from framework.workload.traces.own_format import as_trace


def workload_of(config: Config) -> tuple[str, Workload]:
    """The name and the object of the workload that `config` chooses; nothing is read yet."""
    chosen = config.workload
    return chosen.name, workload.make(chosen.name, chosen.options, seed=config.seed)


def paths_of(found: Workload, name: str, block_size: int, *, full_blocks_only: bool) -> RequestPaths:
    """A workload as paths of blocks of `block_size`, for cache-only replay.

    Raises:
        ConfigError: lengths only, or blocks of another size.
    """
    if not isinstance(found, TraceFile):
        requests = as_trace(requests_of(found, name), block_size)
        return build_paths(requests, full_blocks_only=full_blocks_only)
    trace = found.open(block_size)
    if trace.block_tokens == 0:
        next(iter(trace))  # a trace without requests is that, whatever its format
        raise ConfigError(f"{trace.path} has lengths only: no block is ever shared; use executor=none")
    if trace.block_tokens != block_size:
        raise ConfigError(
            f"executor=cache_only counts whole trace blocks of {trace.block_tokens} tokens; set "
            f"cache.block_size={trace.block_tokens} or a multiple, or use executor=none"
        )
    return build_paths(found.limited(trace), full_blocks_only=full_blocks_only)


def pool_blocks(
    cache: CacheOptions, options: ReplayOptions, working_set: int | None = None, size: int | None = None
) -> int:
    """The pool's size: cache.num_blocks, or what replay.capacity comes to.

    Args:
        working_set: distinct blocks of the trace. size: bytes a block; None: see `block_bytes`.
    """
    if options.capacity is None:
        if cache.num_blocks is None:
            raise ConfigError("mode=replay needs cache.num_blocks or replay.capacity: there is no device to ask")
        return cache.num_blocks
    if working_set is None and "%" in options.capacity:
        raise ConfigError("replay.capacity as a share of the trace is for executor=cache_only; give bytes")
    size = size or block_bytes(options, cache)
    return capacity_blocks(options.capacity, working_set=working_set or 0, bytes_per_block=size, name="replay.capacity")


def what_fewer_bits_buy(config: Config, num_blocks: int, hit_rate: Callable[[int], float | None]) -> dict[str, Any]:
    """The dtype of K and V where `cache.kv_dtype` names one; and where it is not bfloat16, see `equal_bytes`."""
    cache, stored = config.cache, config.cache.kv_dtype
    if stored is None:
        return {}
    if stored == "bfloat16":
        return {"kv_dtype": stored}
    size, model_dtype_bytes = (block_bytes(config.replay, one) for one in (cache, replace(cache, kv_dtype=None)))
    return {"kv_dtype": stored, **equal_bytes(num_blocks, size, model_dtype_bytes, hit_rate)}


def equal_bytes(
    num_blocks: int, stored_bytes: int, own_bytes: int, hit_rate: Callable[[int], float | None]
) -> dict[str, Any]:
    """The blocks that a pool of `num_blocks` would have in the model's dtype, and their hit rate; null without a block.

    Args:
        stored_bytes, own_bytes: of a block, in the dtype of the pool and in the model's.
        hit_rate: of a pool of so many blocks.
    """
    blocks = num_blocks * stored_bytes // own_bytes
    return {"equal_bytes_num_blocks": blocks, "equal_bytes_hit_rate": hit_rate(blocks) if blocks else None}


def block_bytes(options: ReplayOptions, cache: CacheOptions) -> int:
    """Bytes of K and V a block, of the model shape that a replay assumes and the dtype that K and V are to have."""
    roofline = Roofline(shape=options.shape, kv_dtype=cache.kv_dtype)
    return roofline.kv_bytes_per_token * cache.block_size
