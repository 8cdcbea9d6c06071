"""What a replay is made of: the workload, and the pool's size."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from framework import workload
from framework.config.config import Config
from framework.config.sections import CacheOptions, ReplayOptions
from framework.errors import ConfigError, shown
from framework.interfaces.workload import Workload
from framework.replay.roofline import Roofline

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}  # fmt: skip
_MOST = 1e15  # of any unit: more than any machine has
_CAPACITY = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[KMGT]i?B|B)?")


def workload_of(config: Config) -> tuple[str, Workload]:
    """The name and the object of the workload that `config` chooses; nothing is read yet."""
    chosen = config.workload
    return chosen.name, workload.make(chosen.name, chosen.options, seed=config.seed)


def pool_blocks(
    cache: CacheOptions, options: ReplayOptions, working_set: int | None = None, size: int | None = None
) -> int:
    """The pool's size: cache.num_blocks, or what replay.capacity comes to.

    Args:
        working_set: distinct blocks of the trace. size: bytes a block; None: see `block_bytes`.
    """
    if options.capacity is None:
        if cache.num_blocks is None:
            raise ConfigError("a replay needs cache.num_blocks or replay.capacity: there is no device to ask")
        return cache.num_blocks
    if working_set is None and "%" in options.capacity:
        raise ConfigError(
            f"replay.capacity={options.capacity} is a share of the trace's distinct blocks, which are not known before "
            "this replay; give bytes, as in 40GiB"
        )
    size = size or block_bytes(options, cache)
    return capacity_blocks(options.capacity, working_set=working_set or 0, bytes_per_block=size, name="replay.capacity")


def capacity_blocks(
    text: str, *, working_set: int, bytes_per_block: int | None = None, name: str = "a capacity"
) -> int:
    """Blocks meant by "10000" (blocks), "40GiB", "500MB" (bytes) or "25%" (of the distinct blocks, at least one).

    Args:
        name: of the option, for the message.

    Raises:
        ConfigError: none of these, less than one block, or bytes where the size of a block is not known.
    """
    match = _CAPACITY.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{name} is blocks (10000), bytes (40GiB, 500MB) or a share (25%), found {text!r}")
    number, unit = float(match[1]), match[2]
    if not number <= _MOST:
        raise ConfigError(f"{name} is at most {_MOST:.0e}, found {shown(text)}")
    if unit is None:
        if not number.is_integer():
            raise ConfigError(f"{name} in blocks is a whole number, found {text!r}; a share is written 25%")
        blocks = int(number)
    elif unit == "%":
        if number > 100:
            raise ConfigError(f"{name} is at most 100% of the distinct blocks, found {text!r}")
        blocks = max(round(working_set * number / 100), 1 if number else 0)
    elif bytes_per_block is None:
        raise ConfigError(f"{name} of {text} needs the model's shape: add --shape")
    else:
        blocks = int(number * _UNITS[unit]) // bytes_per_block
    if blocks < 1:
        raise ConfigError(f"{name} of {text} is less than one block")
    return blocks


def what_fewer_bits_buy(config: Config, num_blocks: int, hit_rate: Callable[[int], float | None]) -> dict[str, Any]:
    """The dtype of K and V where `cache.kv_dtype` names one; and where it is not bfloat16, see `equal_bytes`."""
    cache, stored = config.cache, config.cache.kv_dtype
    if stored is None:
        return {}
    if stored == "bfloat16":
        return {"kv_dtype": stored}
    size, model_dtype_bytes = (block_bytes(config.replay, one) for one in (cache, cache.changed(kv_dtype=None)))
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
