"""Any candidate, all alike."""

from __future__ import annotations

import random

from framework.errors import NoCandidate
from framework.types import BlockId
from framework_builtin.eviction._drawn import DrawnPolicy


class Random(DrawnPolicy):
    """Uniform over the candidates, from a generator of its own: the same seed and calls, the same victims anywhere.

    O(1) every call; 12 bytes a block. The baseline that a policy must beat to have learnt anything.

    Args:
        seed: of the generator.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def victim(self, now: float) -> BlockId:
        if self._choice is None:  # asking twice gives the same answer
            if not self._members:
                raise NoCandidate("Random holds no candidate")
            self._choice = self._members[int(self._random.random() * len(self._members))]
        chosen: BlockId = self._choice
        return chosen
