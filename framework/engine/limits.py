"""Sizes that follow from the request and the machine: blocks of the pool, tokens of the longest sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from framework.errors import ConfigError

if TYPE_CHECKING:
    from framework.model.ranks import Ranks, Worker

DEFAULT_BLOCKS = 1024  # on a CPU, where nothing is asked
_DEFAULT_FRACTION = 0.9  # of a GPU's free memory, where nothing is asked


class LengthWarning(UserWarning):
    """Longer sequences were asked for than the pool or the model can hold: requests of that length are rejected."""


def longest_sequence(
    asked: int | None, *, positions: int, num_blocks: int, block_size: int, model: str
) -> tuple[int, str]:
    """The longest sequence, tokens, and how to raise it: what stands in the way is not always the option.

    Args:
        asked: engine.max_model_len; None: as long as model and pool allow.
        positions: of the model.
    """
    pool = num_blocks * block_size
    limits = [
        (pool, f"raise cache.num_blocks: the pool's {num_blocks} blocks hold {pool} tokens"),
        (positions, f"take another model: '{model}' has {positions} positions"),
        (asked or positions, "raise engine.max_model_len"),
    ]
    return min(limits, key=lambda limit: limit[0])


def shortened(asked: int | None, found: int, advice: str, *, what: str = "engine.max_model_len={asked}") -> str:
    """One sentence where the longest sequence is shorter than `asked`; empty where it is not.

    Args:
        found: the longest sequence, tokens; advice: how to raise it; see `longest_sequence`.
        what: that asks for it.
    """
    if asked is None or found >= asked:
        return ""
    return f"{what.format(asked=asked)} is more than can be: the longest sequence is {found} tokens; {advice}"


def pool_blocks(
    asked: int | None,
    fraction: float | None,
    *,
    device: str,
    ranks: Ranks | None,
    needed: Callable[[], int] = lambda: 0,
    **sizes: Any,
) -> int:
    """Blocks of the pool: as many as asked, or what fits into a fraction of the device's free memory.

    Args:
        asked: cache.num_blocks; fraction: cache.memory_fraction, in (0, 1].
        ranks: those that share the model; each has as many blocks as the one with the least memory can hold.
        needed: measures what the largest step holds beside the pool, bytes; asked where a fraction decides, and of a
            model on one rank: several take the fraction of all that is free.
        sizes: of a block, as `num_blocks_for` takes them.

    Raises:
        ConfigError: both, or less than one block. InvalidArgument, OutOfMemory: see `num_blocks_for`.
    """
    from framework.engine.pool import num_blocks_for  # replays need the rest of this file, and no torch

    if asked is not None and fraction is not None:
        raise ConfigError("cache.num_blocks and cache.memory_fraction are both set; give one, set the other to null")
    if asked is not None:
        if asked < 1:
            raise ConfigError(f"cache.num_blocks must be at least 1, found {asked}")
        return asked
    if fraction is None and device.startswith("cuda"):
        fraction = _DEFAULT_FRACTION
    if fraction is None:
        return DEFAULT_BLOCKS
    if ranks is None:
        return num_blocks_for(fraction, device, needed=needed(), **sizes)
    if device.startswith("cpu"):
        fraction /= ranks.size  # they share the host's memory
    others: list[int] = ranks.call(_blocks_of, fraction, sizes)
    return min(num_blocks_for(fraction, device, **sizes), *others)


def _blocks_of(worker: Worker, fraction: float, sizes: dict[str, Any]) -> int:
    """On another rank: see `num_blocks_for`, of its device."""
    from framework.engine.pool import num_blocks_for

    return num_blocks_for(fraction, worker.device, **sizes)
