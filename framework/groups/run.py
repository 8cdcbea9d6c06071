"""One request over groups of KV while it is computed: its blocks, what slides out, and what is published."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import inf

from framework.groups.checkpoints import Asked, CheckpointRule
from framework.groups.memory import Memory
from framework.groups.pool import ROOT, Node


class Run:
    """One request while it is computed: its blocks by group, 0 for those gone.

    Args:
        path: nodes of its units, as far as they are known.
        places: where the rule keeps what is needed to go on; None: everywhere.
        keeps_end: let go only of what is not needed to go on from the last place that was computed.

    Attributes:
        published: by group, leading blocks that were published or are not worth it.
        gone: by group, leading blocks that were let go of.
        num_states: states published.
    """

    def __init__(
        self, memory: Memory, path: list[Node], asked: Asked, places: Sequence[int] | None, *, keeps_end: bool = False
    ) -> None:
        self.memory, self.path, self.asked, self._slides_by = memory, path, asked, memory.step if keeps_end else 1
        self.tables = [array("i") for _ in memory.groups]
        self.published, self.gone = [0] * len(memory.groups), [0] * len(memory.groups)
        self.kept = [self._kept(g, places) for g in range(len(memory.groups))]
        self.num_states = 0

    def begin(self, found: Sequence[Sequence[int]], refresh: str = "consumed") -> None:
        """Take part in the blocks that the hit needs, by group; they are recent now."""
        memory, tokens = self.memory, self.asked.hit
        for g, (group, blocks) in enumerate(zip(memory.groups, found, strict=True)):
            pool, first, wide = memory.pools[g], group.first(tokens), group.block_tokens // memory.unit
            if refresh == "path":
                others = [pool.find(g, self.path[(number + 1) * wide - 1]) for number in range(first)]
                others = [block for block in others if block]
                pool.pin(others[::-1])
                pool.release(others[::-1])
            pool.pin(blocks[::-1])
            self.tables[g] = array("i", [0] * first)
            self.tables[g].extend(blocks)
            self.published[g], self.gone[g] = len(self.tables[g]), first

    def step(self, start: int, end: int) -> None:
        """From `start` tokens computed to `end`."""
        self.slide(start)
        self.take(end)
        self.publish(end)

    def slide(self, start: int) -> None:
        """Let go of what the tokens from `start` on do not read."""
        start -= start % self._slides_by
        for g, group in enumerate(self.memory.groups):
            table, gone = self.tables[g], self.gone[g]
            first = min(group.first(start), len(table))
            if first <= gone:
                continue
            leaving = [block for block in table[gone:first][::-1] if block]
            if leaving:
                self.memory.pools[g].release(leaving)
            table[gone:first] = array("i", bytes(4 * (first - gone)))
            self.gone[g] = first

    @property
    def slides_at(self) -> float:
        """Tokens computed from which on `slide` lets go of something more."""
        passed = min(group.passed_at(gone) for group, gone in zip(self.memory.groups, self.gone, strict=True))
        return passed if passed == inf else -(-passed // self._slides_by) * self._slides_by

    def lacks(self, end: int) -> list[int]:
        """By group, how many blocks `take` would take."""
        counts = [-(-end // group.block_tokens) - len(table)
                  for group, table in zip(self.memory.groups, self.tables, strict=True)]  # fmt: skip
        return [max(0, min(count, 1) if group.kind == "state" else count)
                for group, count in zip(self.memory.groups, counts, strict=True)]  # fmt: skip

    def take(self, end: int) -> None:
        """Blocks for `end` tokens. Raises OutOfBlocks, after which the run can only end."""
        for g, (group, count) in enumerate(zip(self.memory.groups, self.lacks(end), strict=True)):
            if count:
                table = self.tables[g]
                table.extend([0] * (-(-end // group.block_tokens) - count - len(table)))
                table.extend(self.memory.take(g, count))

    def publish(self, end: int, *, computed: bool = True) -> int:
        """What the first `end` tokens complete can be found, as far as the rule keeps it.

        Args:
            computed: a content that another block holds is then used there instead. Else a step is to compute these
                tokens: the table stays as it is, and such a content and all after it wait until it has.

        Returns:
            The first entry of the first group's table that changed; its length if none did.
        """
        step, changed = self.memory.step, len(self.tables[0])
        for g, group in enumerate(self.memory.groups):
            upto = end // step * step  # the last place at which a hit may end, and a block more for a draft
            if group.lookahead_drop and upto:
                upto = min(end, upto + group.block_tokens)
            last = upto // group.block_tokens
            for number in range(self.published[g], last):
                if not self._is_worth(g, number):
                    continue
                if not computed and self.memory.holder(g, self.path, number):
                    last = number
                    break
                if self._publish(g, number) and not g:
                    changed = min(changed, number)
            self.published[g] = max(self.published[g], last)
        return changed

    def _is_worth(self, g: int, number: int) -> bool:
        kept, block = self.kept[g], self.tables[g][number]
        return block > 0 and (kept is None or number in kept) and bool(self.memory.pools[g].node[block] == ROOT)

    def _publish(self, g: int, number: int) -> bool:
        """Publish a block of the table; whether another one is used from here on, which holds that content already."""
        table = self.tables[g]
        before, table[number] = table[number], self.memory.publish(g, table[number], self.path, number)
        self.num_states += self.memory.groups[g].kind == "state"
        return before != table[number]

    def publish_end(self, computed: int) -> None:
        """Publish what is needed to go on from the last place of so many tokens, whatever the rule keeps."""
        end = max(0, computed // self.memory.step * self.memory.step - self.asked.drop)
        for g, group in enumerate(self.memory.groups):
            for number in group.needs(end):
                block = self.tables[g][number]
                if block and self.memory.pools[g].node[block] == ROOT:
                    self._publish(g, number)

    def _kept(self, g: int, places: Sequence[int] | None) -> set[int] | None:
        """Blocks that a hit at one of these places needs; None: all."""
        group, step = self.memory.groups[g], self.memory.step
        if group.kind in ("full", "chunk"):
            return None
        if places is None:
            if step == group.block_tokens:
                return None
            places = range(step, self.asked.total + step + 1, step)
        # At 0 a draft's group keeps its first block though nothing needs it, as vLLM does.
        block, more = group.block_tokens, group.lookahead_drop
        return {number for place in places for number in range(group.first(place), place // block + more)}

    def leave(self) -> None:
        """Let go of all blocks, group by group, deepest first."""
        for g, table in enumerate(self.tables):
            blocks = [block for block in reversed(table) if block]
            if blocks:
                self.memory.pools[g].release(blocks)


def state_tokens(memory: Memory) -> int:
    """Tokens of a block of states, of which ends of prefill chunks are multiples; 0 where there are none."""
    return max((group.block_tokens for group in memory.groups if group.kind == "state"), default=0)


def step_end(asked: Asked, block: int, pauses: Sequence[int], start: int, end: int, chunk_tokens: int) -> int:
    """Where a step that goes on from `start` and could compute up to `end` ends; at `start`: it waits for more room.

    Args:
        block: see `state_tokens`. chunk_tokens: most that a step computes of one request.
    """
    if not block or start >= asked.prompt:
        return end
    if end < asked.prompt and (end // block * block > start or block <= chunk_tokens):
        end = max(start, end // block * block)
    stops = [*asked.replays, *(start + (stop - start) // block * block for stop in pauses)]
    if start % block:
        stops.append((start // block + 1) * block)
    return min((stop for stop in stops if start < stop < end), default=end)


def give_up(memory: Memory, path: Sequence[Node], rule: CheckpointRule, asked: Asked) -> None:
    """Discard what the rule has too much of, of states that nobody uses."""
    if not rule.gives_up:
        return
    for g, group in enumerate(memory.groups):
        if group.kind != "state":
            continue
        wide, states = group.block_tokens // memory.unit, dict[int, int]()
        for number in range(len(path) // wide):
            if block := memory.find(g, path[(number + 1) * wide - 1]):
                states[(number + 1) * group.block_tokens] = block
        for end in rule.surplus(sorted(states), asked):
            if not memory.pools[g].ref[states[end]]:
                memory.pools[g].discard(states[end])
