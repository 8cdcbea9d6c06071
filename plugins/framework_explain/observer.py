"""Causes of misses as an observer: what an engine, or a cache-only replay, tells the ledger of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from framework.interfaces.allocator import CacheEvent, Hit
from framework.interfaces.observer import Call, Move, Note, Observed, RunView
from framework.types import Namespace, RequestId, TokenArray
from framework_cache_only.parts import CacheOnlyObserver, Counted, Losses
from framework_explain.account import REGRET, Account
from framework_explain.ledger import Ledger
from framework_explain.metrics import METRICS

if TYPE_CHECKING:
    from framework_explain.replayed_misses import LossLog

_MAKES_ROOM = frozenset({"allocate", "extend", "commit", "fork", "free"})
"""Calls that may give content up for the sake of their request."""
_LETS_GO = frozenset({"free", "unref_leading"})
"""Calls in which nobody needs room: what is given up then was not worth keeping."""


class Explain(CacheOnlyObserver):
    """One cause for each missed prompt token: in requests.jsonl, result.json and regret.jsonl.

    With several groups of KV causes are those of the first, full attention: what it holds where a window or state is
    missing is unreachable.

    Args:
        most_contents: lost contents that are remembered, of some 300 bytes each.
    """

    metrics, files = METRICS, (REGRET,)
    figures = ("framework_explain.token_origins", "framework_explain.regret_by_age")
    tables = ("framework_explain.table_of_misses:misses",)

    def __init__(self, *, most_contents: int = 2**22) -> None:
        self._most_contents, self._policy = most_contents, ""
        self._run: RunView | None = None
        self._ledger: Ledger | None = None
        self._cache: Observed | None = None
        self._numbers: dict[RequestId, int] = {}  # the request of each sequence that has blocks
        self._log: LossLog | None = None
        self._columns: Mapping[str, Sequence[int]] = {}
        self._account: Account | None = None

    def start(self, run: RunView) -> None:
        self._run, self._policy = run, str(run.config["eviction"]["name"])

    # An engine

    def begin(self, cache: Observed) -> None:
        if self._ledger is None:
            self._wide = cache.groups[0].block_tokens // cache.block_size if cache.groups else 1
            self._ledger = Ledger(self._wide * cache.block_size, policy=self._policy, most_contents=self._most_contents)
        self._cache = cache
        self._ledger.lies_below = cache.lies_below
        self._ledger.reset()
        self._numbers.clear()

    @property
    def ledger(self) -> Ledger:
        """The ledger of the engine that it listens to."""
        assert self._ledger is not None, "no engine has begun"
        return self._ledger

    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        ledger, name, request = self._ledger, call.name, call.request
        assert ledger is not None
        if request is not None and name in _MAKES_ROOM:
            number = self._numbers.get(request)
            if number is not None:
                ledger.serve(number)
                if name == "fork" and call.info is not None:
                    self._numbers[call.info.id] = number
        if events:
            ledger.decline(True) if name in _LETS_GO else None
            for event in events:
                if event.group == 0:
                    ledger.heard(event)
            ledger.decline(False) if name in _LETS_GO else None
        if request is None:
            return
        if name == "unref_leading":
            ledger.pass_by(request, call.num_tokens // ledger.block_size)
        elif name == "free":
            ledger.leave(request)
            self._numbers.pop(request, None)

    def noted(self, note: Note) -> None:
        subject, ledger = note.subject, self.ledger
        if subject is None or note.event not in ("ask", "admit"):
            return
        info, sequence = subject.info, subject.id
        if note.event == "ask":
            self._numbers[sequence] = note.request
            if subject.was_admitted:
                ledger.serve(note.request)
                return
            hit: Hit = note.facts["hit"]
            others = ledger.others(subject.tokens, info.namespace)
            names = self._names(hit, subject.tokens, info.namespace)
            elsewhere = partial(self._elsewhere, subject.tokens, others)
            ledger.ask(sequence, note.request, names, len(subject.tokens), hit.num_tokens, elsewhere)
            return
        cached = note.facts["cached"]
        if not subject.was_admitted:
            facts: dict[str, Any] = {"turn": info.turn, "tenant": info.tenant, "category": info.category}
            ledger.admit(sequence, note.request, cached, **facts)
        elif subject.hit is not None:
            ledger.preempted_tokens += max(0, subject.computed_before - cached)
            names = self._names(subject.hit, subject.tokens, info.namespace)
            ledger.compute(sequence, names, cached // ledger.block_size)

    def _names(self, hit: Hit, tokens: TokenArray, namespace: Namespace) -> Sequence[Any]:
        """Hashes of the prompt's full blocks."""
        return hit.hashes[self._wide - 1 :: self._wide] or self.ledger.names(tokens, namespace)

    def _elsewhere(self, tokens: Any, others: Sequence[Any]) -> int:
        """How much of a prompt another namespace would hit."""
        assert self._cache is not None
        return max((self._cache.lookup(tokens, other).num_tokens for other in others), default=0)

    def moved(self, move: Move) -> None:
        if move.event == "kept":
            self.ledger.moved_below(move.key)

    # A cache-only replay

    def losses(self) -> Losses:
        from framework_explain.replayed_misses import LossLog

        self._log = LossLog()
        return self._log

    def counted(self, replay: Counted) -> None:
        from framework_explain.replayed_misses import explain

        assert self._log is not None, "nothing was replayed"
        self._account = explain(replay.paths, replay.hits, self._log, num_blocks=replay.num_blocks, policy=self._policy)
        self._columns = self._account.columns()

    # What it adds to a run

    def row(self, request: int) -> Mapping[str, Any]:
        if self._account is not None:
            return {name: column[request] for name, column in self._columns.items()}
        return self.ledger.row(request)

    def results(self) -> Mapping[str, Any]:
        if self._account is None and self._ledger is None:
            return {}
        account = self._account or self.account()
        if self._run is not None:
            for row in account.evictions.rows(account.policy):
                self._run.write(REGRET, row)
        return account.results()

    def account(self) -> Account:
        """The account of the engine that it listens to, against LRU and the optimum of its pool's size, where one table
        has all KV."""
        from framework_explain.replayed_misses import against_models

        assert self._cache is not None, "no engine has begun"
        ledger = self.ledger
        if self._cache.groups:
            return ledger.account()
        return against_models(ledger.account(), ledger.paths, ledger.block_size, self._cache.num_blocks)
