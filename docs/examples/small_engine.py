"""An engine in one file: a workload, an allocator, an eviction policy, a hash scheme, steps; and no model.

    python docs/examples/small_engine.py --allocator prefix_cow --eviction lru --num-blocks 80

Every part is whatever is installed under its name, yours included. Where a model keeps a token's K and V this keeps
the token's id, and reads the whole context back in each step: a block that is shared or copied wrongly ends the run.
Its counts are those of `mode=replay`, as a test holds. The framework's engine has besides: arrivals, sampling and
beams, chunks of prompts, tiers, guards, array work.
"""

from __future__ import annotations

import argparse
import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framework.errors import OutOfBlocks
from framework.interfaces.allocator import Allocator
from framework.interfaces.workload import WorkloadRequest
from framework.registry.components import build, build_allocator
from framework.types import BlockCopy, RequestId, RequestInfo, TokenArray

STEP_S = 0.025  # that a step takes, on the clock that policies see
FIRST_OUTPUT = 2**30  # generated tokens begin here, above every token of a prompt


@dataclass(eq=False)
class Sequence:
    """A request and how far it has come: of `tokens`, `length` are known, and `computed` of those are in the pool."""

    info: RequestInfo
    tokens: TokenArray  # as long as it may become: the prompt, then what is generated
    length: int
    computed: int = 0
    row: int = -1  # its place in the batch, while it runs
    hit_tokens: int | None = None  # found when it was first admitted

    def __lt__(self, other: Sequence) -> bool:
        return self.info.id < other.info.id  # first come, first served


