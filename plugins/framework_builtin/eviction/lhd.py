"""Evict what is expected to hit least for the room it will take."""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from framework.errors import InvalidArgument, NoCandidate
from framework.interfaces.eviction import BlockView
from framework.types import BlockId
from framework_builtin.eviction.random import DrawnPolicy

_AGES = 20_000
_CLASSES = 16
_TRACKED_TURNOVERS = 100
_RECENT = 8
_EXPLORE_ONE_IN = 32
_LAST = _AGES - 1
_CLASS_OF = bytes(
    _CLASSES - 1 if age == 0 else min(_CLASSES - 1, max(0, (-(-_AGES // age) - 1).bit_length()))
    for age in range(_AGES + 1)
)
"""By the sum of a block's last two hit ages: 0 for those hit late or never, one more each time the sum is halved."""


class Lhd(DrawnPolicy):
    """Least hit density: expected hits before eviction / expected time until hit or eviction, learnt by age and class.

    Age is block accesses (admissions and hits) since the last one, in steps so that 20,000 of them span a hundred
    times the capacity; older than that goes first. A block's class is the logarithm of its last two hit ages. Every
    `interval` accesses the counts of hits and evictions by age decay by a tenth and give new densities; before the
    first time they are (class + 1) / (age + 1), and a class in which nothing happened keeps its own. The victim is
    the least dense of `samples` candidates drawn at random and of the last eight admitted that looked worse than
    recent victims; among equals the deepest, then the lowest id. A few explorers, which hardly anything evicts, keep
    the late ages known. All blocks have one size.

    NOTE. libcachesim 0.3.5 learns nothing in its first 2 ** 20 accesses: on shorter streams, such as those of public
    block traces, its ranking is the one before the first model, in which it adds 16 to every class (its application
    number); an age is 2 ** 10 accesses until the fifth model, and it draws 8 candidates in place of 32. Of 288,500
    accesses of the conversation trace as a flat stream it hits 20,373 with 3,000 blocks, and so does a model of its
    source in every access (a test); without the 16 that model hits 23,587, with our ages 22,477, with 32 draws too
    22,714. This policy with `interval` at 2 ** 20 hits 22,742, and 25,087 with its own: on other streams the early
    model is the worse one.

    O(samples) an eviction, O(1) any other call, and 2 ms every `interval` accesses. 23 bytes a block and 10 MB.

    Args:
        samples: candidates drawn for each eviction.
        seed: of the draws.

    Attributes:
        interval: accesses between two models; None is the number of blocks, at least 16,384. The authors' simulator
            takes 2 ** 20, which is longer than some traces of blocks.
        explorers: most blocks that explore, as a share of all; one access in 32 makes one.

    Source: Beckmann, Chen and Cidon, NSDI 2018, "LHD: Improving cache hit rate by maximizing hit density"; constants
    and the list of recent admissions as in the authors' simulator, CMU-CORGI/LHD.
    """

    interval: int | None = None
    explorers = 0.01

    def __init__(self, samples: int = 32, seed: int = 0) -> None:
        if samples < 1:
            raise InvalidArgument(f"lhd.samples must be at least 1, found {samples}")
        self._samples = samples
        self._draw = random.Random(seed).random

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        rows, num_blocks = len(blocks.depth), blocks.num_blocks
        self._every = self.interval or max(16_384, num_blocks)
        self._shift = max(0, -(-_TRACKED_TURNOVERS * num_blocks // _AGES) - 1).bit_length()
        self._budget = int(num_blocks * self.explorers)
        self._clock = 0
        self._last = array("q", bytes(8 * rows))
        self._hit_age, self._earlier_age = array("H", bytes(2 * rows)), array("H", bytes(2 * rows))
        self._class, self._explores = bytearray(rows), bytearray(rows)
        self._recent: deque[BlockId] = deque(maxlen=_RECENT)
        self._typical = 0.0  # the density of recent victims
        self._model = _Model()

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._hit_age[block], self._earlier_age[block], self._class[block] = 0, _AGES, 0
            if not self._touch(block) and self._model.densities[0] < self._typical:
                self._recent.append(block)

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            age = self._age(block)
            self._model.hit_at.append(self._class[block] * _AGES + age)
            self._earlier_age[block], self._hit_age[block] = self._hit_age[block], age
            self._class[block] = _CLASS_OF[min(_AGES, age + self._earlier_age[block])]
            self._touch(block)

    def victim(self, now: float) -> BlockId:
        if self._choice is None:  # asking twice gives the same answer
            if not self._members:
                raise NoCandidate("Lhd holds no candidate")
            self._choice = self._sample()
        best: BlockId = self._choice[1]
        return best

    def evicted(self, block: BlockId, now: float) -> None:
        if self._choice is not None and self._choice[1] == block:
            self._typical = 0.9 * self._typical + 0.1 * self._choice[0]
        super().evicted(block, now)
        self._model.evicted_at.append(self._class[block] * _AGES + self._age(block))
        self._budget += self._explores[block]
        self._explores[block] = 0

    def facts(self) -> dict[str, str | int | float]:
        return {"models": self._clock // self._every, "typical_density": self._typical}

    def _touch(self, block: BlockId) -> bool:
        """One access; says whether the block explores from here."""
        self._last[block] = self._clock
        self._clock += 1
        self._budget += self._explores[block]
        explores = self._budget > 0 and self._draw() * _EXPLORE_ONE_IN < 1
        self._explores[block] = explores
        self._budget -= explores
        if self._clock % self._every == 0:
            self._model.learn()
        return explores

    def _age(self, block: BlockId) -> int:
        return min((self._clock - self._last[block]) >> self._shift, _LAST)

    def _sample(self) -> tuple[float, BlockId]:
        """The least dense of some candidates, and its density."""
        members, draw, count = self._members, self._draw, len(self._members)
        drawn = [members[int(draw() * count)] for _ in range(self._samples)]
        drawn += [block for block in self._recent if self._place[block] >= 0]
        clock, shift, last, kind, densities = self._clock, self._shift, self._last, self._class, self._model.densities
        best, lowest = drawn[0], float("inf")
        for block in drawn:
            age = (clock - last[block]) >> shift
            density = densities[kind[block] * _AGES + age] + self._explores[block] if age < _LAST else -1.0
            if density < lowest or (density == lowest and self._goes_before(block, best)):
                best, lowest = block, density
        return lowest, best

    def _goes_before(self, block: BlockId, other: BlockId) -> bool:
        depth = self.blocks.depth
        return (-depth[block], block) < (-depth[other], other)


class _Model:
    """Counts of hits and evictions by class and age, and the hit densities that follow."""

    def __init__(self) -> None:
        self._hits = np.zeros((_CLASSES, _AGES))
        self._evictions = np.zeros((_CLASSES, _AGES))
        self._table = np.arange(1, _CLASSES + 1)[:, None] / np.arange(1, _AGES + 1)[None, :]
        self.hit_at: list[int] = []
        self.evicted_at: list[int] = []

    @property
    def densities(self) -> memoryview:
        """Hit densities by class * ages + age."""
        return self._table.ravel().data

    def learn(self) -> None:
        for counts, where in ((self._hits, self.hit_at), (self._evictions, self.evicted_at)):
            counts += np.bincount(where, minlength=counts.size).reshape(counts.shape) if where else 0.0
            counts *= 0.9
            where.clear()
        hits, events = _from_here_on(self._hits), _from_here_on(self._hits + self._evictions)
        known = events[:, 0] > 1e-5
        lifetimes = np.maximum(_from_here_on(events), 1e-12)
        self._table[known] = np.where(events > 1e-5, hits / lifetimes, 0.0)[known]


def _from_here_on(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(C, A) sums over each age and all later ones."""
    return np.asarray(values[:, ::-1].cumsum(axis=1)[:, ::-1])
