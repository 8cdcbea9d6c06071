"""The ledger of a running cache: what it published and gave up, and from that a cause for each token it missed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from framework.interfaces.allocator import CacheEvent
from framework.misses.account import (
    DECLINED,
    ELSEWHERE,
    END,
    EVICTED,
    HIT,
    IN_FLIGHT,
    NEW,
    OUTCOMES,
    TIER,
    UNREACHABLE,
    Account,
    Evictions,
    Ints,
    key_of,
)
from framework.types import Namespace, TokenArray

Key = Hashable
_MOST_NAMESPACES = 8
_NOBODY = -1


@dataclass(slots=True)
class Loss:
    """How a content left the cache: the outcome, for which request, and requests and prompt blocks counted by then.

    One object for all that is given up for one request at a time; nobody changes it.
    """

    outcome: int
    request: int
    num_requests: int
    num_references: int


@dataclass(slots=True)
class _Asked:
    """A prompt that was looked up: its blocks' names, and the outcome of each from the hit on."""

    keys: Sequence[Key]
    prompt_tokens: int
    first: int
    outcomes: list[int]
    losses: dict[int, Loss]


class Ledger:
    """Follows one cache by the names of its contents (chained block hashes), and counts where prompt tokens come from.

    A content is held (findable), or lost, with the way it was lost, or was never there. A request asks once, before
    its first allocation changes anything; each full block that can be hit and is not gets one cause: held, but not
    found, is unreachable (in a tier: not loaded); being computed by a running request is in flight; lost says how; what
    another namespace would have hit is its; all else is new. The last token, and the block it lies in, are the prompt's
    end.

    NOTE. A content that was promised within a step and withdrawn was never there: it is again what it was before.

    Args:
        block_size: tokens. policy: whose decisions evictions are.
        most_contents: lost contents remembered, the latest ones, and prompt blocks and evictions kept for the
            comparison with LRU and the optimum. About 300 bytes a lost or held content, 8 a prompt block.

    Attributes:
        promising: set while the cache publishes what a step has yet to compute.
        lies_below: whether a tier below the pool has a content; None without tiers.
        num_forgotten: lost contents that were forgotten.
    """

    def __init__(self, block_size: int, *, policy: str, most_contents: int) -> None:
        self.block_size, self.policy, self.most_contents = block_size, policy, most_contents
        self.promising = self._declining = False
        self._loss: Loss | None = None
        self.lies_below: Callable[[Any], bool] | None = None
        self.num_forgotten = self.num_requests = self.num_references = 0
        self.preempted_tokens = 0
        self._serving, self._asking = _NOBODY, 0
        self._held: dict[Key, int] = {}
        self._lost: dict[Key, Loss] = {}
        self._promised: dict[Key, Loss | None] = {}
        self._computing: dict[int, tuple[Sequence[Key], int]] = {}
        self._asked: dict[int, _Asked] = {}
        self._spaces: dict[bytes, tuple[Namespace, ...]] = {}
        self._blocks = [0] * len(OUTCOMES)
        self._rows: dict[int, list[int]] = {}
        self._totals = [0] * len(OUTCOMES)
        self._regret: list[tuple[Any, ...]] = []
        self.paths: list[Ints] | None = []

    # What the cache does

    def heard(self, event: CacheEvent) -> None:
        """A block was published, or its content was given up."""
        if event.kind == "admit":
            self.published(event.key)
        else:
            self.given_up(event.key)

    def published(self, key: Key) -> None:
        """A block with this content can be found from now on."""
        held = self._held
        held[key] = held[key] + 1 if key in held else 1
        before = self._lost.pop(key, None)
        if self.promising:
            self._promised[key] = before

    def given_up(self, key: Key) -> None:
        """A block with this content can be found no longer."""
        copies = self._held.pop(key, 0)
        if copies > 1:
            self._held[key] = copies - 1
            return
        if self._promised and key in self._promised:
            before = self._promised.pop(key)
            if before is not None:
                self._lost[key] = before
            return
        loss = self._loss
        if loss is None:
            outcome = DECLINED if self._declining else EVICTED
            loss = Loss(outcome, self._serving, self.num_requests + self._asking, self.num_references)
            self._loss = loss
        self._lost[key] = loss
        if len(self._lost) > self.most_contents:
            oldest = [*islice(self._lost, 1 + self.most_contents // 8)]
            for old in oldest:
                del self._lost[old]
            self.num_forgotten += len(oldest)

    def moved_below(self, key: Key) -> None:
        """What the pool just evicted lies in a tier below it."""
        loss = self._lost.get(key)
        if loss is not None:
            self._lost[key] = Loss(TIER, loss.request, loss.num_requests, loss.num_references)

    def reset(self) -> None:
        """The cache begins anew: nothing was ever in it. Counts go on."""
        for known in (self._held, self._lost, self._promised, self._computing, self._asked):
            known.clear()

    def kept_promises(self) -> None:
        """All that was promised has been computed."""
        self._promised.clear()

    # What requests do

    def serve(self, request: int) -> None:
        """What is given up from now on makes room for this request."""
        self._serving, self._loss = request, None

    def decline(self, declining: bool) -> None:
        """Whether what is given up from now on is what nobody wanted to keep, rather than made to give room."""
        self._declining, self._loss = declining, None

    def ask(
        self,
        sequence: int,
        request: int,
        keys: Sequence[Key],
        prompt_tokens: int,
        hit_tokens: int,
        elsewhere: Callable[[], int],
    ) -> None:
        """`request` is about to be given blocks for its prompt, for the first time; the cache has `hit_tokens` of it.

        Args:
            sequence: a number under which it is admitted, or let go, later.
            keys: of the prompt's full blocks, in order; those that the cache does not name may be missing.
            elsewhere: leading tokens that another namespace would have hit; asked only where something is new.
        """
        self._serving, self._asking, self._loss = request, 1, None
        first, size = hit_tokens // self.block_size, self.block_size
        held, lost, below, flights = self._held, self._lost, self.lies_below, self._in_flight(keys, first)
        outcomes: list[int] = []
        losses: dict[int, Loss] = {}
        whole = True
        for at in range(first, (prompt_tokens - 1) // size):
            key = keys[at] if at < len(keys) else None
            if key is None:
                outcomes.append(NEW)
            elif key in held:
                outcomes.append(UNREACHABLE)
            elif below is not None and below(key):
                outcomes.append(TIER if whole else UNREACHABLE)
            else:
                whole = False
                loss = lost.get(key)
                if flights and any(at in flight for flight in flights):
                    outcomes.append(IN_FLIGHT)
                elif loss is None:
                    outcomes.append(NEW)
                else:
                    outcomes.append(loss.outcome)
                    if loss.outcome == EVICTED:
                        losses[at] = loss
        if NEW in outcomes:
            limit = elsewhere() // size - first
            for at in range(min(limit, len(outcomes))):
                if outcomes[at] == NEW:
                    outcomes[at] = ELSEWHERE
        self._asked[sequence] = _Asked(keys, prompt_tokens, first, outcomes, losses)

    def names(self, tokens: TokenArray, namespace: Namespace) -> list[Key]:
        """Chained names of a prompt's full blocks, for a cache that has none."""
        step, data, name = 4 * self.block_size, tokens.tobytes(), namespace.encode()
        found: list[Key] = []
        for at in range(0, len(data) - step + 1, step):
            name = hashlib.blake2b(name + data[at : at + step], digest_size=16).digest()
            found.append(name)
        return found

    def others(self, tokens: TokenArray, namespace: Namespace) -> tuple[Namespace, ...]:
        """The latest other namespaces in which a prompt began with this one's first block; notes this one's."""
        start = tokens[: self.block_size].tobytes()
        known = self._spaces.get(start, ())
        if known == (namespace,):
            return ()
        if namespace not in known:
            if len(self._spaces) >= self.most_contents:
                del self._spaces[next(iter(self._spaces))]
            self._spaces[start] = (*known, namespace)[-_MOST_NAMESPACES:]
        return tuple(other for other in known if other != namespace)

    def admit(
        self, sequence: int, request: int, cached_tokens: int, *, turn: Any = None, tenant: Any = None,
        category: Any = None,
    ) -> None:  # fmt: skip
        """It has its blocks; `cached_tokens` of its prompt need not be computed, those of tiers included."""
        self._asking, self._loss = 0, None
        asked = self._asked.pop(sequence)
        size, prompt, first = self.block_size, asked.prompt_tokens, asked.first
        skipped = min(len(asked.outcomes), cached_tokens // size - first)
        outcomes = asked.outcomes[skipped:]
        first += skipped
        row = [0] * len(OUTCOMES)
        row[HIT] = cached_tokens
        self._blocks[HIT] += first
        inside = cached_tokens - first * size  # of the first missed block, or of the last one
        for outcome in outcomes:
            row[outcome] += size - inside
            self._blocks[outcome] += 1
            inside = 0
        row[END] = prompt - sum(row)
        self._blocks[END] += 1
        for outcome, tokens in enumerate(row):
            self._totals[outcome] += tokens
        self._rows[request] = row
        if asked.losses:
            self._note(asked, request, cached_tokens, turn, tenant, category)
        self.num_requests += 1
        self.num_references += -(-prompt // size)
        if self.paths is not None:
            limit = (prompt - 1) // size
            if self.num_references > self.most_contents or len(asked.keys) < limit:
                self.paths = None
            else:
                self.paths.append(np.fromiter(map(hash, asked.keys[:limit]), np.int64, limit))
        self.compute(sequence, asked.keys, first)

    def compute(self, sequence: int, keys: Sequence[Key], first: int) -> None:
        """A running sequence is going to compute the blocks of these contents from the `first` on."""
        self._computing[sequence] = keys, first

    def pass_by(self, sequence: int, num_blocks: int) -> None:
        """A running sequence reads its leading blocks no longer: what becomes of them is no more its doing."""
        keys, first = self._computing.get(sequence, ((), 0))
        self._computing[sequence] = keys, max(first, num_blocks)

    def _in_flight(self, keys: Sequence[Key], first: int) -> list[range]:
        """Which blocks of a prompt, from the `first` on, running sequences compute: names are chained, so each has a
        run of them.
        """
        found = []
        for others, start in self._computing.values():
            if first < min(len(keys), len(others)) and others[first] == keys[first]:
                same, differ = first, min(len(keys), len(others))
                while differ - same > 1:
                    middle = (same + differ) // 2
                    same, differ = (middle, differ) if others[middle] == keys[middle] else (same, middle)
                found.append(range(max(start, first), same + 1))
        return found

    def leave(self, sequence: int) -> None:
        """A sequence runs no longer, or was given up before it did."""
        self._asking, self._loss = 0, None
        self._asked.pop(sequence, None)
        self._computing.pop(sequence, None)

    def _note(self, asked: _Asked, request: int, cached: int, turn: Any, tenant: Any, category: Any) -> None:
        """A row for each run of missed blocks that one eviction made."""
        size, last = self.block_size, (-2, _NOBODY, 0)
        for at, loss in asked.losses.items():
            tokens = min(size, (at + 1) * size - cached)
            if tokens <= 0:
                continue
            this = (at, loss.request, loss.num_requests)
            if self._regret and last == (at - 1, *this[1:]):
                row = self._regret[-1]
                self._regret[-1] = (*row[:2], row[2] + 1, row[3] + tokens, *row[4:])
            elif len(self._regret) < self.most_contents:
                ago = self.num_requests + 1 - loss.num_requests, self.num_references - loss.num_references
                self._regret.append(
                    (request, at, 1, tokens, loss.request, *ago, self.num_requests, turn, tenant, category)
                )
            last = this

    # What is known at the end

    def row(self, request: int) -> dict[str, int]:
        """What `requests.jsonl` says of a request that has ended; forgotten then."""
        row = self._rows.pop(request, None) or [0] * len(OUTCOMES)
        return {key_of(outcome, "tokens"): row[at] for at, outcome in enumerate(OUTCOMES) if at != HIT}

    def account(self) -> Account:
        """All of it, as one row for all requests together; LRU and the optimum not compared with."""
        columns = [*zip(*self._regret, strict=True)] or [()] * 11
        numbers = [np.array(column, dtype=np.int64) for column in columns[:8]]
        turn, tenant, category = (list(column) for column in columns[8:])
        names = (
            "request", "depth", "blocks", "tokens", "evicted_for", "requests_ago", "references_ago", "admission",
        )  # fmt: skip
        lost = dict(zip(names, numbers, strict=True))
        return Account(
            blocks=np.array([self._blocks], dtype=np.int64),
            tokens=np.array([self._totals], dtype=np.int64),
            evictions=Evictions(**lost, turn=turn, tenant=tenant, category=category),
            policy=self.policy,
            preempted_tokens=self.preempted_tokens,
            num_forgotten=self.num_forgotten,
        )