class Pool:
    """In place of K and V: the id of each token, in the slot where the block table says that the token lies."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.held = np.zeros((num_blocks + 1, block_size), dtype=np.int32)  # block 0 is the null block

    def copy(self, copies: tuple[BlockCopy, ...]) -> None:
        for copy in copies:
            self.held[copy.destination] = self.held[copy.source]

    def write(self, table: npt.NDArray[np.int32], tokens: TokenArray, start: int) -> None:
        block_size = self.held.shape[1]
        positions = np.arange(start, len(tokens))
        slots = table[positions // block_size] * block_size + positions % block_size
        self.held.reshape(-1)[slots] = tokens[start:]

    def attend(self, table: npt.NDArray[np.int32], tokens: TokenArray) -> None:
        found = self.held[table].reshape(-1)[: len(tokens)]
        assert np.array_equal(found, tokens), f"the blocks {table} do not hold the context that they are read for"


class SmallEngine:
    """Continuous batching in vLLM's order: running sequences first, then those that wait, as far as the budget goes."""

    def __init__(self, allocator: Allocator, *, max_batch_tokens: int = 2048, max_batch_requests: int = 64) -> None:
        self.allocator, self.pool = allocator, Pool(allocator.num_blocks, allocator.block_size)
        self.max_batch_tokens = max_batch_tokens
        self.free_rows = list(reversed(range(max_batch_requests)))
        self.waiting: list[Sequence] = []  # a heap: whoever was preempted is older than who has never run
        self.running: list[Sequence] = []  # in order of admission
        self.finished: list[Sequence] = []
        self.num_steps = self.num_preemptions = 0

    def submit(self, request: WorkloadRequest) -> None:
        assert request.tokens is not None, "a workload of token ids is wanted"
        info = RequestInfo(
            id=RequestId(len(self.waiting) + 1), namespace=request.namespace, tenant=request.tenant,
            max_total_tokens=request.max_total_tokens, prompt_tokens=request.input_tokens,
        )  # fmt: skip
        tokens = np.full(request.max_total_tokens, FIRST_OUTPUT + info.id, dtype=np.int32)
        tokens[: request.input_tokens] = request.tokens
        heapq.heappush(self.waiting, Sequence(info, tokens, request.input_tokens))

    def step(self) -> None:
        """Schedule, and compute what was scheduled."""
        self.allocator.advance(self.num_steps * STEP_S)
        num_new: dict[Sequence, int] = {}
        budget, preempted_before = self.max_batch_tokens, self.num_preemptions
        for sequence in list(self.running):
            count = min(sequence.length - sequence.computed, budget)
            if count and self.make_room(sequence, count):
                num_new[sequence] = count
                budget -= count
        if self.num_preemptions == preempted_before:
            self.admit(budget, num_new)
        self.compute({sequence: count for sequence, count in num_new.items() if sequence.row >= 0})

    def admit(self, budget: int, num_new: dict[Sequence, int]) -> None:
        """Let those that wait run, while rows, budget and blocks last: each with the blocks of its first chunk."""
        while self.waiting and budget and self.free_rows:
            sequence, info = self.waiting[0], self.waiting[0].info
            known = sequence.tokens[: sequence.length]
            hit = self.allocator.lookup(known, info.namespace)
            if not self.allocator.fits(info, known, hit):
                if not self.running:
                    raise OutOfBlocks(f"request {info.id} runs alone and needs more --num-blocks")
                return
            count = min(sequence.length - hit.num_tokens, budget)
            self.allocator.allocate(info, known, hit, hit.num_tokens + count)
            try:
                self.extend(sequence, hit.num_tokens + count)
            except OutOfBlocks:  # for the copy of a block that is hit in part
                self.allocator.free(info.id)
                return
            self.running.append(heapq.heappop(self.waiting))
            sequence.row, sequence.computed = self.free_rows.pop(), hit.num_tokens
            sequence.hit_tokens = hit.num_tokens if sequence.hit_tokens is None else sequence.hit_tokens
            num_new[sequence] = count
            budget -= count

    def extend(self, sequence: Sequence, end: int) -> None:
        """Blocks for its tokens up to `end`; what they fill in this step, later sequences of the step share."""
        self.pool.copy(self.allocator.extend(sequence.info.id, end).copies)  # of what is written to and others read
        self.allocator.publish(sequence.info.id, sequence.tokens[:end])

    def make_room(self, sequence: Sequence, count: int) -> bool:
        """Blocks for its next `count` tokens, who came last is preempted for them; False if that was itself."""
        while sequence.row >= 0:
            try:
                self.extend(sequence, sequence.computed + count)
                break
            except OutOfBlocks:
                if self.running == [sequence]:
                    raise  # nobody else could make room
                self.num_preemptions += 1
                heapq.heappush(self.waiting, self.leave(self.running[-1]))
        return sequence.row >= 0

    def leave(self, sequence: Sequence) -> Sequence:
        """It runs no longer: its blocks can be found until their room is needed."""
        self.allocator.free(sequence.info.id)
        self.running.remove(sequence)
        self.free_rows.append(sequence.row)
        sequence.row = -1
        return sequence

    def compute(self, num_new: dict[Sequence, int]) -> None:
        """What a model does; then who has its last token leaves."""
        batch = sorted(num_new, key=lambda sequence: (num_new[sequence] > 1, sequence.row))  # decode rows first
        for sequence in batch:
            start, sequence.computed = sequence.computed, sequence.computed + num_new[sequence]
            self.pool.write(self.allocator.table(sequence.info.id), sequence.tokens[: sequence.computed], start)
        for sequence in batch:  # all of them are written now
            self.pool.attend(self.allocator.table(sequence.info.id), sequence.tokens[: sequence.computed])
            self.allocator.commit(sequence.info.id, sequence.tokens[: sequence.computed])
        for sequence in batch:
            sequence.length += sequence.computed == sequence.length  # the next token, by the rule in `submit`
            if sequence.length == len(sequence.tokens):
                self.finished.append(self.leave(sequence))
        self.num_steps += 1

    def run(self) -> dict[str, int]:
        """Serve all that was submitted; what happened."""
        while self.waiting or self.running:
            self.step()
        self.allocator.check()
        return {
            "num_requests": len(self.finished),
            "prompt_tokens": sum(sequence.info.prompt_tokens or 0 for sequence in self.finished),
            "hit_tokens": sum(sequence.hit_tokens or 0 for sequence in self.finished),
            "num_evictions": self.allocator.stats().evictions,
            "num_preemptions": self.num_preemptions,
            "num_steps": self.num_steps,
        }


def main(words: list[str] | None = None) -> dict[str, int]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for kind, default in {"allocator": "prefix_cow", "eviction": "lru", "workload": "system_prompts"}.items():
        parser.add_argument(f"--{kind}", default=default)
    parser.add_argument("--num-blocks", type=int, default=80)
    chosen = parser.parse_args(words)
    sizes = {"num_blocks": chosen.num_blocks, "block_size": 16, "max_model_len": chosen.num_blocks * 16}
    policy = build("eviction", chosen.eviction, shared={**sizes, "seed": 0})
    if policy.needs_future:
        parser.error(f"--eviction {chosen.eviction} needs each block's next use, which nobody knows here")
    engine = SmallEngine(build_allocator(chosen.allocator, policy, "sha256", **sizes))
    for request in build("workload", chosen.workload, shared={"seed": 0}).requests():
        engine.submit(request)
    counts = engine.run()
    print("\n".join(f"{name:<16}{value:>8}" for name, value in counts.items()))  # noqa: T201
    return counts


if __name__ == "__main__":
    main()
