"""One replica of a fleet: an engine of its own, what it was sent, and what it tells of itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.config.config import Config
from framework.engine.engine import Engine, Trial
from framework.engine.request import Request
from framework.errors import ConfigError
from framework.guard.policy import GuardedPolicy
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.observer import Call, Move, Observer
from framework.interfaces.workload import WorkloadRequest
from framework.modes.replay import trace_engine
from framework.replay.items import submit
from framework.types import BlockHash, TokenArray
from framework_fleet.handoff import Handoff, Receiver, Sender, Side, SideBelow
from framework_fleet.router import Load

Heard = tuple[float, int, bool, Sequence[BlockHash]]
"""(when, tier from 0 for the pool on, whether these blocks came or went, their names)."""


@dataclass(slots=True, eq=False, kw_only=True)
class Sent:
    """One request of the workload, and what became of it so far.

    Attributes:
        place: in the workload. number: counts requests in order of routing.
        item: with token ids and the time at which it was sent first.
        hashes: chained names of its prompt's full blocks, until it has ended. path: of prompt and recorded output.
        blocks: small numbers for those of `path`, where bounds are asked for.
        replica: that it was sent to last. matched_tokens: of it there, as the router's index had it.
        elsewhere_tokens, known_tokens: leading tokens that the best other replica had as it was routed, and that any
            replica ever had.
        request: of its replica's engine. first: whether its first token was seen.
        num_sent: how often it was sent: once, and again for each replica that left under it.
        prefilled: of `prefill_replica`, which computed its prompt, where another one decodes. handoff: of its KV.
        done: it has ended for its client, who will not wait any more where it `gave_up`.
    """

    place: int
    number: int
    item: WorkloadRequest
    hashes: Sequence[BlockHash]
    path: Sequence[BlockHash] = ()
    blocks: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    replica: int = -1
    matched_tokens: int = 0
    elsewhere_tokens: int = 0
    known_tokens: int = 0
    request: Request | None = None
    first: bool = False
    num_sent: int = 0
    prefilled: Request | None = None
    prefill_replica: int | None = None
    handoff: Handoff | None = None
    done: bool = False
    gave_up: bool = False


class _Ears(Observer):
    """Follows which blocks come and go, in the pool and below it."""

    def __init__(self) -> None:
        self.heard_now: list[tuple[int, bool, Sequence[BlockHash]]] = []

    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        for event in events:
            if event.group == 0:
                self.heard_now.append((0, event.kind == "admit", event.hashes))

    def moved(self, move: Move) -> None:
        if move.event in ("stored", "removed"):
            self.heard_now.append((move.tier, move.event == "stored", (move.key,)))


@dataclass(slots=True, eq=False)
class Replica:
    """An engine, its scheduler, allocator, policy and tiers, on a clock of its own.

    Attributes:
        ended: called with what ended here and when, seconds.
        below: makes its side of handoffs, where prefill and decode are apart.
        policy: of the engine's allocator.
        present: it has not left. life: how often it came, from 0.
        past: the engines of its earlier lives.
        news: (when, whether it is its end, which) of first tokens and ends, as clients see them.
        reports: of its load after each step. events: blocks that came and went.
    """

    index: int
    config: Config
    trial: Trial
    ended: Callable[[Sent, float], object]
    below: SideBelow | None = None
    engine: Engine = field(init=False)
    policy: EvictionPolicy = field(init=False)
    present: bool = True
    life: int = -1
    past: list[Engine] = field(default_factory=list)
    news: deque[tuple[float, bool, Sent]] = field(default_factory=deque)
    reports: deque[Load] = field(default_factory=deque)
    events: deque[Heard] = field(default_factory=deque)
    _outputs: dict[tuple[int, int], TokenArray] = field(default_factory=dict)
    _sent: dict[int, Sent] = field(default_factory=dict)
    _awaited: list[Sent] = field(default_factory=list)  # whose first token has not come
    _ears: _Ears = field(default_factory=_Ears)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Come, with an empty cache.

        Raises:
            ConfigError: a policy that needs the future.
        """
        self._outputs, self._ears = {}, _Ears()
        trial = self.trial.changed(observers=(*self.trial.observers, self._ears))
        self.engine, self.policy = trace_engine(self.config, trial, self._outputs, self.below)
        if self.policy.needs_future:
            raise ConfigError(
                f"eviction={self.config.eviction.name} needs every block's next use, which depends on what a router "
                "does and on when answers come; choose another policy"
            )
        self.engine.state.on_end = self._on_end
        self.present, self.life = True, self.life + 1

    def leave(self) -> list[Sent]:
        """Go between two steps, with all that it holds; returns what it has not ended."""
        self.present = False
        self.past.append(self.engine)
        left = list(self._sent.values())
        self._sent, self._awaited = {}, []
        self.news.clear()
        self.reports.clear()
        self.events.clear()
        return left

    @property
    def now_s(self) -> float:
        """Its clock, seconds: when the step that began last has ended."""
        return self.engine.executor.now()

    @property
    def busy(self) -> bool:
        """Whether requests are under way here."""
        return self.engine.num_unfinished > 0

    @property
    def side(self) -> Side | None:
        """What handoffs took, where prefill and decode are apart."""
        return None if self.below is None else self.below.made

    @property
    def prefills(self) -> bool:
        """Whether it computes prompts, and another replica decodes."""
        return isinstance(self.side, Sender)

    @property
    def blocked(self) -> bool:
        """Whether it has nothing to do before something happens elsewhere."""
        return self.side is not None and self.side.blocked

    def wake(self, at_s: float) -> None:
        """Something has happened elsewhere."""
        if self.side is not None and self.side.blocked:
            self.side.blocked = False
            self.engine.executor.wait_until(at_s)

    def take(self, sent: Sent, at_s: float) -> None:
        """Queue a request; one that was sent before waits for `at_s`, whenever it arrived first."""
        self.wake(at_s)
        if (sent.num_sent > 1 or sent.handoff is not None) and not self.busy:
            self.engine.executor.wait_until(at_s)
        item = sent.item
        if self.prefills:
            one = replace(item.sampling, n=1, beam_width=1, max_tokens=1)
            item = replace(item, sampling=one, output=None if item.output is None else item.output[:1], output_tokens=1)
        request = submit(self.engine, item)
        sent.request, sent.first, sent.replica = request, False, self.index
        if sent.handoff is not None and isinstance(self.side, Receiver):
            self.side.coming[request.number] = sent.handoff
        output = item.output
        if output is not None and len(output) and item.sampling.beam_width == 1:
            self._outputs[request.number, 0] = output
        if request.status.ended:  # rejected
            if isinstance(self.side, Receiver):
                self.side.forget(request.number)
            self._end(sent, at_s)
        else:
            self._sent[request.number] = sent
            self._awaited.append(sent)

    def step(self) -> None:
        """One step of the engine, and what it tells."""
        self.engine.step()
        now = self.now_s
        state = self.engine.state
        if self._awaited:
            came = [sent for sent in self._awaited if sent.request and sent.request.first_token_s is not None]
            if came:
                for sent in came:
                    sent.first = True
                    self.news.append((now, False, sent))
                self._awaited = [sent for sent in self._awaited if not sent.first]
        if self._ears.heard_now:
            self.events.extend((now, *one) for one in self._ears.heard_now)
            self._ears.heard_now.clear()
        used = state.guarded.stats().used_blocks
        self.reports.append(Load(now, state.rows.num_active, len(state.waiting), used))

    def check(self) -> None:
        """Its engine's invariants; see Engine.check."""
        if self.present:
            self.engine.check()

    def guarded_policy(self) -> GuardedPolicy:
        """Its policy, whose facts are checked."""
        return GuardedPolicy(self.policy)

    def _on_end(self, request: Request) -> None:
        sent = self._sent.pop(request.number, None)
        if sent is not None:
            assert request.finished_s is not None
            self._end(sent, max(request.finished_s, request.arrival_s))

    def _end(self, sent: Sent, at_s: float) -> None:
        if not sent.first:
            self._awaited = [one for one in self._awaited if one is not sent]
        sent.first = True
        self.news.append((at_s, True, sent))
        self.ended(sent, at_s)


def config_of(config: Config, index: int, unequal: Sequence[Mapping[str, Any]]) -> Config:
    """The configuration of replica `index`: that of all, changed by the entries of `unequal` for it.

    Raises:
        ConfigError: an unknown section or setting, or a value outside its bounds.
    """
    for entry in unequal:
        if entry.get("replica") == index:
            for section, values in entry.items():
                if section in ("cache", "engine", "replay") and isinstance(values, Mapping):
                    config = config.changed(**{section: getattr(config, section).changed(**values)})
                elif section != "replica":
                    raise ConfigError(
                        f"mode.unequal: an entry has `replica` and settings of cache, engine and replay, as in "
                        f"{{replica: 0, cache: {{num_blocks: 500}}}}; found {section}={values!r}"
                    )
    return config
