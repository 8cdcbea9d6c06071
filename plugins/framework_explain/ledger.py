"""The ledger of a running cache: what it published and gave up, and from that a cause for each token it missed."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from framework.interfaces.allocator import CacheEvent
from framework.types import Namespace, TokenArray
from framework_explain.account import (
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

Key = Hashable
MOST_NAMESPACES = 8
"""The latest, whose prompts began with the same block, that are asked what they would have hit."""
_NOBODY = -1


def chain(name: bytes, tokens: bytes, block_bytes: int, contents: Sequence[Any] = ()) -> list[bytes]:
    """Names of the full blocks of int32 `tokens` below a block, or a namespace, of this name: each covers all above.

    `contents`: of each block, of those that touch it, (name, start seen from the block); none for all.
    """
    names = list[bytes]()
    for start in range(0, len(tokens) - block_bytes + 1, block_bytes):
        if there := contents and contents[len(names)]:
            name = hashlib.blake2b(name + repr(there).encode(), digest_size=16, person=b"contents").digest()
        name = hashlib.blake2b(name + tokens[start : start + block_bytes], digest_size=16).digest()
        names.append(name)
    return names


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
    """A prompt that was looked up: its blocks' names, and from the hit on the outcome and the eviction of each."""

    keys: Sequence[Key]
    prompt_tokens: int
    first: int
    outcomes: list[int]
    losses: list[Loss | None]


