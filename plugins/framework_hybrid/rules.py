"""Rules that say where a replay keeps windows and states, beside the served one."""

from __future__ import annotations

from collections.abc import Sequence

from framework.groups.checkpoints import Asked, CheckpointRule, Retention


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
