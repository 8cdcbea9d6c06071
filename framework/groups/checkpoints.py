"""Rules that say where on a request's way windows and states are kept, and which are given up once it has ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as a rule sees it, in tokens.

    Attributes:
        prompt: of its prompt. total: of all that it will have computed; a rule for live requests reads `prompt`.
        hit: what it resumes from. junction: to where the prefix is shared with others beyond the hit, else 0.
        step: of which every place to resume from is a multiple. drop: what a draft model's lookahead takes off a hit.
    """

    prompt: int
    total: int
    hit: int
    junction: int
    step: int
    drop: int = 0

    @property
    def replays(self) -> tuple[int, ...]:
        """The last places from which the same prompt, or a longer one, can be resumed."""
        same = max(0, (self.prompt - 1) // self.step * self.step - self.drop)
        return (same, max(0, self.prompt // self.step * self.step - self.drop)) if self.drop else (same,)

    @property
    def shared(self) -> tuple[int, ...]:
        """The junction; and where a request that leaves the shared prefix right there comes to after the drop."""
        junction = self.junction // self.step * self.step
        return tuple(place for place in {junction, junction - self.drop} if place > 0)


class CheckpointRule(ABC):
    """Decides at which places of a request every group keeps what a later request needs to resume there.

    `places` is all that a simple rule has to say.
    """

    keeps_end: ClassVar[bool] = False
    """Whether a request, when it ends, also leaves what is needed to go on from the last place that it computed."""

    @abstractmethod
    def places(self, asked: Asked) -> Sequence[int] | None:
        """Multiples of `asked.step`, in any order; None for every one. What ends nowhere near one is not kept."""

    def pauses(self, asked: Asked) -> Sequence[int]:
        """Places at which a prefill chunk ends so that a state is there to be kept. Default: all `places`."""
        return self.places(asked) or ()

    def surplus(self, ends: Sequence[int], asked: Asked) -> Sequence[int]:
        """The states to give up, ascending, among those now resident on the request's path. Default: none."""
        return ()

    @property
    def gives_up(self) -> bool:
        """Whether it has a `surplus` of its own."""
        return type(self).surplus is not CheckpointRule.surplus


class Retention(CheckpointRule):
    """vLLM's prefix_cache_retention_interval: the replay boundary, junctions, and one place every `interval` tokens.

    0, vLLM's default, keeps the first two alone. Prefill does not pause for the interval: a state is kept there only
    where a chunk happens to end.
    """

    def __init__(self, interval: int = 0) -> None:
        self.interval = interval

    def places(self, asked: Asked) -> Sequence[int]:
        beyond = asked.total + self.interval  # what a longer request may complete
        every = range(self.interval, beyond + 1, self.interval) if self.interval else ()
        return [*asked.replays, *asked.shared, *every]

    def pauses(self, asked: Asked) -> Sequence[int]:
        return (asked.junction,)


class Turns(Retention):
    """vLLM's default, and the end of each request: the next turn of a conversation goes on from there."""

    keeps_end = True
