"""The model of the links between tiers: queues, operations, directions."""

from __future__ import annotations

import random

import pytest

from framework.types import BlockHash
from framework_tiers.transfers import Copy, Link, LinkTransfers


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def wait_until(self, when: float) -> None:
        self.now = max(self.now, when)


def transfers(*links: Link, clock: Clock | None = None) -> tuple[LinkTransfers, Clock]:
    """Blocks of 10 bytes."""
    clock = clock or Clock()
    return LinkTransfers(links, 10, lambda: clock.now, clock.wait_until), clock


def copy(name: str, source: int, target: int) -> Copy:
    return Copy(BlockHash(name.encode()), source, target)


def ends(model: LinkTransfers) -> dict[str, float]:
    """When each copy ends, by its content."""
    found = {}
    while model.num_pending:
        model.wait(None)
        found.update({done.key.decode(): model._now() for done in model.finished()})
    return found


SLOW = Link(bytes_per_s=10.0, operation_s=0.5)  # a block takes 1 s


def test_a_copy_between_lower_tiers_occupies_both_links_at_the_pace_of_the_slower() -> None:
    fast = Link(bytes_per_s=100.0)
    model, _ = transfers(fast, SLOW)
    model.submit([copy("a", 1, 2)])  # 1 s into tier 2, and an operation
    model.submit([copy("b", 1, 0)])
    assert ends(model) == {"a": 1.5, "b": pytest.approx(1.6)}


def test_time_passes_no_further_than_it_is_to() -> None:
    model, clock = transfers(SLOW)
    model.submit([copy("a", 1, 0)])
    model.wait(1.0)
    assert (clock.now, list(model.finished())) == (1.0, [])
    model.wait(9.0)
    assert clock.now == 1.5


def test_predictions_come_true_where_nothing_else_is_asked() -> None:
    draw = random.Random(0)
    for _ in range(60):
        links = [Link(bytes_per_s=draw.uniform(1, 50), operation_s=draw.uniform(0, 1)) for _ in range(3)]
        model, clock = transfers(*links)
        for number in range(draw.randint(0, 4)):
            model.submit([copy(f"before {number}", draw.randint(1, 3), 0)])
        clock.now = draw.uniform(0, 3)
        tiers = [draw.randint(0, 3) for _ in range(draw.randint(1, 8))]
        predicted, start = model.load_times(tiers), clock.now
        asked = [copy(str(at), tier, 0) for at, tier in enumerate(tiers) if tier]
        model.submit(asked)
        found, latest = ends(model), 0.0
        for at, tier in enumerate(tiers):
            latest = max(latest, found[str(at)] - start if tier else 0.0)
            assert predicted[at] == pytest.approx(latest)


def test_each_direction_is_a_queue_of_its_own() -> None:
    """Against the definition, with one tier: a block begins when its direction is free and its content is stored."""
    draw = random.Random(1)
    for _ in range(40):
        model, clock = transfers(SLOW)
        free = {0: 0.0, 1: 0.0}
        stored: dict[str, float] = {}
        expected: dict[str, float] = {}
        for number in range(30):
            clock.now += draw.choice([0.0, 0.0, 1.0, 5.0])
            model.finished()
            target, name = draw.randint(0, 1), f"{number}"
            source = name if target or not stored else draw.choice([*stored, name])
            start = max(clock.now, free[target], 0.0 if target else stored.get(source, 0.0))
            free[target] = start + 1.5
            if target:
                stored[name] = free[target]
            expected[f"{source} to {target}"] = free[target]
            asked = copy(source, 0 if target else 1, target)
            model.submit([asked])
            stored = {key: when for key, when in stored.items() if when > clock.now}
            assert model._free_s["write" if target else "read", 1] == pytest.approx(free[target])
