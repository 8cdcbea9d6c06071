"""Hazard that also listens to what clients foretell, and learns how far to trust them."""

from __future__ import annotations

import math

from framework.types import Hint, RequestFacts
from framework_builtin.eviction.hazard import Hazard

_LEVELS = 5  # bins of a foretold probability


class Hinted(Hazard):
    """`hazard`, whose estimate also depends on the request's hint: what clients that said the same did before.

    A foretold probability is one of five levels and a foretold time one of a few octaves; each level's returns are
    learnt like every other feature's. So a hint is worth what it has proven to be worth: a client that lies, or says
    "0.9" of what comes back once in ten times, moves nothing but its own level's estimate, and `tolerance` bounds the
    rest. Without hints it is `hazard`. Args, ties and costs: as there.

    Source: ours; hints of agents as in vLLM's RFC 52113; error-aware learning as in LARU, arXiv:2509.20979.
    """

    def features(self, facts: RequestFacts, num_blocks: int, gap: float | None) -> tuple[int, ...]:
        gap_bin, *others = super().features(facts, num_blocks, gap)
        return (gap_bin * (_LEVELS + 1) + self._said(facts.hint), *others, self._foretold_time(facts.hint))

    def shared_features(self, gap: float | None) -> tuple[int, ...]:
        return (*super().shared_features(gap), 0)

    @staticmethod
    def _said(hint: Hint | None) -> int:
        if hint is None or hint.continues is None:
            return -1
        return min(_LEVELS - 1, int(hint.continues * _LEVELS))

    def _foretold_time(self, hint: Hint | None) -> int:
        if hint is None or hint.returns_s is None:
            return -1
        return min(20, max(0, int(math.log2(hint.returns_s / self._returns.unit + 1e-9))))
