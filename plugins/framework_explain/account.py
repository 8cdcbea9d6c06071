"""The account of a run's prompt tokens: hits, and one cause for each token that was computed."""
# Shapes: R requests  C outcomes (a hit, or a cause)  V evictions of content that was asked for again

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.errors import InvalidArgument

REGRET = "regret.jsonl"
"""The file of a run directory with a line for each eviction of content that was asked for again."""
Ints = npt.NDArray[np.int64]

HIT, NEW, EVICTED, UNREACHABLE, DECLINED, IN_FLIGHT, END, ELSEWHERE, TIER = range(9)
OUTCOMES = (
    "hit", "new", "evicted", "unreachable", "declined", "in flight", "end of prompt", "other namespace", "tier",
)  # fmt: skip
"""What becomes of a prompt token at its request's first admission, in the order of an account's columns."""
AGES = (10, 100, 400, 1_000, 4_000)
"""Requests ago, between which ages are summed."""
_TURNS = (1, 2, 3, 5, 10)


def key_of(outcome: str, unit: str) -> str:
    """The name of a cause's count in results and in requests.jsonl: `missed_in_flight_tokens`."""
    return f"missed_{outcome.replace(' ', '_')}_{unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictions:
    """Evictions of content that was asked for again, neighbours of one eviction and one miss together; V long.

    Attributes:
        request: that missed it. depth: blocks above the first of these. blocks, tokens: that it computed again.
        evicted_for: the request whose allocation needed the room; -1 where nobody's did.
        admission: the request's place in the order of first admissions.
        requests_ago, references_ago: requests first admitted, and prompt blocks they asked for, since the eviction.
        lru_blocks, optimum_blocks, and their tokens: of these, how many LRU and the pinned optimum of the same
            capacity would have hit in the request model (framework_cache_only.reference); None where not worked out.
        turn, tenant, category: of the request that missed it, where known.
    """

    request: Ints
    depth: Ints
    blocks: Ints
    tokens: Ints
    evicted_for: Ints
    requests_ago: Ints
    references_ago: Ints
    admission: Ints
    lru_tokens: Ints | None = None
    optimum_tokens: Ints | None = None
    turn: Sequence[int | None] = ()
    tenant: Sequence[str | None] = ()
    category: Sequence[str | None] = ()

    def __len__(self) -> int:
        return len(self.request)

    def rows(self, policy: str) -> list[dict[str, Any]]:
        """One mapping an eviction, as `regret.jsonl` holds them."""
        columns: dict[str, Sequence[Any]] = {}
        for name in self.__dataclass_fields__:
            column = getattr(self, name)
            if isinstance(column, np.ndarray):
                columns[name] = column.tolist()
            elif column:
                columns[name] = column
        columns["evicted_by"] = [policy] * len(self)
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Evictions:
        """What `rows` gave."""
        columns: dict[str, Any] = {}
        for name in cls.__dataclass_fields__:
            values = [row.get(name) for row in rows]
            if name in ("turn", "tenant", "category"):
                columns[name] = values
            elif name not in ("lru_tokens", "optimum_tokens") or (values and None not in values):
                columns[name] = np.array(values, dtype=np.int64)
        return cls(**columns)

    def sums(self) -> dict[str, dict[str, dict[str, int]]]:
        """Tokens computed again, and those of them that the optimum kept, by age, depth, turn, tenant and category."""
        deep = ["block 0" if d == 0 else f"block {1 << d.bit_length() - 1}+" for d in self.depth.tolist()]
        groups: dict[str, Sequence[str]] = {
            "age": [age_of(ago) for ago in self.requests_ago.tolist()],
            "depth": deep,
            "turn": ["unknown" if turn is None else _range_of(turn, _TURNS) for turn in self.turn],
            "tenant": [tenant or "none" for tenant in self.tenant],
            "category": [category or "none" for category in self.category],
        }
        return {name: self._summed(labels) for name, labels in groups.items() if len(labels)}

    def _summed(self, labels: Sequence[str]) -> dict[str, dict[str, int]]:
        kept = self.optimum_tokens.tolist() if self.optimum_tokens is not None else None
        sums: dict[str, dict[str, int]] = {}
        for index, (label, tokens) in enumerate(zip(labels, self.tokens.tolist(), strict=True)):
            row = sums.setdefault(label, {"tokens": 0} if kept is None else {"tokens": 0, "optimum_kept_tokens": 0})
            row["tokens"] += tokens
            if kept is not None:
                row["optimum_kept_tokens"] += kept[index]
        return dict(sorted(sums.items(), key=lambda item: _natural(item[0])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where each prompt token of each request came from.

    Attributes:
        blocks, tokens: (R, C) of each request by outcome, in the order of OUTCOMES; a row sums to the request's own.
        evictions: of what was asked for again.
        policy: whose decisions the evictions were.
        preempted_tokens: computed once more after a preemption, beside those of `tokens`.
        num_forgotten: contents that were lost and forgotten for want of room: misses of them count as new.
    """

    blocks: Ints
    tokens: Ints
    evictions: Evictions
    policy: str
    preempted_tokens: int = 0
    num_forgotten: int = 0
    requests: Sequence[int] = field(default=())

    def totals(self, unit: str) -> dict[str, int]:
        """Outcome -> how many `unit`s, "blocks" or "tokens", of all requests."""
        return dict(zip(OUTCOMES, getattr(self, unit).sum(axis=0).tolist(), strict=True))

    def results(self) -> dict[str, int]:
        """What `result.json` says."""
        counts = {
            key_of(outcome, unit): count
            for unit in ("blocks", "tokens")
            for outcome, count in self.totals(unit).items()
            if outcome != "hit"
        }
        more = {"missed_preempted_tokens": self.preempted_tokens, "missed_forgotten_contents": self.num_forgotten}
        return {**counts, **more}

    def columns(self) -> dict[str, list[int]]:
        """What `requests.jsonl` says of each request."""
        return {
            key_of(outcome, "tokens"): self.tokens[:, column].tolist()
            for column, outcome in enumerate(OUTCOMES)
            if column != HIT
        }

    def as_json(self) -> dict[str, Any]:
        """All of it but the single evictions."""
        return {
            "blocks": self.totals("blocks"),
            "tokens": self.totals("tokens"),
            "preempted_tokens": self.preempted_tokens,
            "forgotten_contents": self.num_forgotten,
            "evicted_by": self.policy,
            "regret": self.evictions.sums(),
            "kept_tokens": {
                name: int(column.sum())
                for name in ("lru", "optimum")
                if (column := getattr(self.evictions, f"{name}_tokens")) is not None
            },
            "sentence": self.sentence(),
        }

    def sentence(self) -> str:
        counts = self.totals("tokens")
        missed = sum(counts.values()) - counts["hit"]
        if not missed:
            return "nothing was missed"
        rest = missed - counts["new"]
        text = f"{_percent(counts['new'], missed)} of the missed tokens were new content"
        if not rest:
            return text
        if not counts["evicted"]:
            most = max(OUTCOMES[2:], key=counts.__getitem__)
            return f"{text}; of the rest, {_percent(counts[most], rest)} were {most}"
        ago, tokens = self.evictions.requests_ago, self.evictions.tokens
        limit = next((age for age in AGES if tokens[ago < age].sum() * 2 >= tokens.sum()), None)
        recent = ago < limit if limit else np.ones(len(ago), dtype=bool)
        when = f" less than {limit:,} requests before" if limit else ""
        text += f"; of the rest, {_percent(int(tokens[recent].sum()), rest)} had been evicted{when}"
        kept = self.evictions.optimum_tokens
        if kept is not None:
            text += (
                f"; the optimum would have kept {_percent(int(kept[recent].sum()), int(tokens[recent].sum()))} of those"
            )
        return text


def versus(one: Account, other: Account) -> dict[str, Any]:
    """Which requests each of two accounts of the same requests hits more of, by how much, and why the other missed.

    Raises:
        InvalidArgument: they are of other requests.
    """
    numbers = list(one.requests) or [*range(len(one.tokens))]
    if numbers != (list(other.requests) or [*range(len(other.tokens))]):
        raise InvalidArgument(
            f"the accounts are of {len(one.tokens)} and {len(other.tokens)} requests; compare runs of one workload"
        )
    more = one.tokens[:, HIT] - other.tokens[:, HIT]
    return {
        "first_wins": _wins(more, other.tokens - one.tokens, numbers),
        "second_wins": _wins(-more, one.tokens - other.tokens, numbers),
    }


def _wins(more: Ints, missed: Ints, numbers: Sequence[int]) -> dict[str, Any]:
    """Sums over the requests of which one hits `more`, (R,); `missed` (R, C): what the other has beyond it."""
    winners = np.flatnonzero(more > 0)
    causes = missed[winners].sum(axis=0).tolist()
    most = winners[np.argsort(-more[winners], kind="stable")][:10].tolist()
    rows = [
        {"request": numbers[row], "tokens": int(more[row]), "cause": OUTCOMES[1:][int(missed[row, 1:].argmax())]}
        for row in most
    ]
    return {
        "requests": len(winners),
        "tokens": int(more[winners].sum()),
        "missed_by_the_other": {outcome: n for outcome, n in zip(OUTCOMES, causes, strict=True) if outcome != "hit"},
        "most": rows,
    }


def age_of(requests_ago: int) -> str:
    """The group of AGES that an eviction so many requests before the miss is summed in."""
    return _range_of(requests_ago, AGES)


def _range_of(value: int, limits: Sequence[int]) -> str:
    low = 0
    for high in limits:
        if value < high:
            return str(low) if high - low == 1 else f"{low}-{high - 1}"
        low = high
    return f"{low}+"


def _natural(label: str) -> tuple[int, str]:
    digits = "".join(c if c.isdigit() else " " for c in label).split()
    return (int(digits[0]) if digits else -1, label)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"
