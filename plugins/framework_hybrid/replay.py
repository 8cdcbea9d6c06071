"""Cache-only replay over groups: requests one after the other, each as an engine would compute it, without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from framework.errors import OutOfBlocks
from framework.groups.checkpoints import Asked, CheckpointRule
from framework.groups.memory import Memory
from framework.groups.pool import ROOT, Node
from framework.groups.run import Run, give_up, state_tokens, step_end
from framework.interfaces.groups import GroupHit, Kind
from framework_cache_only.paths import Ints, RequestPaths
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
    def of(
        cls, memory: Memory, prompt: Sequence[int] | Ints, requests: Sequence[GroupHit], **counted: Any
    ) -> GroupCounts:
        """Counts of these prompts and what each found; `counted` are the fields that follow `kinds`."""
        kinds = tuple(group.kind for group in memory.groups)
        wide = (len(requests), len(kinds))
        allowed = [hit.tokens + sum(hit.lost) for hit in requests]
        seen = [most if hit.seen is None else hit.seen // memory.step * memory.step
                for hit, most in zip(requests, allowed, strict=True)]  # fmt: skip
        return cls(
            prompt=np.asarray(prompt, np.int64),
            hits=np.array([hit.tokens for hit in requests], np.int64),
            could=np.array([hit.could for hit in requests], np.int64).reshape(wide),
            lost=np.array([hit.lost for hit in requests], np.int64).reshape(wide),
            junctions=np.array([hit.junction for hit in requests], np.int64),
            unseen=np.maximum(0, np.array(allowed, np.int64) - np.array(seen, np.int64)),
            kinds=kinds, evictions=sum(memory.evictions), **counted,
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
    hits, refused, checkpoints = list[GroupHit](), 0, 0
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
        run = Run(memory, path, asked, guarded.places(asked), keeps_end=guarded.keeps_end)
        try:
            run.begin(memory.holders(path, hit.tokens), refresh)
            for start, end in steps(asked, memory, guarded.pauses(asked), chunk_tokens):
                run.step(start, end)
                if seen is not None:
                    seen(number, end, run.tables)
        except OutOfBlocks:
            refused += 1
            run.leave()
            hits.append(replace(hit, tokens=0, lost=(0,) * len(hit.lost), junction=0))
            continue
        if guarded.keeps_end:
            run.publish_end(asked.total)
        run.leave()
        checkpoints += run.num_states
        give_up(memory, path, guarded, asked)
        hits.append(hit)
        if number in sampled:
            resident.append(resident_bytes(memory))
            stranded.append(stranded_bytes(memory))
    return GroupCounts.of(memory, prompt, hits, refused=refused, checkpoints=checkpoints, resident=resident,
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


def resident_bytes(memory: Memory) -> list[int]:
    """(G,) bytes of what can be found."""
    sizes = [0] * len(memory.groups)
    for pool in dict.fromkeys(memory.pools):
        for (group, _), blocks in pool.index.items():
            sizes[group] += len(blocks) * memory.groups[group].block_bytes
    return sizes


def stranded_bytes(memory: Memory) -> list[int]:
    """(G,) bytes of each group that are needed at no place from which a request could go on.

    A content that is resident twice counts once. O(prefixes of what is resident + resident blocks times those of the
    widest window).
    """
    groups, parents, unit = memory.groups, memory.parents, memory.unit
    have: list[set[Node]] = [set() for _ in groups]
    for g, node in memory.resident():
        have[g].add(node)
    depths: dict[Node, int] = {ROOT: 0}  # units up to and including each node
    for node in set().union(*have):
        path = []
        while node not in depths:
            path.append(node)
            node = parents[node]
        for number, one in enumerate(reversed(path), depths[node] + 1):
            depths[one] = number

    def up(node: Node, units: int) -> Node:
        for _ in range(units):
            node = parents[node]
        return node

    wide = [group.block_tokens // unit for group in groups]
    runs: list[dict[Node, int]] = []  # resident blocks without a gap that end at a node
    for g, held in enumerate(have):
        run: dict[Node, int] = {}
        for node in sorted(held, key=depths.__getitem__):
            run[node] = 1 + run.get(up(node, wide[g]), 0)
        runs.append(run)
    # A draft model's group has a block beyond the place, so places are looked for from there.
    ahead = max((w for w, group in zip(wide, groups, strict=True) if group.lookahead_drop), default=0)
    anchors = [g for g, w in enumerate(wide) if groups[g].kind != "chunk" and w * groups[g].lookahead_drop == ahead]
    useful: list[set[Node]] = [set() for _ in groups]
    for end in min((have[g] for g in anchors), key=len, default=set()):
        place = (depths[end] - ahead) * unit
        needs = [group.needs(place) for group in groups] if place % memory.step == 0 else []
        ends = [up(end, depths[end] - need.stop * wide[g]) for g, need in enumerate(needs)]
        if not needs or any(runs[g].get(ends[g], 0) < len(need) for g, need in enumerate(needs)):
            continue
        for g, need in enumerate(needs):
            node = ends[g]
            for _ in need:
                if groups[g].kind == "full" and node in useful[g]:
                    break
                useful[g].add(node)
                node = up(node, wide[g])
    return [group.block_bytes * len(held - used) for group, held, used in zip(groups, have, useful, strict=True)]
