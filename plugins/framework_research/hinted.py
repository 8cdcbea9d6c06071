"""Hazard that also listens to what clients foretell, and learns how far to trust them."""

from __future__ import annotations

import math

from framework.types import RequestFacts
from framework_research._returns import FIRST_AGE_S
from framework_research.hazard import Hazard

_LEVELS = 5  # bins of a foretold probability
_TIMES = 16  # first features from here on are foretold times
_MOST_OCTAVES = 20


class Hinted(Hazard):
    """`hazard`, whose estimate also depends on the request's hint: what clients that said the same did before.

    A foretold probability is one of five levels. Each multiplies the odds that a group is used again at all, at every
    age: the posterior of a return given what was said, which falls as a return stays out. A level's factor is learnt:
    taken at its word for the first ten returns, up to five to one, then worth what it has proven to be worth. A
    foretold time is one of a few octaves, each with a shape of its own. So a client that lies, or says "0.9" of what
    comes back once in ten times, moves nothing but its own level's estimate, and `tolerance` bounds the rest. Without
    hints it is `hazard`. Args, ties and costs: as there.

    Source: ours; hints of agents as in vLLM's RFC 52113; error-aware learning as in LARU, arXiv:2509.20979.
    """

    def features(self, facts: RequestFacts, num_blocks: int, gap: float | None) -> tuple[int, ...]:
        gap_bin, *others = super().features(facts, num_blocks, gap)
        time = None if facts.hint is None else facts.hint.returns_s  # seconds to a return, as a client says
        return (gap_bin if time is None else _TIMES + self._octave(time), *others)

    def foretold(self, facts: RequestFacts) -> int:
        hint = facts.hint
        if hint is None or hint.continues is None:
            return -1
        return min(_LEVELS - 1, int(hint.continues * _LEVELS))

    def _octave(self, time: float) -> int:
        units = min(time / FIRST_AGE_S, 2.0 ** (_MOST_OCTAVES + 1))
        return min(_MOST_OCTAVES, max(0, int(math.log2(units + 1e-9))))
