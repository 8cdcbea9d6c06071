"""Cache-only replay over groups: requests one after the other, each as an engine would compute it, without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from framework.errors import OutOfBlocks
from framework.groups.checkpoints import Asked, CheckpointRule
from framework.groups.kinds import GroupHit, Kind
from framework_cache_only.paths import Ints, RequestPaths
from framework_hybrid.memory import Memory, stranded_bytes
from framework_hybrid.rules import GuardedRule


@dataclass
class GroupCounts:
    """What a replay counted. R requests, G groups; tokens unless named otherwise.

    Attributes:
        prompt: (R,) tokens of each prompt. hits: (R,) hit of each.
        could: (R, G) what each group could have given. lost: (R, G) by how much each shortened the hit.
        junctions: (R,) shared with others beyond the hit, but not resumable.
        unseen: (R,) of the losses, what no earlier request had: the group that is asked first is short of it.
        kinds: (G,) of the groups.
        refused: requests that needed more blocks than the memory has; they hit nothing and leave nothing.
        evictions, checkpoints: contents given up; states published.
        samples: (S, G) resident bytes and (S, G) stranded ones, at places spread over the trace.
    """

    prompt: Ints
    hits: Ints
    could: Ints
    lost: Ints
    junctions: Ints
    unseen: Ints
    kinds: tuple[Kind, ...]
    refused: int = 0
    evictions: int = 0
    checkpoints: int = 0
    resident: list[list[int]] = field(default_factory=list)
    stranded: list[list[int]] = field(default_factory=list)

    @classmethod
    def of(cls, memory: Memory, prompt: Sequence[int] | Ints, found: Sequence[GroupHit], **counted: Any) -> GroupCounts:
        """Of these prompts and what each found; `counted` are the fields that follow `kinds`."""
        kinds = tuple(group.kind for group in memory.groups)
        wide = (len(found), len(kinds))
        allowed = [hit.tokens + sum(hit.lost) for hit in found]
        seen = [most if hit.seen is None else hit.seen // memory.step * memory.step
                for hit, most in zip(found, allowed, strict=True)]  # fmt: skip
        return cls(
            prompt=np.asarray(prompt, np.int64),
            hits=np.array([hit.tokens for hit in found], np.int64),
            could=np.array([hit.could for hit in found], np.int64).reshape(wide),
            lost=np.array([hit.lost for hit in found], np.int64).reshape(wide),
            junctions=np.array([hit.junction for hit in found], np.int64),
            unseen=np.maximum(0, np.array(allowed, np.int64) - np.array(seen, np.int64)),
            kinds=kinds, evictions=memory.num_evictions, **counted,
        )  # fmt: skip

    def results(self) -> dict[str, Any]:
        """The numbers of the metric catalogue, by kind of group. Bytes are means over the samples."""
        total, mean = int(self.prompt.sum()), {}
        for name, rows in (("resident", self.resident), ("stranded", self.stranded)):
            mean[name] = np.mean(rows, axis=0) if rows else np.zeros(len(self.kinds))
        by_kind: dict[str, int] = {}
        for kind in dict.fromkeys(self.kinds):
            columns = [g for g, other in enumerate(self.kinds) if other == kind]
            by_kind[f"{kind}_hit_tokens"] = int(self.could[:, columns].min(axis=1).sum())
            by_kind[f"{kind}_lost_tokens"] = int(self.lost[:, columns].sum())
        first = "full" if "full" in self.kinds else self.kinds[0]
        by_kind[f"{first}_lost_tokens"] -= int(self.unseen.sum())
        return {
            "hit_tokens": int(self.hits.sum()),
            "prompt_tokens": total,
            "hit_rate": float(self.hits.sum() / total) if total else 0.0,
            "num_evictions": self.evictions,
            **by_kind,
            "unseen_tokens": int(self.unseen.sum()),
            "junction_tokens": int(self.junctions.sum()),
            "stranded_bytes": int(mean["stranded"].sum()),
            "resident_bytes": int(mean["resident"].sum()),
            "checkpoint_bytes": int(mean["resident"][[kind == "state" for kind in self.kinds]].sum()),
            "refused_requests": self.refused,
        }


def replay_groups(
    paths: RequestPaths,
    memory: Memory,
    rule: CheckpointRule,
    *,
    prompt_tokens: Sequence[int] | None = None,
    chunk_tokens: int = 8192,
    refresh: Literal["consumed", "path"] = "consumed",
    num_samples: int = 16,
    seen: Callable[[int, int, Sequence[Sequence[int]]], Any] | None = None,
) -> GroupCounts:
    """Replay requests one at a time: hit, compute chunk by chunk, publish what the rule keeps, let go.

    What slides out of a window, or is superseded as a running state, leaves while the request runs, as in vLLM: groups
    in their order, each deepest block first.

    Args:
        paths: of all tokens that a request computes, full units of `memory.unit` tokens; `input_tokens` counts them.
        memory: fresh, made with the `parents` of these paths.
        prompt_tokens: (R,) of each request's prompt, where paths go on with its answer; default: prompts alone.
        chunk_tokens: a prefill step computes at most.
        refresh: what a hit makes recent: the blocks that it needs, or every resident block of its path.
        num_samples: places at which resident and stranded bytes are counted.
        seen: called after every step with the request, the tokens it has computed, and its blocks by group.

    O(blocks of all requests) Python steps, besides the policy's and the rule's own.
    """
    prompt, guarded = paths.input_tokens if prompt_tokens is None else prompt_tokens, GuardedRule(rule)
    infinite = paths.infinite_hits
    found, refused, checkpoints = list[GroupHit](), 0, 0
    resident, stranded = list[list[int]](), list[list[int]]()
    drop = memory.step * any(group.lookahead_drop for group in memory.groups)
    sampled = set(np.linspace(0, paths.num_requests - 1, num_samples + 1)[1:].astype(int).tolist())
    facts = any(isinstance(pool.last_request, list) for pool in memory.pools)
    for number, path in enumerate(paths.walk()):
        memory.clock.now = paths.times[number]
        hit = replace(memory.hit(path, int(prompt[number]) - 1), seen=int(infinite[number]) * paths.block_tokens)
        if facts:
            memory.clock.facts = paths.request_facts(number, hit.tokens // paths.block_tokens)
        junction = hit.tokens + hit.junction if hit.junction else 0
        asked = Asked(prompt=int(prompt[number]), total=int(paths.input_tokens[number]), hit=hit.tokens,
                      junction=junction, step=memory.step, drop=drop)  # fmt: skip
        run = Run(memory, path, asked, guarded.places(asked))
        try:
            run.begin(refresh)
            for start, end in steps(asked, memory, guarded.pauses(asked), chunk_tokens):
                run.step(start, end)
                if seen is not None:
                    seen(number, end, run.tables)
        except OutOfBlocks:
            refused += 1
            run.leave()
            found.append(replace(hit, tokens=0, lost=(0,) * len(hit.lost), junction=0))
            continue
        run.leave()
        checkpoints += run.num_states
        give_up(memory, path, guarded, asked)
        found.append(hit)
        if number in sampled:
            resident.append(memory.bytes_by_group())
            stranded.append(stranded_bytes(memory))
    return GroupCounts.of(memory, prompt, found, refused=refused, checkpoints=checkpoints, resident=resident,
                          stranded=stranded)  # fmt: skip


def steps(asked: Asked, memory: Memory, pauses: Sequence[int], chunk_tokens: int) -> Iterator[tuple[int, int]]:
    """(tokens computed before, after) of each step of a request that resumes at `asked.hit`.

    Where groups have states, a prefill chunk ends with a block, at the replay boundary and at each of `pauses`, since a
    state is there only where a step ends. Decoding is one token a step.
    """
    start, block = asked.hit, state_tokens(memory)
    while start < asked.total:
        most = min(start + chunk_tokens, asked.prompt) if start < asked.prompt else start + 1
        end = step_end(asked, block, pauses, start, most, chunk_tokens)
        yield start, end
        start = end


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


class Run:
    """One request while it is computed: its blocks by group, 0 for those gone.

    Attributes:
        path: nodes of its units. num_states: states published.
    """

    def __init__(self, memory: Memory, path: Sequence[int], asked: Asked, places: Sequence[int] | None) -> None:
        self.memory, self.path, self.asked = memory, path, asked
        self.tables: list[list[int]] = [[] for _ in memory.groups]
        self.published, self.gone = [0] * len(memory.groups), [0] * len(memory.groups)
        self.kept = [self._kept(g, places) for g in range(len(memory.groups))]
        self.num_states = 0

    def begin(self, refresh: str = "consumed") -> None:
        """Take part in the blocks that the hit needs; they are recent now."""
        memory, tokens = self.memory, self.asked.hit
        for g, (group, found) in enumerate(zip(memory.groups, memory.holders(self.path, tokens), strict=True)):
            pool, first, wide = memory.pools[g], group.first(tokens), group.block_tokens // memory.unit
            if refresh == "path":
                others = [pool.find(g, self.path[(number + 1) * wide - 1]) for number in range(first)]
                others = [block for block in others if block]
                pool.pin(others[::-1])
                pool.release(others[::-1])
            pool.pin(found[::-1])
            self.tables[g] = [0] * first + found
            self.published[g], self.gone[g] = tokens // group.block_tokens, first

    def step(self, start: int, end: int) -> None:
        """From `start` tokens computed to `end`."""
        self.slide(start)
        self.take(end)
        self.publish(end)

    def slide(self, start: int) -> None:
        """Let go of what the tokens from `start` on do not read."""
        for g, group in enumerate(self.memory.groups):
            table, first = self.tables[g], min(group.first(start), len(self.tables[g]))
            leaving = [block for block in table[self.gone[g] : first][::-1] if block]
            if leaving:
                self.memory.pools[g].release(leaving)
            table[self.gone[g] : first] = [0] * max(0, first - self.gone[g])
            self.gone[g] = max(self.gone[g], first)

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
                table += [0] * (-(-end // group.block_tokens) - count - len(table))
                table += self.memory.take(g, count)

    def publish(self, end: int) -> None:
        """What the first `end` tokens complete can be found, as far as the rule keeps it."""
        step = self.memory.step
        for g, group in enumerate(self.memory.groups):
            upto = end // step * step  # the last place at which a hit may end, and a block more for a draft
            if group.lookahead_drop and upto:
                upto = min(end, upto + group.block_tokens)
            table, kept, nodes = self.tables[g], self.kept[g], self.memory.pools[g].node
            for number in range(self.published[g], upto // group.block_tokens):
                if table[number] and (kept is None or number in kept) and nodes[table[number]] < 0:
                    table[number] = self.memory.publish(g, table[number], self.path, number)
                    self.num_states += group.kind == "state"
            self.published[g] = max(self.published[g], upto // group.block_tokens)

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


def give_up(memory: Memory, path: Sequence[int], rule: GuardedRule, asked: Asked) -> None:
    """Discard what the rule has too much of, of states that nobody uses."""
    if not rule.gives_up:
        return
    for g, group in enumerate(memory.groups):
        if group.kind != "state":
            continue
        wide, found = group.block_tokens // memory.unit, dict[int, int]()
        for number in range(len(path) // wide):
            if block := memory.find(g, path[(number + 1) * wide - 1]):
                found[(number + 1) * group.block_tokens] = block
        for end in rule.surplus(sorted(found), asked):
            if not memory.pools[g].ref[found[end]]:
                memory.pools[g].discard(found[end])
