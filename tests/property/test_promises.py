"""Computed before it is read: random steps with chunks, failures, preemptions and withdrawals against a slow model.

The model keeps, for every slot, the prefix whose KV it holds. A step writes all its rows' slots and then reads every
row's context through its table; what it finds must be that row's own prefix, whoever computed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from random import Random

import numpy as np
import pytest

from framework.errors import OutOfBlocks
from framework.interfaces.allocator import Allocator
from framework.testing import adversarial
from framework.testing.oracles.eviction import SlowLru
from framework.testing.subjects import fresh
from framework.types import ROOT_NAMESPACE, RequestId, RequestInfo

ALLOCATORS = {point.name: point for point in entry_points(group="framework.allocator")}
SCHEMES = {"sound": adversarial.ReferenceHash, "constant": adversarial.Constant}
STEM = [0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0]


@dataclass
class Row:
    """A running request: its tokens, those with KV, and those that this step computes."""

    tokens: list[int]
    computed: int
    new: int = 0
    promised: bool = False


class Steps:
    """An engine without a model, whose slots hold the prefix that was written to them."""

    def __init__(self, allocator: Allocator, draw: Random, promise: bool = True) -> None:
        self.allocator, self.draw, self.promise = allocator, draw, promise
        self.size = allocator.block_size
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}
        self.rows: dict[RequestId, Row] = {}
        self.hits_within_step = self.withdrawn = self.next_id = 0

    def slot(self, request: RequestId, position: int) -> tuple[int, int]:
        return int(self.allocator.table(request)[position // self.size]), position % self.size

    def admit(self) -> None:
        tokens = STEM[: self.draw.randint(1, len(STEM))] + self.draw.choices((0, 1), k=self.draw.randint(0, 4))
        prompt, request = np.array(tokens, dtype=np.int32), RequestId(self.next_id)
        self.next_id += 1
        info = RequestInfo(id=request, max_total_tokens=len(tokens) + 4)
        hit = self.allocator.lookup(prompt, ROOT_NAMESPACE)
        if not self.allocator.fits(info, prompt, hit):
            return
        self.allocator.allocate(info, prompt, hit)
        fresh = self.allocator.table(request)[len(hit.blocks) :].tolist()
        self.slots = {slot: prefix for slot, prefix in self.slots.items() if slot[0] not in fresh}
        self.rows[request] = Row(tokens, hit.num_tokens)
        full = hit.num_tokens // self.size * self.size
        self.hits_within_step += any(self.slot(request, at) not in self.slots for at in range(full))
        self.plan(request)

    def plan(self, request: RequestId) -> None:
        """A chunk of the prompt, promised at once: whoever is admitted next may share it."""
        row = self.rows[request]
        row.new = min(len(row.tokens) - row.computed, self.draw.choice((1, 2, 3, 5, 99)))
        if self.promise and row.new:
            self.allocator.promise(request, np.array(row.tokens[: row.computed + row.new], dtype=np.int32))
            row.promised = True
            self.allocator.check()

    def withdraw(self, request: RequestId) -> None:
        broken = self.allocator.withdraw(request)
        self.allocator.check()
        self.withdrawn += len(broken)
        self.rows[request].promised = False
        for other in broken:
            if other in self.rows:
                self.end(other)

    def end(self, request: RequestId) -> None:
        """Preempted, cancelled or failed: whoever relies on it goes first, as the scheduler does it."""
        if self.rows[request].promised:
            self.withdraw(request)
        if request in self.rows:
            del self.rows[request]
            self.allocator.free(request)
            self.allocator.check()

    def step(self) -> None:
        for request in list(self.rows):
            self.plan(request)
        for _ in range(self.draw.randint(0, 3)):
            self.admit()
        for request in list(self.rows):
            if request in self.rows:
                self.disturb(request)
        self.extend()
        if self.draw.random() < 0.1:  # the step fails before anything is computed
            for request in [request for request, row in self.rows.items() if row.promised]:
                if request in self.rows:
                    self.withdraw(request)
            for row in self.rows.values():
                row.new = 0
            return
        self.forward()
        self.commit()

    def disturb(self, request: RequestId) -> None:
        if self.draw.random() < 0.08:
            self.end(request)
        elif self.draw.random() < 0.08:  # a shorter chunk than was promised
            self.withdraw(request)
            if request in self.rows:
                self.rows[request].new = self.draw.randint(0, self.rows[request].new)

    def extend(self) -> None:
        for request in list(self.rows):
            row = self.rows.get(request)
            if row is not None and row.new:
                try:
                    change = self.allocator.extend(request, row.computed + row.new)
                except OutOfBlocks:  # a copy that another row took the room for
                    self.end(request)
                    continue
                for copy in change.copies:
                    for offset in range(self.size):
                        prefix = self.slots.get((copy.source, offset))
                        self.slots.pop((copy.destination, offset), None)
                        if prefix is not None:
                            self.slots[copy.destination, offset] = prefix

    def forward(self) -> None:
        for request, row in self.rows.items():
            for position in range(row.computed, row.computed + row.new):
                self.slots[self.slot(request, position)] = tuple(row.tokens[: position + 1])
        for request, row in self.rows.items():
            row.computed += row.new
            for position in range(row.computed):
                found, wanted = self.slots.get(self.slot(request, position)), tuple(row.tokens[: position + 1])
                assert found == wanted, f"request {request} token {position}: reads {found}, wanted {wanted}"

    def commit(self) -> None:
        for request in self.draw.sample(list(self.rows), len(self.rows)):
            row = self.rows[request]
            self.allocator.commit(request, np.array(row.tokens[: row.computed], dtype=np.int32))
            self.allocator.check()
            row.promised, row.new = False, 0
            if row.computed == len(row.tokens):
                self.end(request)


def drive(name: str, seed: int, scheme: str, promise: bool = True) -> Steps:
    draw = Random(seed)
    allocator = fresh(
        ALLOCATORS[name].load(), draw.randint(8, 40), draw.choice((1, 2, 3)), SCHEMES[scheme](), SlowLru()
    )
    steps = Steps(allocator, draw, promise)
    for _ in range(25):
        steps.step()
    while steps.rows:
        steps.end(next(iter(steps.rows)))
    stats = allocator.stats()
    assert (stats.used_blocks, stats.num_requests) == (0, 0), stats
    return steps


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", sorted(ALLOCATORS))
def test_no_step_reads_what_was_not_computed(name: str, scheme: str) -> None:
    runs = [drive(name, seed, scheme) for seed in range(30)]
    if name in ("prefix", "prefix_cow", "radix", "native", "native_cow") and scheme == "sound":
        shared, withdrawn = (sum(getattr(run, fact) for run in runs) for fact in ("hits_within_step", "withdrawn"))
        assert shared > 50, f"only {shared} hits of what the step computes: nothing was tested"
        assert withdrawn > 5, f"only {withdrawn} requests relied on a promise that was withdrawn"


@pytest.mark.parametrize("name", sorted(ALLOCATORS))
def test_without_promises_nothing_is_shared_within_a_step(name: str) -> None:
    assert sum(drive(name, seed, "sound", promise=False).hits_within_step for seed in range(10)) == 0


def test_a_promise_that_is_not_withdrawn_is_caught() -> None:
    """The test's own proof: a reader that goes on after its promise was withdrawn finds what nobody computed."""

    class Forgets(Steps):
        def withdraw(self, request: RequestId) -> None:
            self.rows[request].promised = False

    def play(seed: int) -> None:
        draw = Random(seed)
        steps = Forgets(fresh(ALLOCATORS["prefix_cow"].load(), 30, 2, None, SlowLru()), draw)
        for _ in range(25):
            steps.step()

    failures = 0
    for seed in range(80):
        try:
            play(seed)
        except Exception:
            failures += 1
    assert failures > 3, failures
