"""What may happen to an allocator: random histories, and the shortest one that still fails.

Seeded `random` and a greedy shrinker, not Hypothesis: DECISIONS.md says what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from framework.types import Namespace
from framework_testing.driver import Driver, Violation

Step = tuple[Any, ...]
"""A `do_` method of the driver, and what it is given: requests by position, so that any step suits any state."""

NAMESPACES = (Namespace(), Namespace(salt="x"), Namespace(adapter="x"), Namespace(model="x"))

WRONG_CALLS = (
    "free", "extend", "commit", "table", "fork", "duplicate", "fork onto itself", "commit too far",
    "fork too far", "extend below 0", "commit less", "commit other tokens", "publish other tokens",
)  # fmt: skip

WEIGHTS = {
    "admit": 8, "compute": 10, "finish": 5, "append": 5, "free": 2, "fork": 2, "branch": 3, "preempt": 1,
    "admit_late": 2, "wrong": 3, "advance": 1, "reset": 0.6,
}  # fmt: skip

SHARING_AHEAD = {**WEIGHTS, "publish": 3, "follow": 3, "fail_step": 1}
"""The weights of steps of an engine whose rows share blocks within a step."""

WINDOWED = {**WEIGHTS, "unref_leading": 8, "append": 9}
"""The same of a model whose layers all have a sliding window: rows grow, and unreference what windows have passed."""


def prompt(draw: Random, longest: int) -> list[int]:
    """0 to `longest` tokens of {0, 1}: a stem of three, and sometimes a tail of its own."""
    length = draw.randint(0, longest)
    stem = draw.choice(([0, 0, 0], [0, 1, 1], [1, 0, 1]))
    tokens = (stem * (length // 3 + 1))[:length]
    return [*tokens, draw.randint(0, 1)] if draw.random() < 0.5 else tokens


def random_history(
    draw: Random, num_steps: int, longest: int, weights: Mapping[str, float] = WEIGHTS,
    namespaces: Sequence[Namespace] = NAMESPACES,
) -> list[Step]:  # fmt: skip
    """`num_steps` steps over prompts of up to `longest` tokens, most of them in the first of the namespaces."""

    def step(name: str) -> Step:
        pick, few = draw.randint(0, 3), draw.randint(0, 4)
        if name == "admit":
            tokens = prompt(draw, longest)
            return (name, tokens, namespaces[0] if draw.random() < 0.7 else draw.choice(namespaces[1:]))
        if name == "compute":
            return (name, pick, draw.choice((1, 2, 3, longest)), draw.random() < 0.7, draw.random() < 0.7)
        if name == "append":
            return (name, pick, [draw.randint(0, 1) for _ in range(draw.randint(1, 4))])
        if name in ("branch", "follow"):
            return (name, pick, few, draw.random() < 0.5)
        if name in ("fork", "unref_leading", "publish"):
            return (name, pick, few)
        if name == "wrong":
            return (name, draw.choice(WRONG_CALLS), pick)
        return (name, pick) if name in ("finish", "free", "preempt", "admit_late", "reset") else (name,)

    names = draw.choices(list(weights), list(weights.values()), k=num_steps)
    return [step(name) for name in names]


def play(driver: Driver, history: list[Step]) -> None:
    """Do the steps one by one; the driver checks after each."""
    for name, *given in history:
        getattr(driver, f"do_{name}")(*given)


def fail_shortest(run: Callable[[list[Step], int], object], history: list[Step], num_blocks: int) -> None:
    """Run a history in a pool of so many blocks; when it breaks a rule, raise what the least of it still raises.

    Takes the smallest pool in which it still does, drops runs of steps, halving their length down to one, and makes
    what is given to the others smaller, until neither helps any more.
    """
    failure = _failure(run, history, num_blocks)
    if failure is None:
        return
    for fewer in range(1, num_blocks):
        found = _failure(run, history, fewer)
        if found is not None:
            num_blocks, failure = fewer, found
            break

    def fails(smaller: list[Step]) -> bool:
        nonlocal history, failure
        found = _failure(run, smaller, num_blocks)
        if found is not None:
            history, failure = smaller, found
        return found is not None

    before: list[Step] = []
    while before != history:
        before, width = history, 2 * len(history)
        while width := width // 2:
            start = 0
            while start < len(history):
                if not fails(history[:start] + history[start + width :]):
                    start += width
        for index in range(len(history)):
            while any(fails([*history[:index], step, *history[index + 1 :]]) for step in _smaller(history[index])):
                pass
    raise failure


def _smaller(step: Step) -> Iterator[Step]:
    """The step with one thing that it is given smaller: an earlier position, a token less, the plain namespace."""
    for place, value in enumerate(step):
        smaller: list[Any] = []
        if isinstance(value, list):
            smaller = [value[:at] + value[at + 1 :] for at in range(len(value))]
        elif isinstance(value, int) and value:
            smaller = [0, value // 2]
        elif isinstance(value, Namespace) and value != Namespace():
            smaller = [Namespace()]
        yield from ((*step[:place], other, *step[place + 1 :]) for other in smaller)


def _failure(run: Callable[[list[Step], int], object], history: list[Step], num_blocks: int) -> Violation | None:
    try:
        run(history, num_blocks)
    except Violation as violation:
        return violation
    return None
