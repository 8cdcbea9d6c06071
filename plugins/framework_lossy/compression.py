"""The base class of compressions: which tokens of a request stay in the pool after they were written."""

# Shapes: L layers  K kv heads  n tokens in the pool  m tokens that stay

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from framework.errors import ConfigError
from framework.interfaces.below import Below
from framework.interfaces.compression import CompressedPool, Compression, Compressor, LayerCache
from framework.types import RequestInfo

if TYPE_CHECKING:
    from framework.engine.executors.model import ModelExecutor
    from framework.engine.lifecycle import Lifecycle
    from framework.engine.state import EngineState
    from framework.groups.allocator import GroupedAllocator


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One running request between two steps.

    Attributes:
        info: who sent it, and how long its prompt is.
        computed: tokens of it that were computed.
        stored: of those, tokens that are in the pool: `computed` less what was dropped; where heads kept different
            numbers, as many as their mean, rounded up to whole blocks and what the last one has.
        block_size: tokens.
        compressed_at: `computed` when tokens were last dropped; None: never.
        layers: reads what each layer keeps; empty in a replay.
    """

    info: RequestInfo
    computed: int
    stored: int
    block_size: int
    compressed_at: int | None
    layers: Callable[[], Sequence[LayerCache]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What stays of a request: tokens, or whole blocks.

    Attributes:
        tokens: (L or 1, K or 1, m) int64, rising: the tokens of each head of each layer, as indexes 0 to n - 1 of what
            it has in the pool. They are moved together, so that all blocks but the first ceil(m / block_size) are
            given back. Each head keeps as many, as all heads and layers have one table; with `Compression.by_head` a
            head may keep fewer, by whole blocks, and has -1 behind them: given back is what the heads of the fullest
            layer spare together.
        blocks: rising logical indexes of the blocks that stay, in all layers. Nothing is moved. The last block, which
            is written to, must be among them unless it is full.
    """

    tokens: npt.NDArray[np.int64] | None = None
    blocks: Sequence[int] = field(default=())

    def tokens_of(self, written: Written) -> npt.NDArray[np.int64]:
        """The tokens (L or 1, K or 1, m) that stay, in whatever way they were named."""
        if self.tokens is not None:
            return self.tokens
        size = written.block_size
        tokens = (np.array([*self.blocks], dtype=np.int64)[:, None] * size + np.arange(size)).ravel()
        return tokens[tokens < written.stored][None, None]


class TokenDropping(Compression):
    """A method that says which tokens stay. It is asked after each step about each request that was in it, and changes
    nothing itself. As it stands, all stay.

    Attributes:
        num_queries: last queries of each request that `keep` wants to see; None: all since it was admitted.
        reads_cache: whether `keep` reads keys, values or queries.
        metrics: what `results` may give, declared.
        by_head: whether heads may keep different numbers of tokens. Each head of each layer then has a block table of
            its own, and to the backend is a row of one KV head.
    """

    num_queries: int | None = 0
    reads_cache: bool = True

    def step_end(self, request: RequestInfo, start: int, end: int) -> int:
        """Where the step ends that could compute the request's tokens from `start` up to `end`: above `start`."""
        return end

    def due(self, written: Written) -> bool:
        """Whether `keep` is to be asked about this request now."""
        return False

    def keep(self, written: Written) -> Kept | None:
        """What stays of this request; None: all."""
        return None

    def results(self) -> Mapping[str, Any]:
        """What `result.json` says of what was dropped, beside what the engine counts. Asked at the end."""
        return {}

    def check(self, pool: CompressedPool) -> None:
        from framework_lossy.groups import DroppingGroups

        is_below = type(pool.below) is not Below
        shares = isinstance(pool.allocator, DroppingGroups) and not pool.allocator.each_has_its_own
        reasons = {
            f"allocator {type(pool.allocator).__name__}": not pool.allocator.drops_tokens,
            f"{type(pool.below).__name__} below the pool": is_below and not pool.below.drops_tokens,
            f"mode={pool.mode} (it has no keys to read)": pool.spec is None and self.reads_cache,
            "a sliding window or chunk (it counts slots, which are positions no longer)": pool.windowed,
            "groups that share memory or have blocks of several sizes (take cache.memory=pool_per_group)": shares,
            "something below the pools of several groups": is_below and pool.num_groups > 1,
            "CUDA graphs over several groups (a captured row has one length)": pool.captures and pool.num_groups > 1,
            "several groups of KV, by head": self.by_head and pool.num_groups > 1,
        }
        if self.by_head and pool.spec is not None and pool.backend is not None:
            reasons |= {
                "something below the pool, by head": is_below,
                "several ranks, by head": pool.num_ranks > 1,
                "a latent cache (no head has keys of its own), by head": pool.spec.latent_dim is not None,
                "CUDA graphs (engine.cuda_graphs), by head": pool.captures,
                "attention sinks, by head": pool.spec.sinks,
                "a backend that declares a loss, by head": pool.backend.capabilities.lossy is not None,
            }
        if why := [reason for reason, holds in reasons.items() if holds]:
            raise ConfigError(
                f"compression {type(self).__name__} cannot be combined with {', '.join(why)}; change that, or leave "
                "compression=none"
            )

    def allocator(self) -> type[GroupedAllocator]:
        from framework_lossy.groups import DroppingGroups

        return DroppingGroups

    def executor(self) -> type[ModelExecutor] | None:
        if not self.by_head:
            return None
        from framework_lossy.executor import HeadExecutor

        return HeadExecutor

    def compressor(self, state: EngineState, life: Lifecycle) -> Compressor:
        from framework_lossy.compressor import TokenDropper

        return TokenDropper(self, state, life)
