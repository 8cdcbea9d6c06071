"""The extension point for observers: what happens in an engine's cache, in which call and for which request."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from framework.interfaces.allocator import CacheEvent, Hit
from framework.interfaces.groups import KVGroup
from framework.types import BlockHash, Namespace, RequestId, RequestInfo, TokenArray

if TYPE_CHECKING:
    from framework.results.metric import Metric

__all__ = ["Call", "Move", "Note", "Observed", "Observer", "RunView", "Subject"]

Write = Callable[[str, Mapping[str, Any]], object]
"""(file, record): adds a line to a JSON-lines file of the run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The run that an observer is part of.

    Attributes:
        config: the whole configuration, plain: what `config.yaml` holds.
        write: adds a line to a file of the run directory, one of the observer's `files`.
    """

    config: Mapping[str, Any]
    write: Write


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The cache of an engine, as it is now and until the next `begin`.

    Attributes:
        num_blocks, block_size: of the pool.
        lookup: (tokens, namespace) -> what is cached of them. Changes nothing.
        lies_below: whether a tier below the pool has a content, or it is on its way from one; None without tiers.
        groups: of KV, as `Allocator.groups` has them; empty where all layers share one table.
    """

    num_blocks: int
    block_size: int
    lookup: Callable[[TokenArray, Namespace], Hit]
    lies_below: Callable[[BlockHash], bool] | None = None
    groups: Sequence[KVGroup] = ()


class Call(NamedTuple):
    """A call of the allocator that has ended. One that raised is not given: it changed nothing, or ends the run.

    Arrays are the caller's, who writes on in them.

    Attributes:
        name: the method of `Allocator`: allocate, extend, publish, commit, fork, unref_leading, drop, free,
            reset or advance.
        request: whose table it was about, of a `fork` the parent's; None of `advance` and of a `reset` of all.
        info: of the request, for `allocate`; of the child, for `fork`.
        tokens: that were given: `allocate`, `publish` and `commit`.
        num_tokens: that were given as a number: `extend`, `fork`, `unref_leading` and `drop`.
        hit: of `allocate`: what the request shares.
        table: the block ids of the request, of a `fork` of the child, as the call left them; of `free`, as they were
            before. Empty where there is none. To be asked while the observer is called, with the number of a group of
            KV for its table; without, for the first one's.
    """

    name: str
    request: RequestId | None = None
    info: RequestInfo | None = None
    tokens: TokenArray | None = None
    num_tokens: int = 0
    hit: Hit | None = None
    table: Callable[..., npt.NDArray[np.int32]] = lambda group=0: np.empty(0, dtype=np.int32)


class Subject(Protocol):
    """The sequence that a note is about; it is the engine's, and not to be changed.

    Attributes:
        id: names its table in calls. info: what the allocator may know of it.
        tokens: of prompt and output, as far as they are known.
        was_admitted: it has run before: it was preempted, or forked off.
        computed_before: tokens that it had computed when it last lost its blocks.
        hit: what the pool has of its tokens; of `ask` and `admit`.
    """

    @property
    def id(self) -> RequestId: ...
    @property
    def info(self) -> RequestInfo: ...
    @property
    def tokens(self) -> TokenArray: ...
    @property
    def was_admitted(self) -> bool: ...
    @property
    def computed_before(self) -> int: ...
    @property
    def hit(self) -> Hit | None: ...


class Note(NamedTuple):
    """What only the engine knows: what became of a sequence, or of a step.

    Attributes:
        event: of a sequence: `arrive`; `ask`, it is about to be given blocks, `hit` is what the pool has of it, and
            nothing has changed yet; `admit`, it has a row, and `cached` tokens need not be computed; `preempt`; `fork`
            from `parent`; `load` and `loaded` from below; and how its request ended (`finished`, `failed`,
            `cancelled`, `rejected`). Of a step: `queue`, nobody else is admitted in it, `why`, for want of `rows`,
            `blocks` or `budget`, at which `time_s` of the engine's clock, and who was refused for it as the subject,
            if anybody was asked about; `step`, what it computes; `computed`, all that was published so far has its KV.
        step: steps begun. request: its number, -1 of a step. subject: the sequence; None of a step.
        facts: of this event; but for `ask`, plain values, as the event log has them.
    """

    event: str
    step: int
    request: int = -1
    subject: Subject | None = None
    facts: Mapping[str, Any] = {}


class Move(NamedTuple):
    """What happened to one content below the pool.

    Attributes:
        event: `kept`, what the pool has just given up lies in a tier, or is on its way there; `stored`, the tier holds
            it now; `removed`, it does no longer.
        key: the content's hash. tier: from 1 on. medium: what KV events call the place of this tier.
        above: of `stored`, the hash of the block above it, where that is known.
    """

    event: str
    key: BlockHash
    tier: int
    medium: str = ""
    above: BlockHash | None = None


class Observer(ABC):  # noqa: B024
    """Follows what happens in a run, chosen by `observers=[NAME]`; several may listen.

    Constructor keywords are the options of the command line. A constructor checks its options, with ConfigError, and
    does nothing else. An observer changes nothing of what it is given. What a method raises ends the run.

    A run calls `start`; then, of an engine, `begin`, and as things happen `heard`, `noted` and `moved`; `row` as
    requests end, `results` at the end, `close` last. Every method is optional.
    """

    metrics: ClassVar[tuple[Metric, ...]] = ()
    """What `results` may give, declared."""
    files: ClassVar[tuple[str, ...]] = ()
    """Names of the files that it writes to the run directory; the next run there removes them."""
    figures: ClassVar[tuple[str, ...]] = ()
    """Modules of figures for reports of runs; see framework_report.figures."""
    tables: ClassVar[tuple[str, ...]] = ()
    """`module:function` of tables for reports: of a study, its table."""

    def start(self, run: RunView) -> None:  # noqa: B027
        """A run is going to begin. Once, before all else; not where an engine is made without a run directory.

        Raises:
            ConfigError: what was asked of it cannot be had here.
        """

    def begin(self, cache: Observed) -> None:  # noqa: B027
        """An engine begins with this cache, which is empty; again after each reset of the engine."""

    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:  # noqa: B027
        """A call of the allocator has ended, and these are the cache events that it sent, in order."""

    def noted(self, note: Note) -> None:  # noqa: B027
        """What only the engine knows."""

    def moved(self, move: Move) -> None:  # noqa: B027
        """What happened below the pool."""

    def row(self, request: int) -> Mapping[str, Any]:
        """What `requests.jsonl` says of a request that has ended, by its number. Asked once."""
        return {}

    def results(self) -> Mapping[str, Any]:
        """What `result.json` says. Asked at the end, also of a run that did not come to its end."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Nothing happens any more. Idempotent."""
