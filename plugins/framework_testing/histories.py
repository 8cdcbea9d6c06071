"""What may happen to an allocator: random histories, and the shortest one that still fails.

Seeded `random` and a greedy shrinker, not Hypothesis: the kits then need nothing installed, and weighted steps over
few prompts reach hits, forks and evictions that unweighted lists seldom do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

from framework.types import Namespace
from framework_testing.driver import Contained, Driver, Violation

Step = tuple[Any, ...]
"""A `do_` method of the driver, and what it is given: requests by position, so that any step suits any state."""

T = TypeVar("T")

NAMESPACES = (Namespace(), Namespace(salt="x"), Namespace(adapter="x"), Namespace(model="x"))

WRONG_CALLS = (
    "free", "extend", "commit", "table", "fork", "duplicate", "fork onto itself", "commit too far",
    "fork too far", "extend below 0", "commit less", "commit other tokens", "promise other tokens",
)  # fmt: skip

WEIGHTS = {
    "admit": 8, "compute": 10, "finish": 5, "append": 5, "free": 2, "fork": 2, "branch": 3, "preempt": 1,
    "admit_late": 2, "wrong": 2, "advance": 1, "reset": 0.6,
}  # fmt: skip

PROMISING = {**WEIGHTS, "promise": 3, "follow": 3, "withdraw": 2}
"""Of an engine whose rows share blocks within a step."""

WINDOWED = {**WEIGHTS, "unref_leading": 8, "append": 9}
"""Of a model whose layers all have a sliding window: rows grow, and let go of what the windows have passed."""


def prompt(draw: Random, longest: int) -> list[int]:
    """0 to `longest` tokens of {0, 1}: a stem of three, and sometimes a tail of its own."""
    length = draw.randint(0, longest)
    stem = draw.choice(([0, 0, 0], [0, 1, 1], [1, 0, 1]))
    tokens = (stem * (length // 3 + 1))[:length]
    return [*tokens, draw.randint(0, 1)] if draw.random() < 0.5 else tokens


def random_history(draw: Random, num_steps: int, longest: int, weights: Mapping[str, float] = WEIGHTS) -> list[Step]:
    """`num_steps` steps over prompts of up to `longest` tokens."""

    def step(name: str) -> Step:
        pick, few = draw.randint(0, 3), draw.randint(0, 4)
        if name == "admit":
            tokens = prompt(draw, longest)
            return (name, tokens, NAMESPACES[0] if draw.random() < 0.7 else draw.choice(NAMESPACES[1:]))
        if name == "compute":
            return (name, pick, draw.choice((1, 2, 3, longest)), draw.random() < 0.7, draw.random() < 0.7)
        if name == "append":
            return (name, pick, [draw.randint(0, 1) for _ in range(draw.randint(1, 4))])
        if name in ("branch", "follow"):
            return (name, pick, few, draw.random() < 0.5)
        if name in ("fork", "unref_leading", "promise"):
            return (name, pick, few)
        if name == "wrong":
            return (name, draw.choice(WRONG_CALLS), pick)
        return (name, pick) if name in ("finish", "free", "preempt", "withdraw", "admit_late", "reset") else (name,)

    names = draw.choices(list(weights), list(weights.values()), k=num_steps)
    return [step(name) for name in names]


def play(driver: Driver, history: list[Step]) -> None:
    """Do the steps one by one; the driver checks after each, and goes on after an error that it tolerates."""
    for name, *given in history:
        with suppress(Contained):
            getattr(driver, f"do_{name}")(*given)


def fail_shortest(run: Callable[[list[T]], None], history: list[T]) -> None:
    """Run a history; when it breaks a rule, raise what the shortest part of it that still breaks one raises.

    Drops runs of steps, halving their length down to one, until no single step can go.
    """
    failure = _failure(run, history)
    if failure is None:
        return
    width = max(1, len(history) // 2)
    while True:
        start, shorter = 0, False
        while start < len(history):
            candidate = history[:start] + history[start + width :]
            found = _failure(run, candidate)
            if found is None:
                start += width
            else:
                history, failure, shorter = candidate, found, True
        if width == 1 and not shorter:
            raise failure
        width = max(1, width // 2)


def _failure(run: Callable[[list[T]], None], history: list[T]) -> Violation | None:
    try:
        run(history)
    except Violation as violation:
        return violation
    return None
