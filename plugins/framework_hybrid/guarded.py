"""Error boundary around checkpoint rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from framework.groups.checkpoints import Asked, CheckpointRule
from framework.guard.boundary import Guard, is_count


class GuardedRule(Guard, CheckpointRule):
    """A rule whose answers are whole numbers of at least 0, finitely many; else a PluginError names it.

    Attributes:
        keeps_end: see CheckpointRule.
    """

    def __init__(self, rule: CheckpointRule) -> None:
        super().__init__("checkpoint rule", rule)
        self.keeps_end = bool(rule.keeps_end)  # type: ignore[misc]

    @property
    def gives_up(self) -> bool:
        return bool(self.plugin.gives_up)

    def places(self, asked: Asked) -> Sequence[int] | None:
        answer = self.plugin.places(asked)
        return None if answer is None else self._numbers("places", answer, asked)

    def pauses(self, asked: Asked) -> Sequence[int]:
        return self._numbers("pauses", self.plugin.pauses(asked), asked)

    def surplus(self, ends: Sequence[int], asked: Asked) -> Sequence[int]:
        answer = self._numbers("surplus", self.plugin.surplus(tuple(ends), asked), asked)
        if not set(answer) <= set(ends):
            self.wrong("surplus", f"must name some of the ends {[*ends]}", answer)
        return answer

    def _numbers(self, hook: str, answer: Any, asked: Asked) -> list[int]:
        """What a rule answers, of which no more is read than a request can have of places, each named twice."""
        most = 2 * asked.total + 64
        if not isinstance(answer, Iterable):
            self.wrong(hook, "must return whole numbers of at least 0", answer)
        numbers = [*islice(answer, most + 1)]
        if len(numbers) > most:
            raise self.fault(hook, f"must name at most {most:,} places of {asked.total:,} tokens, names more")
        for place in numbers:
            if not is_count(place):
                self.wrong(hook, "must return whole numbers of at least 0", place)
        return [int(place) for place in numbers]
