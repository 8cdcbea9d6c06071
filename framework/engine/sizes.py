"""Sizes of an engine's pool and tables: what is asked and what the machine and the model allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from framework.config.sections import CacheOptions
from framework.errors import ConfigError
from framework.interfaces.attention import AttentionSpec
from framework.interfaces.groups import GroupSizes

if TYPE_CHECKING:
    from framework.model.ranks import Ranks, Worker

DEFAULT_BLOCKS = 1024  # on a CPU, where nothing is asked
_DEFAULT_FRACTION = 0.9  # of a GPU's free memory, where nothing is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a model's pool and block tables: settled once, the same on every rank, and handed on whole.

    Attributes:
        spec: of the attention: heads of one rank, dtypes, layout, and the block size.
        num_layers: with attention.
        num_blocks: usable blocks of the pool.
        max_len: longest sequence, tokens.
        groups: of KV, each with tables of its own; empty: all layers share one table.
    """

    spec: AttentionSpec
    num_layers: int
    num_blocks: int
    max_len: int
    groups: tuple[GroupSizes, ...] = ()

    @property
    def longest(self) -> int:
        """Tokens of context that one row can have."""
        return min(self.max_len, self.num_blocks * self.spec.block_size)

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.spec.block_size)


class LengthWarning(UserWarning):
    """Longer sequences were asked for than the pool or the model can hold: requests of that length are rejected."""


def longest_sequence(asked: int | None, sizes: Sizes, positions: int, model: str) -> tuple[int, str]:
    """The longest sequence, tokens, and how to raise it: what stands in the way is not always the option.

    Args:
        asked: engine.max_model_len; None: as long as model and pool allow.
        sizes: of which the pool counts. positions: of the model.
    """
    pool = sizes.num_blocks * sizes.spec.block_size
    limits = [
        (pool, f"raise cache.num_blocks: the pool's {sizes.num_blocks} blocks hold {pool} tokens"),
        (positions, f"take another model: '{model}' has {positions} positions"),
        (asked or positions, "raise engine.max_model_len"),
    ]
    return min(limits, key=lambda limit: limit[0])


def shortened(asked: int | None, longest: int, advice: str, *, what: str = "engine.max_model_len={asked}") -> str:
    """One sentence where the longest sequence is shorter than `asked`; empty where it is not.

    Args:
        longest: the longest sequence, tokens; advice: how to raise it; see `longest_sequence`.
        what: that asks for it.
    """
    if asked is None or longest >= asked:
        return ""
    return f"{what.format(asked=asked)} is more than can be: the longest sequence is {longest} tokens; {advice}"


def pool_blocks(
    cache: CacheOptions,
    spec: AttentionSpec,
    num_layers: int,
    device: str,
    ranks: Ranks | None,
    needed: Callable[[], int] = lambda: 0,
) -> int:
    """Blocks of the pool: as many as asked, or what fits into a fraction of the device's free memory.

    Args:
        spec: of whose blocks a pool of so many blocks of `cache.block_size` tokens has fewer where they are larger.
        ranks: those that share the model; each has as many blocks as the one with the least memory can hold.
        needed: measures what the largest step holds beside the pool, bytes; asked where a fraction decides, and of a
            model on one rank: several take the fraction of all that is free.

    Raises:
        ConfigError: both a number and a fraction. OutOfMemory: see `num_blocks_for`.
    """
    from framework.engine.pool import num_blocks_for  # replays need the rest of this file, and no torch

    fraction = cache.memory_fraction
    if cache.num_blocks is not None and fraction is not None:
        raise ConfigError("cache.num_blocks and cache.memory_fraction are both set; give one, set the other to null")
    if cache.num_blocks is not None:
        return max(1, cache.num_blocks * cache.block_size // spec.block_size)
    if fraction is None and device.startswith("cuda"):
        fraction = _DEFAULT_FRACTION
    if fraction is None:
        return max(1, DEFAULT_BLOCKS * cache.block_size // spec.block_size)
    if ranks is None:
        return num_blocks_for(fraction, device, spec, num_layers, needed())
    if device.startswith("cpu"):
        fraction /= ranks.size  # they share the host's memory
    own, others = ranks.run(
        lambda: num_blocks_for(fraction, device, spec, num_layers), _blocks_of, fraction, spec, num_layers
    )
    return int(min(own, *others))


def _blocks_of(worker: Worker, fraction: float, spec: AttentionSpec, num_layers: int) -> int:
    """On another rank: see `num_blocks_for`, of its device."""
    from framework.engine.pool import num_blocks_for

    return num_blocks_for(fraction, worker.device, spec, num_layers)
