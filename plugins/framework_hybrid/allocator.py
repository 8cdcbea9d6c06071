"""An allocator over groups of KV that share memory, for an engine without a model: the full replay over groups."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.errors import (
    DuplicateRequest,
    InvalidArgument,
    InvariantViolation,
    OutOfBlocks,
    StaleHit,
    UnknownRequest,
)
from framework.groups.checkpoints import Asked, CheckpointRule
from framework.groups.kinds import GroupHit
from framework.interfaces.allocator import Allocator, AllocatorStats, Hit
from framework.interfaces.hash import HashScheme
from framework.paged.index import BlockHasher
from framework.paged.pool import PromptEnds, facts_of
from framework.types import (
    UNKNOWN_REQUEST,
    BlockHash,
    Namespace,
    RequestFacts,
    RequestId,
    RequestInfo,
    TableChange,
    TokenArray,
)
from framework_hybrid.memory import Memory, stranded_bytes
from framework_hybrid.replay import GroupCounts, Run, give_up, state_tokens, step_end
from framework_hybrid.rules import GuardedRule

_LONGEST = 1 << 31  # tokens: more than any request has, where only windows and states take room
_NO_TABLE = np.empty(0, dtype=np.int32)
_MOST_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class FoundHit(Hit):
    """A Hit of `num_asked` tokens, and what each group made of it."""

    num_asked: int = 0
    found: GroupHit = field(default_factory=lambda: GroupHit(0, (), (), None, 0))


class _Running(Run):
    """A request that runs, and what the engine has said of it.

    Attributes:
        info: of it. facts: what policies may read of it. names: of its full units.
        ends: tokens with the step at hand. room: that its table is to have entries for.
        prefill: tokens that were known when it was admitted, generated ones of a preempted request included.
        shared: a fork shares blocks with it.
    """

    info: RequestInfo
    facts: RequestFacts = UNKNOWN_REQUEST
    names: list[BlockHash]
    ends: int
    room: int
    prefill: int
    shared: bool = False
    pauses: Sequence[int] = ()
    unchanged_to: float = 0
    table: npt.NDArray[np.int32] = _NO_TABLE


class SharedGroups(Allocator):
    """Blocks of all groups of a Memory, as an engine asks for them; there are no K and V, so tables name no block.

    A block, for the engine, is `unit` tokens of all layers of attention; what is in use and what is cached is counted
    in bytes and given as that many blocks. Each step lets go of what windows and states have passed, takes blocks, and
    makes what it completes findable: as soon as the engine publishes it.
    A state is not shared within the step that computes it.

    Args:
        memory: fresh, with an empty list of parents.
        rule: where windows and states are kept.
        num_bytes: of the memory. num_blocks: what the engine sees it as.
        step_tokens: a step computes at most, of one request.

    Attributes:
        names: of each node of the memory.
    """

    num_groups = 2  # so that the engine asks before every step
    ends_steps = True

    def __init__(
        self, memory: Memory, rule: CheckpointRule, hash: HashScheme, *, num_blocks: int, num_bytes: int,
        step_tokens: int,
    ) -> None:  # fmt: skip
        self.memory, self.rule, self.num_blocks, self.block_size = memory, GuardedRule(rule), num_blocks, memory.unit
        self._block_bytes, self._step_tokens = num_bytes / num_blocks, step_tokens
        if not isinstance(memory.parents, list) or memory.parents:
            raise InvalidArgument("the memory of a full replay begins with an empty list of parents")
        self._parents: list[int] = memory.parents
        self._pools = [(pool, max(group.block_bytes
                                  for group, group_pool in zip(memory.groups, memory.pools, strict=True)
                                  if group_pool is pool)) for pool in dict.fromkeys(memory.pools)]  # fmt: skip
        self._hasher = BlockHasher(hash, memory.unit)
        self._nodes: dict[BlockHash, int] = {}
        self.names: list[BlockHash] = []
        self._runs: dict[RequestId, _Running] = {}
        self._version, self._state_tokens = 0, state_tokens(memory)
        self._drop = memory.step * any(group.lookahead_drop for group in memory.groups)
        self._prompts, self._tenants = PromptEnds(), {"": 0}
        self._reads_requests = any(isinstance(pool.last_request, list) for pool in memory.pools)
        self._admitted: dict[RequestId, tuple[int, GroupHit]] = {}
        self._fresh: set[tuple[int, int]] = set()  # (group, node) of states that the step at hand computes
        self._hit_tokens = self._prompt_tokens = self._copied = self._checkpoints = 0
        self._samples: list[tuple[list[int], list[int]]] = []
        self._every, self._ended = 1, 0
        longest = bisect_left(range(1, _LONGEST), True, key=lambda tokens: not memory.holds(self._most(tokens, 2)))
        self.max_request_tokens = longest

    # Lookup and admission

    def lookup(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None = None) -> Hit:
        same = isinstance(previous, FoundHit) and (previous.version, previous.num_asked) == (self._version, len(tokens))
        if previous is not None and same:
            return previous
        _, names = self._hasher.of(tokens, namespace, previous)
        known = [self._nodes[name] for name in names if name in self._nodes]  # of a path, a leading part
        found = replace(self.memory.hit(known, len(tokens) - 1), seen=len(known) * self.memory.unit)
        return FoundHit(found.tokens, (), names, self._version, num_asked=len(tokens), found=found)

    def _beyond(self, hit: Hit, most: Sequence[int]) -> list[int]:
        """By group, of these numbers of blocks those that a hit leaves to be taken."""
        return [1 if group.kind == "state" else max(0, count - hit.num_tokens // group.block_tokens)
                for group, count in zip(self.memory.groups, most, strict=True)]  # fmt: skip

    def _held(self, hit: Hit) -> list[list[int]]:
        path = [self._nodes[name] for name in hit.hashes[: hit.num_tokens // self.block_size]]
        return self.memory.holders(path, hit.num_tokens)

    def _most(self, num_tokens: int, states: int) -> list[int]:
        """By group, what a request of so many tokens holds at most."""
        counts = []
        for group in self.memory.groups:
            whole = -(-num_tokens // group.block_tokens)
            width = -(-(group.length - 1 + self._step_tokens) // group.block_tokens) + 1
            counts.append(min(whole, {"full": whole, "state": states}.get(group.kind, width)))
        return counts

    def fits(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> bool:
        """As vLLM: room for all its tokens, of windows and states as many as it holds at a time."""
        self._check_version(hit)
        hit_blocks, needs = self._held(hit), self._beyond(hit, self._most(len(tokens), 1))
        for g, group in enumerate(self.memory.groups):
            node = self.memory.pools[g].node
            if group.kind == "state" and any((g, node[block]) in self._fresh for block in hit_blocks[g]):
                return False  # the state is there once the step is over; as in vLLM also one that is computed again
        return request.id not in self._runs and self.memory.fits(needs, hit_blocks)

    def _check_version(self, hit: Hit) -> None:
        if hit.version != self._version:
            raise StaleHit(f"the hit is of version {hit.version}, the memory is at {self._version}; look it up again")

    def _asked(self, request: RequestInfo, hit: Hit) -> Asked:
        """The request as a rule sees it. Of its answer all is known: how long it may get."""
        assert isinstance(hit, FoundHit)
        prompt = hit.num_asked if request.prompt_tokens is None else request.prompt_tokens
        junction = hit.num_tokens + hit.found.junction if hit.found.junction else 0
        return Asked(prompt=prompt, total=request.max_total_tokens - 1, hit=hit.num_tokens, junction=junction,
                     step=self.memory.step, drop=self._drop)  # fmt: skip

    def step_end(self, request: RequestInfo, start: int, end: int, hit: Hit | None = None) -> int:
        if hit is not None:
            assert isinstance(hit, FoundHit)
            asked, prefill = self._asked(request, hit), hit.num_asked
            pauses = self.rule.pauses(asked)
        else:
            run = self._run(request.id)
            asked, pauses, prefill = run.asked, run.pauses, run.prefill
        if prefill > asked.prompt:  # it was preempted: what it had generated is computed like a prompt
            asked = replace(asked, prompt=prefill)
        end = step_end(asked, self._state_tokens, pauses, start, end, self._step_tokens)
        if hit is not None and not self.memory.fits(self._first(hit, end), self._held(hit)):
            return start
        return end

    def _first(self, hit: Hit, end: int) -> list[int]:
        """By group, blocks for a first step up to `end`."""
        return self._beyond(hit, [-(-end // group.block_tokens) for group in self.memory.groups])

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        if request.id in self._runs:
            raise DuplicateRequest(f"request {request.id} has a table")
        self._check_version(hit)
        counts = self._first(hit, len(tokens) if num_tokens is None else num_tokens)
        if num_tokens is None:  # the others take theirs step by step
            counts = [count * (group.kind == "full") for count, group in zip(counts, self.memory.groups, strict=True)]
        if not self.memory.fits(counts, self._held(hit)):
            raise self._out_of_blocks(counts)
        asked = self._asked(request, hit)
        path = self._path([], -1, hit.hashes)
        run = _Running(self.memory, path, asked, self.rule.places(asked))
        run.info, run.names, run.prefill, run.pauses = request, [*hit.hashes], len(tokens), self.rule.pauses(asked)
        run.ends = hit.num_tokens
        if self._reads_requests:
            blocks = asked.prompt // self.block_size
            turn = self._prompts.turn_of(run.names[:blocks])
            new = max(0, -(-asked.prompt // self.block_size) - hit.num_tokens // self.block_size)
            run.facts = facts_of(request, asked.prompt, new, turn if request.turn is None else request.turn)
        self._serve(run)
        run.begin()
        for pool, table in zip(self.memory.pools, run.tables, strict=True):
            for block in table:
                pool.priority[block] = max(pool.priority[block], request.priority)
        run.room = len(tokens) if num_tokens is None else num_tokens
        if num_tokens is not None:
            run.take(num_tokens)
        for g, count in enumerate(counts if num_tokens is None else ()):
            run.tables[g] += self.memory.take(g, count)
        self._runs[request.id] = run
        self._hit_tokens += hit.num_tokens
        self._prompt_tokens += len(tokens)
        if len(tokens) == asked.prompt and request.id not in self._admitted:
            assert isinstance(hit, FoundHit)
            self._admitted[request.id] = asked.prompt, hit.found

    def _out_of_blocks(self, counts: Sequence[int]) -> OutOfBlocks:
        stats, names = self.stats(), [group.name for group in self.memory.groups]
        return OutOfBlocks(f"need {dict(zip(names, counts, strict=True))} blocks beside {stats.used_blocks} used of "
                           f"{stats.num_blocks}; preempt a request or raise cache.num_blocks")  # fmt: skip

    def _path(self, path: list[int], above: int, names: Sequence[BlockHash]) -> list[int]:
        """`path`, whose last node is `above`, with the nodes of these names below it."""
        for name in names:
            node = self._nodes.get(name)
            if node is None:
                node = self._nodes[name] = len(self._parents)
                self._parents.append(above)
                self.names.append(name)
            path.append(node)
            above = node
        return path

    def _serve(self, run: _Running) -> None:
        """What happens next happens for this request."""
        self._version += 1
        if self._reads_requests:
            self.memory.clock.facts = run.facts

    def _run(self, request: RequestId) -> _Running:
        run = self._runs.get(request)
        if run is None:
            raise UnknownRequest(f"request {request} has no table")
        return run

    # A request's life

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        run = self._run(request)
        before = len(run.table)
        if num_tokens <= run.ends and not run.shared:
            return TableChange(before)
        if num_tokens > run.unchanged_to or run.shared:
            self._grow(run, num_tokens)
        run.ends, run.room = max(run.ends, num_tokens), max(run.room, num_tokens)
        return TableChange(before)

    def _grow(self, run: _Running, num_tokens: int) -> None:
        """Blocks for the step that computes from `run.ends` to `num_tokens`.

        Raises:
            OutOfBlocks: windows have slid, nothing else changed.
        """
        memory = self.memory
        self._serve(run)
        run.slide(run.ends)
        written = self._written_by_others(run) if run.shared else []
        counts = run.lacks(num_tokens)
        for g, _ in written:
            counts[g] += 1
        if any(counts) and not memory.fits(counts):
            raise self._out_of_blocks(counts)
        for g, number in written:  # a fork's: whoever writes first takes a copy
            [block] = memory.take(g, 1)
            memory.pools[g].release((run.tables[g][number],))
            run.tables[g][number] = block
            self._copied += 1
        run.take(num_tokens)
        run.shared = False
        run.unchanged_to = min(
            min(len(table) * group.block_tokens, group.passed_at(gone))
            for group, table, gone in zip(memory.groups, run.tables, run.gone, strict=True)
        )

    def _written_by_others(self, run: _Running) -> list[tuple[int, int]]:
        """(group, number) of blocks with room at `run.ends` that another request has, too."""
        return [(g, number) for g, group in enumerate(self.memory.groups)
                if run.ends % group.block_tokens and (number := run.ends // group.block_tokens) < len(run.tables[g])
                and self.memory.pools[g].ref[run.tables[g][number]] > 1]  # fmt: skip

    def publish(self, request: RequestId, tokens: TokenArray) -> None:
        run = self._run(request)
        if len(tokens) > run.ends:
            raise InvalidArgument(f"request {request} has blocks for {run.ends} tokens, {len(tokens)} were published")
        self._publish(run, tokens)

    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        run = self._run(request)
        if len(tokens) > run.ends:
            raise InvalidArgument(f"request {request} has blocks for {run.ends} tokens, {len(tokens)} were committed")
        self._publish(run, tokens)
        return TableChange(len(run.table))

    def _publish(self, run: _Running, tokens: TokenArray) -> None:
        size = self.block_size
        if len(tokens) // size > len(run.names):
            anchor = run.names[-1] if run.names else self._hasher.root(run.info.namespace)[0]
            names = self._hasher.blocks(anchor, tokens[len(run.names) * size :])
            self._path(run.path, run.path[-1] if run.path else -1, names)  # type: ignore[arg-type]
            run.names += names
        self._serve(run)
        tenant, before = self._tenants.setdefault(run.info.tenant, len(self._tenants)), run.num_states
        for group, pool, table, done in zip(
            self.memory.groups, self.memory.pools, run.tables, run.published, strict=True
        ):
            for block in table[done : len(tokens) // group.block_tokens]:
                pool.priority[block], pool.tenant[block] = run.info.priority, tenant
        run.publish(len(tokens))
        if run.num_states > before:
            self._checkpoints += run.num_states - before
            for g, group in enumerate(self.memory.groups):
                if group.kind == "state":
                    self._fresh.add((g, run.path[len(tokens) // group.block_tokens * group.block_tokens // size - 1]))

    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        run, groups = self._run(parent), self.memory.groups
        if child.id in self._runs:
            raise DuplicateRequest(f"request {child.id} has a table")
        if num_tokens > run.ends or any(group.first(num_tokens) < gone
                                        for group, gone in zip(groups, run.gone, strict=True)):  # fmt: skip
            raise InvalidArgument(f"{num_tokens} tokens of request {parent} are not there to be forked")
        made = copy(run)
        made.info, made.path, made.names = child, [*run.path], [*run.names]
        made.ends = made.room = num_tokens
        made.tables = [table[: -(-num_tokens // group.block_tokens)]
                       for group, table in zip(groups, run.tables, strict=True)]  # fmt: skip
        made.published = [min(published, num_tokens // group.block_tokens)
                          for group, published in zip(groups, run.published, strict=True)]  # fmt: skip
        made.gone, made.table, made.num_states = [*run.gone], _NO_TABLE, 0
        self._serve(run)
        for pool, table in zip(self.memory.pools, made.tables, strict=True):
            pool.pin([block for block in reversed(table) if block], hit=False)
        run.shared = made.shared = True
        self._runs[child.id] = made
        return TableChange(len(self.table(child.id)))

    def free(self, request: RequestId, next_use: Sequence[float] = ()) -> None:
        run = self._run(request)
        del self._runs[request]
        if self._reads_requests:
            output = max(0, run.ends - (run.facts.prompt_tokens or 0))
            run.facts = replace(run.facts, output_tokens=output)
        self._serve(run)
        run.leave()
        give_up(self.memory, run.path[: run.ends // self.block_size], self.rule, run.asked)
        self._sample()

    def _sample(self) -> None:
        """Note what is resident and what is stranded, at a few ends of requests, evenly spread."""
        self._ended += 1
        if self._ended % self._every == 0:
            self._samples.append((self.memory.bytes_by_group(), stranded_bytes(self.memory)))
            if len(self._samples) == _MOST_SAMPLES:
                self._samples, self._every = self._samples[1::2], 2 * self._every

    def table(self, request: RequestId, group: int = 0) -> npt.NDArray[np.int32]:
        """As long as the request's room; its entries are all 1.

        Other groups' are without room: `extend` is called before every step, which may let go of something.
        """
        run = self._run(request)
        if group:
            return _NO_TABLE
        count = -(-run.room // self.block_size)
        if count != len(run.table):
            run.table = np.ones(count, dtype=np.int32)
        return run.table

    def reset(self, request: RequestId | None = None) -> None:
        """Names known so far name nothing any more; what they named ages out."""
        self._version += 1
        self._nodes.clear()

    def advance(self, now: float) -> None:
        self.memory.clock.now = now
        self._fresh.clear()

    # Counts

    def stats(self) -> AllocatorStats:
        used = min(int(sum(pool.used * size for pool, size in self._pools) / self._block_bytes), self.num_blocks)
        idle = int(sum(pool.unreferenced * size for pool, size in self._pools) / self._block_bytes)
        cached = min(idle, self.num_blocks - used)
        return AllocatorStats(
            num_blocks=self.num_blocks, free_blocks=self.num_blocks - used - cached, cached_blocks=cached,
            used_blocks=used, num_requests=len(self._runs), hit_tokens=self._hit_tokens,
            prompt_tokens=self._prompt_tokens, evictions=self.memory.num_evictions, copied_blocks=self._copied,
        )  # fmt: skip

    def counts(self) -> GroupCounts:
        """Of admissions, the first of each request: what the replay without an engine counts."""
        admitted, samples = self._admitted.values(), self._samples
        return GroupCounts.of(
            self.memory, [prompt for prompt, _ in admitted], [hit for _, hit in admitted],
            checkpoints=self._checkpoints, resident=[resident for resident, _ in samples],
            stranded=[lost for _, lost in samples],
        )  # fmt: skip

    def results(self) -> dict[str, Any]:
        """The numbers of groups beside those that the engine counts."""
        engine_counts = {"hit_tokens", "prompt_tokens", "hit_rate", "num_evictions", "refused_requests"}
        return {name: value for name, value in self.counts().results().items() if name not in engine_counts}

    def check(self) -> None:
        faults = []
        for pool in dict.fromkeys(self.memory.pools):
            uses = Counter(block for run in self._runs.values() for g, table in enumerate(run.tables)
                           if self.memory.pools[g] is pool for block in table if block)  # fmt: skip
            wrong = [block for block, ref in enumerate(pool.ref) if ref != uses[block]]
            idle = sum(node >= 0 and not ref for node, ref in zip(pool.node, pool.ref, strict=True))
            if wrong or idle != pool.unreferenced or pool.used != len(uses):
                faults.append(f"blocks {wrong[:9]} are not used as counted; {idle} idle, {pool.unreferenced} counted; "
                              f"{len(uses)} in use, {pool.used} counted")  # fmt: skip
        if faults:
            raise InvariantViolation("SharedGroups: " + "; ".join(faults))
