"""Rules that say where a replay keeps windows and states, beside the served one, and checks of what rules answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from framework.groups.checkpoints import Asked, CheckpointRule, Retention
from framework.guard.boundary import Guard, is_count


class Dense(CheckpointRule):
    """Keep everything; of states, those at which the engine pauses anyway: its chunks, the prompt's end, junctions."""

    def places(self, asked: Asked) -> Sequence[int] | None:
        return None

    def pauses(self, asked: Asked) -> Sequence[int]:
        return (asked.junction,)


class Junctions(CheckpointRule):
    """Marconi's admission (arXiv:2411.19379): where prefixes branch, and the last token of the request."""

    def places(self, asked: Asked) -> Sequence[int]:
        return [*asked.shared, asked.total // asked.step * asked.step]


class EveryFew(CheckpointRule):
    """One place every `interval` tokens, for which prefill pauses, and the replay boundary."""

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def places(self, asked: Asked) -> Sequence[int]:
        return [*range(self.interval, asked.total + 1, self.interval), *asked.replays]


class AtMost(EveryFew):
    """At most `count` states a path: the interior one whose neighbours are closest leaves, as in llama.cpp.

    The first and the last are spared.
    """

    def __init__(self, count: int, interval: int) -> None:
        super().__init__(interval)
        self.count = count

    def surplus(self, ends: Sequence[int], asked: Asked) -> Sequence[int]:
        kept = list(ends)
        while len(kept) > max(self.count, 2):
            gaps = [kept[index + 1] - kept[index - 1] for index in range(1, len(kept) - 1)]
            del kept[1 + gaps.index(min(gaps))]
        return sorted(set(ends) - set(kept))


class Superseding(Retention):
    """Retention 0 where the state that a request resumed from is given up once a deeper one of its path is kept.

    Right for conversations that only grow, wrong for what others branch off, so junctions stay.
    """

    def surplus(self, ends: Sequence[int], asked: Asked) -> Sequence[int]:
        deepest = max(ends, default=0)
        return [end for end in ends if end == asked.hit < deepest and end != asked.junction]


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