class Ledger:
    """Follows one cache by the names of its contents (chained block hashes), and counts where prompt tokens come from.

    A content is held (findable), or lost, with the way it was lost, or was never there. A request asks once, before
    its first allocation changes anything; each full block that can be hit and is not gets one cause: held, but not
    found, is unreachable (in a tier: not loaded); being computed by a running request is in flight; lost says how; what
    another namespace would have hit is its; all else is new. The last token, and the block it lies in, are the prompt's
    end.

    Args:
        block_size: tokens. policy: whose decisions evictions are.
        most_contents: losses remembered, the latest ones, and prompt blocks and evictions kept for the comparison with
            LRU and the optimum. About 300 bytes a lost or held content, 8 a prompt block.

    Attributes:
        lies_below: whether a tier below the pool has a content; None without tiers.
        num_forgotten: lost contents that were forgotten.
    """

    def __init__(self, block_size: int, *, policy: str, most_contents: int) -> None:
        self.block_size, self.policy, self.most_contents = block_size, policy, most_contents
        self._declining = False
        self._loss: Loss | None = None
        self.lies_below: Callable[[Any], bool] | None = None
        self.num_forgotten = self.num_requests = self.num_references = 0
        self.preempted_tokens = 0
        self._serving, self._asking = _NOBODY, 0
        self._held: set[Key] = set()
        self._copies: dict[Key, int] = {}  # beside the one that is held
        self._lost: dict[Key, Loss] = {}  # of held contents as well
        self._losses: deque[tuple[Loss, Sequence[Key]]] = deque()
        self._num_losses = 0
        self._computing: dict[int, tuple[Sequence[Key], int]] = {}
        self._asked: dict[int, _Asked] = {}
        self._spaces: dict[bytes, tuple[Hashable, ...]] = {}
        self._blocks = [0] * len(OUTCOMES)
        self._rows: dict[int, list[int]] = {}
        self._totals = [0] * len(OUTCOMES)
        self._regret: list[tuple[Any, ...]] = []
        self.paths: list[Ints] | None = []

    # What the cache does

    def heard(self, event: CacheEvent) -> None:
        """Blocks were published, or their content was given up."""
        (self.published if event.kind == "admit" else self.given_up)(event.hashes)

    def published(self, keys: Sequence[Key]) -> None:
        """Blocks with these contents, no two the same, can be found from now on."""
        held_keys = self._held
        if not held_keys.isdisjoint(keys):
            for key in held_keys.intersection(keys):
                self._copies[key] = self._copies.get(key, 0) + 1
        held_keys.update(keys)

    def given_up(self, keys: Sequence[Key]) -> None:
        """Blocks with these contents, no two the same, can be found no longer."""
        if self._copies:
            keys = [key for key in keys if not self._spare(key)]
        self._held.difference_update(keys)
        loss = self._loss
        if loss is None:
            outcome = DECLINED if self._declining else EVICTED
            loss = Loss(outcome, self._serving, self.num_requests + self._asking, self.num_references)
            self._loss = loss
        self._lose(keys, loss)

    def _spare(self, key: Key) -> bool:
        """Whether another block holds this content; one less does now."""
        copies = self._copies.pop(key, 0)
        if copies > 1:
            self._copies[key] = copies - 1
        return copies > 0

    def _lose(self, keys: Sequence[Key], loss: Loss) -> None:
        self._lost.update(dict.fromkeys(keys, loss))
        self._losses.append((loss, keys))
        self._num_losses += len(keys)
        while self._num_losses > self.most_contents:
            old, gone = self._losses.popleft()
            self._num_losses -= len(gone)
            for key in gone:
                if self._lost.get(key) is old:
                    del self._lost[key]
                    self.num_forgotten += key not in self._held

    def moved_below(self, key: Key) -> None:
        """What the pool just evicted lies in a tier below it."""
        loss = self._lost.get(key)
        if loss is not None:
            self._lose((key,), Loss(TIER, loss.request, loss.num_requests, loss.num_references))

    def reset(self) -> None:
        """The cache begins anew: nothing was ever in it. Counts go on."""
        self._num_losses = 0
        for known in (self._held, self._copies, self._lost, self._losses, self._computing, self._asked):
            known.clear()

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
        held_keys, below = self._held, self.lies_below
        num_asked = max(0, (prompt_tokens - 1) // size - first)
        missing = keys[first : first + num_asked]
        losses: list[Loss | None] = [*map(self._lost.get, missing)]
        outcomes = [NEW if loss is None else loss.outcome for loss in losses]
        for flight in self._in_flight(keys, first):
            for index in range(flight.start - first, min(flight.stop - first, len(missing))):
                outcomes[index] = IN_FLIGHT
        if below is not None or not held_keys.isdisjoint(missing):
            whole = True
            for index, key in enumerate(missing):
                if key in held_keys:
                    outcomes[index] = UNREACHABLE
                elif below is not None and below(key):
                    outcomes[index] = TIER if whole else UNREACHABLE
                else:
                    whole = False
        outcomes += [NEW] * (num_asked - len(missing))
        if NEW in outcomes:
            limit = elsewhere() // size - first
            for index in range(min(limit, len(outcomes))):
                if outcomes[index] == NEW:
                    outcomes[index] = ELSEWHERE
        self._asked[sequence] = _Asked(keys, prompt_tokens, first, outcomes, losses)

    def names(self, tokens: TokenArray, namespace: Namespace) -> list[bytes]:
        """Chained names of a prompt's full blocks, for a cache that has none."""
        size, there = self.block_size, list[Any]()
        if namespace.contents:
            blocks = (namespace.within(at, at + size) for at in range(0, len(tokens), size))
            there = [tuple((name, start) for start, _, name in block) for block in blocks]
        return chain(namespace.root.encode(), tokens.tobytes(), 4 * size, there)

    def num_leading(self, keys: Sequence[Key]) -> int:
        """How many of a prompt's blocks, from the first on, are held."""
        return next((index for index, key in enumerate(keys) if key not in self._held), len(keys))

    def others(self, tokens: TokenArray, namespace: Hashable) -> tuple[Any, ...]:
        """The latest other namespaces in which a prompt began with this one's first block; notes this one's."""
        start = tokens[: self.block_size].tobytes()
        known = self._spaces.get(start, ())
        if known == (namespace,):
            return ()
        if namespace not in known:
            if len(self._spaces) >= self.most_contents:
                del self._spaces[next(iter(self._spaces))]
            self._spaces[start] = (*known, namespace)[-MOST_NAMESPACES:]
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
        for outcome in {*outcomes}:
            count = outcomes.count(outcome)
            row[outcome] += count * size
            self._blocks[outcome] += count
        if outcomes:
            row[outcomes[0]] -= inside
        row[END] = prompt - sum(row)
        self._blocks[END] += 1
        for outcome, tokens in enumerate(row):
            self._totals[outcome] += tokens
        self._rows[request] = row
        if EVICTED in outcomes:
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
        flights = []
        for others, start in self._computing.values():
            if first < min(len(keys), len(others)) and others[first] == keys[first]:
                same, differ = first, min(len(keys), len(others))
                while differ - same > 1:
                    middle = (same + differ) // 2
                    same, differ = (middle, differ) if others[middle] == keys[middle] else (same, middle)
                flights.append(range(max(start, first), same + 1))
        return flights

    def leave(self, sequence: int) -> None:
        """A sequence runs no longer, or was given up before it did."""
        self._asking, self._loss = 0, None
        self._asked.pop(sequence, None)
        self._computing.pop(sequence, None)

    def _note(self, asked: _Asked, request: int, cached: int, turn: Any, tenant: Any, category: Any) -> None:
        """A row for each run of missed blocks that one eviction made."""
        size, end = self.block_size, asked.first
        evictions = (
            loss if outcome == EVICTED else None for loss, outcome in zip(asked.losses, asked.outcomes, strict=False)
        )
        for loss, run in groupby(evictions):
            first, end = end, end + sum(1 for _ in run)
            tokens = end * size - max(first * size, cached)
            if loss is None or tokens <= 0 or len(self._regret) >= self.most_contents:
                continue
            first = max(first, cached // size)
            ago = self.num_requests + 1 - loss.num_requests, self.num_references - loss.num_references
            self._regret.append(
                (request, first, end - first, tokens, loss.request, *ago, self.num_requests, turn, tenant, category)
            )

    # What is known at the end

    def row(self, request: int) -> dict[str, int]:
        """What `requests.jsonl` says of a request that has ended; forgotten then."""
        row = self._rows.pop(request, None) or [0] * len(OUTCOMES)
        return {key_of(outcome, "tokens"): row[column] for column, outcome in enumerate(OUTCOMES) if column != HIT}

    def account(self, since: int = 0) -> Account:
        """All of it, as one row for all requests together; LRU and the optimum not compared with.

        Args:
            since: leave so many of the first evictions out.
        """
        columns = [*zip(*self._regret[since:], strict=True)] or [()] * 11
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
