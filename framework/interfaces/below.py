"""The extension point for what lies below the pool: memory that keeps what the pool gives up, and gives it back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from framework.interfaces.allocator import Allocator, Hit
from framework.interfaces.hash import HashScheme
from framework.types import BlockHash

if TYPE_CHECKING:
    from torch import Tensor

    from framework.config.config import Config
    from framework.config.sections import EngineOptions
    from framework.engine.request import Request, Sequence
    from framework.results.metric import Metric

THREAD = "below the pool"
"""Name of the threads that call plugins on an engine's behalf: a call there that does not return ends the run too."""


class Below:
    """Nothing lies below the pool.

    The base class of what does, chosen by `below=NAME`. Constructor keywords are its options, `below.OPTION=VALUE`. One
    object describes a run's; what it makes for an engine or for a counted replay holds blocks. Its module is imported
    whenever results are read: it imports what it needs as late as it can.

    Attributes:
        metrics: keys of `result.json` that a run with it has besides those of the framework.
        loads: whether requests wait with blocks that are loaded from it: pools are then made for as many more.
        drops_tokens: whether running requests may lose tokens over it. `committed` leaves out what such a request
            computes afterwards, for none is published; `flush` comes before a block that loses its content is written.
    """

    metrics: ClassVar[tuple[Metric, ...]] = ()
    loads: ClassVar[bool] = False
    drops_tokens: ClassVar[bool] = False

    def names(self) -> dict[str, str]:
        """What `result.json` calls the parts of it that were chosen."""
        return {}

    def check(self, config: Config) -> None:
        """Refuse what it cannot be combined with, before anything is read.

        Raises:
            ConfigError: names the key, and says what to change.
        """

    def check_served(self, engine: EngineOptions) -> None:
        """The same for a model that is to be served so.

        Raises:
            ConfigError: says what to change.
        """

    def serve(self, pools: Callable[[], ServedPools]) -> MakeBelow | None:
        """What makes it in an engine that serves a model; None: nothing.

        Args:
            pools: says what there is to know of them.

        Raises:
            ConfigError: it cannot be below such pools.
        """
        return None

    def replay(self, pool: Callable[[], ReplayedPool]) -> MakeBelow | None:
        """What makes it in an engine that replays a trace; None: nothing.

        Args:
            pool: says what there is to know of it.

        Raises:
            ConfigError: it cannot be below such a pool.
        """
        return None

    def request_row(self, request: Request, unit: str) -> dict[str, Any]:
        """What `requests.jsonl` says of what a request got from below.

        Args:
            unit: of the run's clock, which ends the names of times: "s" or "steps".
        """
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTensors:
    """All that the blocks of one group of KV consist of.

    Attributes:
        tensors: each (N + 1, ...), a block each row; block 0 is the null block.
        name, kind: of a further group of KV; empty of the first.
        share: blocks of its pool for each of the first group's, 1 where they share a pool.
    """

    tensors: SequenceOf[Tensor]
    name: str = ""
    kind: str = ""
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPools:
    """The pools of a model that is served, one for each group of KV.

    Attributes:
        allocator: of their blocks, empty. hash: names their contents.
        shared: what components may ask for: block_size, max_model_len, seed.
        groups: the first is full attention, or all there is.
        dtype, layout: of K and V in the first group's pool.
        fingerprint: reads all weights; a text that is equal for models whose K and V of equal tokens are equal.
        now: the engine's clock, seconds.
    """

    allocator: Allocator
    hash: HashScheme
    shared: Mapping[str, Any]
    groups: SequenceOf[BlockTensors]
    dtype: str
    layout: str
    fingerprint: Callable[[], str]
    now: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedPool:
    """The pool of an engine that replays a trace without a model.

    Attributes:
        allocator: of its blocks, empty. hash: names their contents.
        shared: what components may ask for: block_size, max_model_len, seed.
        block_bytes: bytes a block would have, of the model that the replay assumes.
        now, wait_until: the replay's clock.
        recompute_s: (tokens cached, tokens in all) -> predicted seconds of prefilling the rest; None where the clock
            counts steps: copies take no time then.
    """

    allocator: Allocator
    hash: HashScheme
    shared: Mapping[str, Any]
    block_bytes: int
    now: Callable[[], float]
    wait_until: Callable[[float], None]
    recompute_s: Callable[[int, int], float] | None


class EngineBelow:
    """What lies below the pools of one engine, as it asks it. Itself: nothing, which an engine without any has.

    Attributes:
        full: no sequence may begin to wait for blocks from below.
        ready: (sequence, tokens cached) of sequences with a table, all its blocks, and no row.
        busy: a load is under way: time alone brings something on.
    """

    def __init__(self) -> None:
        self.ready: list[tuple[Sequence, int]] = []

    def lies_below(self, key: BlockHash) -> bool:
        """Whether this content lies below the pool, or is on its way from there."""
        return False

    @property
    def full(self) -> bool:
        return True

    @property
    def busy(self) -> bool:
        return False

    # Admission

    def plan(self, seq: Sequence, hit: Hit) -> Any:
        """What to load for `seq` beyond the pool's hit; None if nothing.

        Its `hit` is the part of the pool, `num_tokens` what the sequence has once it is loaded.
        """
        return None

    def park(self, seq: Sequence, plan: Any) -> bool:
        """Let `seq` wait for contents that another sequence is loading already; False if there are none."""
        return False

    def prefetch(self, seq: Sequence, hit: Hit) -> None:
        """`seq` is first in line and the pool has no room."""

    def begin(self, seq: Sequence, hit: Hit, plan: Any) -> bool:
        """`seq` has just got its table: whether it waits for blocks from below, and gets its row later.

        Raises:
            FrameworkError: it holds nothing any more.
        """
        return False

    # What changes in the pool

    def flush(self) -> None:
        """Blocks that were evicted are about to be overwritten."""

    def committed(self, seq: Sequence, before: int, after: int) -> None:
        """The KV of the tokens from `before` to `after` of `seq`, which has a table, is in the pool."""

    def discard(self, seq: Sequence) -> None:
        """The KV that the table of `seq` names is not sound: nothing of it stays below, nor goes there."""

    def ending(self, seq: Sequence) -> bool:
        """`seq` is about to free its table; True: it is kept, and freed later with `Lifecycle.free_table`."""
        return False

    # Sequences without a row

    def poll(self) -> None:
        """Take note of the copies that have ended."""

    def wait(self, until: float | None) -> None:
        """Let time pass until a copy ends, at most to `until`."""

    def drop(self, seq: Sequence, *, returning: bool = False) -> None:
        """Free what `seq`, which has no row, holds, if anything: at once, or when its loads have ended.

        Args:
            returning: it waits again after that.
        """

    def give_up(self) -> bool:
        """Let the latest that waits for a row wait anew, without its blocks; False if none waits so."""
        if self.ready:
            self.drop(self.ready[-1][0], returning=True)
            return True
        return False

    # Facts, and the end

    def check(self, *, settle: bool = False) -> None:
        """The blocks add up, and nothing is pinned for no copy.

        Args:
            settle: wait first until all copies under way have ended.

        Raises:
            InvariantViolation: they do not.
        """

    def summary(self) -> dict[str, Any]:
        """What `result.json` says of what lies below, as it is counted so far."""
        return {}

    def step_row(self) -> dict[str, Any]:
        """For a run's metrics file: what lies below now, and the sequences that wait for blocks."""
        return {}

    def close(self, *, drain: bool) -> None:
        """End the transfers."""


MakeBelow = Callable[..., EngineBelow]
"""Makes what lies below the pools of an engine's (state, lifecycle): when it begins, and after each reset."""
