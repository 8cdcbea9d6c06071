"""A paged allocator over groups of KV in one memory: serving and replays run the same."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from framework.errors import InvalidArgument, InvariantViolation, OutOfBlocks
from framework.groups.checkpoints import Asked, CheckpointRule
from framework.groups.memory import Memory
from framework.groups.pool import ROOT
from framework.groups.run import Run, give_up, state_tokens, step_end
from framework.interfaces.allocator import Allocator, AllocatorStats, CacheEvent, Hit
from framework.interfaces.groups import GroupHit
from framework.interfaces.hash import HashScheme
from framework.paged.index import BlockHasher
from framework.paged.pool import PromptEnds, facts_of
from framework.paged.table import Tables, check_version, count_of
from framework.types import (
    UNKNOWN_REQUEST,
    BlockCopy,
    BlockHash,
    BlockId,
    Namespace,
    RequestFacts,
    RequestId,
    RequestInfo,
    TableChange,
    TokenArray,
    as_tokens,
)

_LONGEST = 1 << 31  # tokens: more than any request has, where only windows and states take room


@dataclass(frozen=True, slots=True)
class FoundHit(Hit):
    """A Hit of a prompt of `num_asked` tokens.

    Attributes:
        reach: tokens up to which blocks will be loaded; 0 for none. See `GroupedAllocator.reaching`.
    """

    num_asked: int = 0
    reach: int = 0


class Running(Run):
    """A request that runs, and what the engine has said of it.

    Attributes:
        info: of it. facts: what policies may read of it. tenant: its number.
        ends: tokens computed, as far as is known, with the step at hand. committed: of them, those said to be.
        prefill: tokens that were known when it was admitted, generated ones of a preempted request included.
        pauses: where the rule wants its prefill chunks to end.
        steady: tokens up to which its tables stay as they are.
        loading: its blocks are to be loaded, and nothing was committed yet.
        shared: a fork shares blocks with it. closed: what it computes is not published any more.
        token_bytes: the tokens known, as int32.
    """

    info: RequestInfo
    facts: RequestFacts = UNKNOWN_REQUEST
    tenant = 0
    ends: int
    committed: int
    prefill: int
    pauses: Sequence[int] = ()
    steady: float = 0
    shared: bool = False
    closed: bool = False
    loading: bool = False
    token_bytes: bytearray

    @property
    def room(self) -> int:
        """Tokens that it has blocks for."""
        return min(
            len(table) * group.block_tokens for group, table in zip(self.memory.groups, self.tables, strict=True)
        )


class GroupedAllocator(Allocator):
    """A table a request in each group of KV, over the blocks of one Memory.

    A hit is the longest prefix that all groups can go on from. Each step first lets go of what windows and states have
    passed, then takes blocks for what it writes; what it completes can be found as soon as the engine publishes it, as
    far as the rule keeps it. A state lies in the block of the last token that went into it; it is shared from the step
    after the one that computes it, and one is kept only where a step ends.

    Contents are named by their group and the chained hash of their last unit, which stands for the whole prefix: a
    window's are found though those before them are gone.

    Args:
        memory: fresh, made without `parents`. Its unit is the `block_size` that the engine sees.
        rule: where windows and states are kept.
        num_blocks: what the engine sees it as.
        num_bytes: of the memory: what is in use and cached is counted in bytes and given as so many blocks. None: the
            blocks that the engine sees are the first group's.
        step_tokens: a step computes at most, of one request.
        share_prefix, share_forks, watermark: as of PagedAllocator; the watermark is of each group.

    Raises:
        InvalidArgument: the memory was used, has a trace's numbers, or no room for a token.
    """

    def __init__(
        self, memory: Memory, rule: CheckpointRule, hash: HashScheme, *, num_blocks: int, step_tokens: int,
        num_bytes: int | None = None, share_prefix: bool = True,
        share_forks: Literal["none", "full", "all"] = "all", watermark: float = 0.0,
    ) -> None:  # fmt: skip
        if memory.parents or memory.clock.access or not isinstance(memory.parents, dict):
            raise InvalidArgument("the memory of a grouped allocator is fresh and made without parents")
        self.memory, self.rule, self.num_blocks, self.block_size = memory, rule, num_blocks, memory.unit
        self.groups = memory.groups
        self.group_blocks = tuple(pool.num_blocks for pool in memory.pools)
        self.ends_steps = True
        self.share_prefix, self._share_forks, self._step_tokens = share_prefix, share_forks, step_tokens
        self._block_bytes = None if num_bytes is None else num_bytes / num_blocks
        self._pools = [(pool, max(group.block_bytes
                                  for group, group_pool in zip(memory.groups, memory.pools, strict=True)
                                  if group_pool is pool)) for pool in dict.fromkeys(memory.pools)]  # fmt: skip
        self._reserve = [int(watermark * count) for count in self.group_blocks]
        self._hasher = BlockHasher(hash, memory.unit)
        self._runs: Tables[Running] = Tables()
        self._version, self._state_tokens = 0, state_tokens(memory)
        self._drop = memory.step * any(group.lookahead_drop for group in memory.groups)
        self._prompts, self._tenants = PromptEnds(), {"": 0}
        self._reads_requests = any(isinstance(pool.last_request, list) for pool in memory.pools)
        self._fresh: set[tuple[int, BlockHash]] = set()  # (group, content) of states that the step at hand computes
        self._hit_tokens = self._prompt_tokens = self._copied = self._num_states = 0
        self._lost_tokens = [0] * len(self.groups)
        self._peaks = [0] * len(self._pools)  # most blocks in use at once, of each pool
        too_long = lambda tokens: not memory.fits(self._most(tokens, 2))  # noqa: E731
        self.max_request_tokens = bisect_left(range(1, _LONGEST), True, key=too_long)
        if not self.max_request_tokens:
            raise InvalidArgument(f"there are {[*self.group_blocks]} blocks of {[g.block_tokens for g in self.groups]} "
                                  f"tokens, and a request of one token needs {self._most(1, 2)}, of "
                                  f"{[g.name for g in self.groups]}; raise cache.num_blocks")  # fmt: skip

    # Lookup and admission

    def lookup(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None = None) -> Hit:
        same = isinstance(previous, FoundHit) and (previous.version, previous.num_asked) == (self._version, len(tokens))
        if previous is not None and same:
            return previous
        tokens = as_tokens(tokens)
        names: Sequence[BlockHash] = self._hasher.of(tokens, namespace, previous)[1] if self.share_prefix else ()
        found = self._find(names, len(tokens) - 1 if self.share_prefix else 0)
        tables = [(BlockId(0),) * group.first(found.tokens) + tuple(map(BlockId, blocks)) for group, blocks in
                  zip(self.groups, self.memory.holders(names, found.tokens), strict=True)]  # fmt: skip
        return FoundHit(found.tokens, tables[0], names, self._version, tuple(tables), found, len(tokens))

    def _find(self, names: Sequence[BlockHash], limit: int) -> GroupHit:
        return self.memory.hit(names, limit)

    def num_resident(self, names: Sequence[BlockHash]) -> int:
        """Leading blocks of the first group, of these contents, that are there."""
        find = self.memory.pools[0].find
        return next((number for number, name in enumerate(names) if not find(0, name)), len(names))

    def reaching(self, hit: Hit, num_tokens: int) -> FoundHit:
        """`hit` for a request that then loads what it lacks up to `num_tokens`, which the caller commits.

        Of the first group, whose blocks are units, it gets what is there and fresh blocks; of the others fresh blocks
        for what is needed there.
        """
        assert isinstance(hit, FoundHit)
        names = hit.hashes[: num_tokens // self.block_size]
        blocks = tuple(BlockId(self.memory.find(0, name)) for name in names[: self.num_resident(names)])
        tables = (blocks, *((BlockId(0),) * group.needs(num_tokens).start for group in self.groups[1:]))
        return replace(hit, num_tokens=len(blocks) * self.block_size, blocks=blocks, groups=tables, reach=num_tokens)

    def _most(self, num_tokens: int, states: int) -> list[int]:
        """By group, what a request of so many tokens holds at most."""
        counts = []
        for group in self.groups:
            whole = -(-num_tokens // group.block_tokens)
            width = -(-(group.length - 1 + self._step_tokens) // group.block_tokens) + 1
            counts.append(min(whole, {"full": whole, "state": states}.get(group.kind, width)))
        return counts

    def _beyond(self, hit: FoundHit, most: Sequence[int]) -> list[int]:
        """By group, of these numbers of blocks those that a hit leaves to be taken."""
        counts = []
        for g, (group, count) in enumerate(zip(self.groups, most, strict=True)):
            if hit.reach and g:  # the others have nothing yet
                counts.append(2 if group.kind == "state" else count)
            else:
                counts.append(1 if group.kind == "state" else max(0, count - hit.num_tokens // group.block_tokens))
        return counts

    def fits(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> bool:
        """As vLLM: room for all its tokens, of windows and states as many as it holds at a time."""
        hit = self._checked(hit, request)
        if request.id in self._runs or not len(tokens):
            return False
        reused = _named(hit)
        for g, group in enumerate(self.groups):
            node = self.memory.pools[g].node
            if group.kind == "state" and any((g, node[block]) in self._fresh for block in reused[g]):
                return False  # the state is there once the step is over; as in vLLM also one that is computed again
        needs = self._beyond(hit, self._most(len(tokens), 1))
        if self._runs:
            needs = [need + reserve for need, reserve in zip(needs, self._reserve, strict=True)]
        return self.memory.fits(needs, reused)

    def _checked(self, hit: Hit, request: RequestInfo) -> FoundHit:
        """The hit, which is valid now and of this allocator.

        Raises:
            StaleHit, InvalidArgument.
        """
        check_version(request, hit, self._version)
        if not isinstance(hit, FoundHit):
            raise InvalidArgument(f"a {type(hit).__name__} is no hit of an allocator over groups; look it up here")
        self._hasher.check(hit.hashes, request.namespace)
        return hit

    def _asked(self, request: RequestInfo, hit: FoundHit) -> Asked:
        """The request as a rule sees it. Of its answer all is known: how long it may get."""
        prompt = hit.num_asked if request.prompt_tokens is None else request.prompt_tokens
        assert hit.found is not None
        junction = hit.found.tokens + hit.found.junction if hit.found.junction else 0
        return Asked(prompt=prompt, total=request.max_total_tokens - 1, hit=hit.reach or hit.num_tokens,
                     junction=junction, step=self.memory.step, drop=self._drop)  # fmt: skip

    def step_end(self, request: RequestInfo, start: int, end: int, hit: Hit | None = None) -> int:
        found = None if hit is None else self._checked(hit, request)
        if found is not None:
            asked, prefill = self._asked(request, found), found.num_asked
            pauses = self.rule.pauses(asked)
        else:
            run = self._runs[request.id]
            asked, pauses, prefill = run.asked, run.pauses, run.prefill
        if prefill > asked.prompt:  # it was preempted: what it had generated is computed like a prompt
            asked = replace(asked, prompt=prefill)
        end = step_end(asked, self._state_tokens, pauses, start, end, self._step_tokens)
        if found is not None and not self.memory.fits(self._first(found, end), _named(found)):
            return start
        return end

    def _first(self, hit: FoundHit, end: int) -> list[int]:
        """By group, blocks for a first step up to `end`."""
        whole = [-(-end // group.block_tokens) for group in self.groups]
        if hit.reach:
            whole = [count - len(table) * (g > 0) for g, (count, table) in
                     enumerate(zip(whole, hit.groups, strict=True))]  # fmt: skip
        return self._beyond(hit, whole)

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        self._runs.check_new(request)
        hit, tokens = self._checked(hit, request), as_tokens(tokens)
        num_tokens = len(tokens) if num_tokens is None else num_tokens
        if not hit.num_tokens < num_tokens <= len(tokens):
            raise InvalidArgument(
                f"room for {num_tokens} tokens of request {request.id}: more than the {hit.num_tokens} of its hit, and "
                f"at most the {len(tokens)} of its prompt, which has one at least"
            )
        counts = self._first(hit, num_tokens)
        if not self.memory.fits(counts, _named(hit)):
            raise self._out_of_blocks(counts)
        asked = self._asked(request, hit)
        places = self.rule.places(asked)
        if places is not None and hit.reach:
            places = [*places, hit.reach]
        run = Running(self.memory, [*hit.hashes], asked, places, keeps_end=self.rule.keeps_end)
        run.info, run.prefill, run.pauses = request, len(tokens), self.rule.pauses(asked)
        run.ends, run.committed = asked.hit, hit.num_tokens
        run.token_bytes = bytearray(tokens)
        run.tenant = self._tenants.setdefault(request.tenant, len(self._tenants))
        if self._reads_requests:
            turn = self._prompts.turn_of(run.path[: asked.prompt // self.block_size])
            new = max(0, -(-asked.prompt // self.block_size) - hit.num_tokens // self.block_size)
            run.facts = facts_of(request, asked.prompt, new, turn if request.turn is None else request.turn)
        self._serve(run)
        run.begin(_named(hit))
        for g, (pool, table) in enumerate(zip(self.memory.pools, run.tables, strict=True)):
            if hit.reach and g:
                run.tables[g] = array("i", hit.groups[g])
                run.published[g] = run.gone[g] = len(hit.groups[g])
            for block in table:
                pool.priority[block] = max(pool.priority[block], request.priority)
        run.loading = hit.reach > 0
        if run.loading:
            run.take(hit.reach)
        run.take(num_tokens)
        self._runs[request.id] = run
        self._hit_tokens += hit.num_tokens
        self._prompt_tokens += len(tokens)
        assert hit.found is not None
        self._lost_tokens = [a + b for a, b in zip(self._lost_tokens, hit.found.lost, strict=True)]
        self._note_peak()

    def _note_peak(self) -> None:
        for number, (pool, _) in enumerate(self._pools):
            if pool.used > self._peaks[number]:
                self._peaks[number] = pool.used

    def _out_of_blocks(self, counts: Sequence[int]) -> OutOfBlocks:
        stats, names = self.stats(), [group.name for group in self.groups]
        return OutOfBlocks(f"need {dict(zip(names, counts, strict=True))} blocks beside {stats.used_blocks} used of "
                           f"{stats.num_blocks}; preempt a request or raise cache.num_blocks")  # fmt: skip

    def _serve(self, run: Running) -> None:
        """What happens next happens for this request."""
        self._version += 1
        if self._reads_requests:
            self.memory.clock.facts = run.facts

    # A request's life

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        run = self._runs[request]
        before = len(run.tables[0])
        num_tokens = count_of("num_tokens", num_tokens, 0)
        if num_tokens <= run.ends and not run.shared:
            return TableChange(before)
        # A prefill chunk goes on from the one before; then a step computes one token.
        start = run.ends if run.ends < run.prefill else max(run.ends, num_tokens - 1)
        change = TableChange(before)
        if num_tokens > run.steady or run.shared:
            change = self._grow(run, start, num_tokens)
        run.ends = max(run.ends, num_tokens)
        return change

    def _grow(self, run: Running, start: int, num_tokens: int) -> TableChange:
        """Blocks for the step that computes from `start` to `num_tokens`.

        Raises:
            OutOfBlocks: windows have slid, nothing else changed.
        """
        memory, changed, gone = self.memory, len(run.tables[0]), run.gone[0]
        self._serve(run)
        run.slide(start)
        if run.gone[0] > gone:
            changed = gone
        written = self._written_by_others(run, start) if run.shared else []
        counts = run.lacks(num_tokens)
        for g, _ in written:
            counts[g] += 1
        if any(counts) and not memory.fits(counts):
            raise self._out_of_blocks(counts)
        copies = []
        for g, number in written:  # a fork's: whoever writes first takes a copy
            [block] = memory.take(g, 1)
            source = run.tables[g][number]
            memory.pools[g].release((source,))
            run.tables[g][number] = block
            copies.append(BlockCopy(BlockId(source), BlockId(block), g))
            changed = changed if g else min(changed, number)
        self._copied += len(copies)
        run.take(num_tokens)
        run.shared = False
        run.steady = min(run.room, run.slides_at)
        self._note_peak()
        return TableChange(changed, tuple(copies))

    def steady_tokens(self, request: RequestId) -> int:
        run = self._runs[request]
        return run.ends if run.ends < run.prefill or run.shared else int(min(run.steady, _LONGEST))

    def _written_by_others(self, run: Running, start: int) -> list[tuple[int, int]]:
        """(group, number) of blocks with room at `start` that another request has, too."""
        return [(g, number) for g, group in enumerate(self.groups)
                if start % group.block_tokens and (number := start // group.block_tokens) < len(run.tables[g])
                and self.memory.pools[g].ref[run.tables[g][number]] > 1]  # fmt: skip

    def publish(self, request: RequestId, tokens: TokenArray) -> None:
        run = self._runs[request]
        self._publish(run, self._known(run, tokens, "published"), computed=False)

    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        run = self._runs[request]
        tokens = self._known(run, tokens, "committed")
        if len(tokens) < run.committed:
            raise InvalidArgument(f"{len(tokens)} tokens of request {request} were committed, {run.committed} before")
        changed = self._publish(run, tokens, computed=True)
        run.committed, run.loading = len(tokens), False
        run.ends = max(run.ends, run.committed)
        return TableChange(changed)

    def _known(self, run: Running, tokens: TokenArray, what: str) -> TokenArray:
        """The request's first tokens, which it has blocks for and which are those known before.

        Raises:
            InvalidArgument: they are not; nothing changed.
        """
        tokens, data = as_tokens(tokens), run.token_bytes
        if len(tokens) > run.room:
            raise InvalidArgument(
                f"request {run.info.id} has blocks for {run.room} tokens, {len(tokens)} were {what}; extend first"
            )
        if not data.startswith(tokens.data[: len(data) // 4]):
            raise InvalidArgument(f"tokens of request {run.info.id} were {what} that differ from those known before")
        return tokens

    def _publish(self, run: Running, tokens: TokenArray, *, computed: bool) -> int:
        """See `Run.publish`."""
        size = self.block_size
        run.token_bytes += tokens.data[len(run.token_bytes) // 4 :]
        if not self.share_prefix or run.closed:
            return len(run.tables[0])
        if len(tokens) // size > len(run.path):
            above = run.path[-1] if run.path else self._hasher.root(run.info.namespace)[0]
            known = len(run.path)
            run.path += self._hasher.blocks(above, tokens[known * size :], run.info.namespace, known)
        self._serve(run)
        for group, pool, table, done in zip(self.groups, self.memory.pools, run.tables, run.published, strict=True):
            for block in table[done : len(tokens) // group.block_tokens]:
                pool.priority[block], pool.tenant[block] = run.info.priority, run.tenant
        before = run.num_states
        changed = run.publish(len(tokens), computed=computed)
        if run.num_states > before:
            self._num_states += run.num_states - before
            for g, group in enumerate(self.groups):
                if group.kind == "state":
                    self._fresh.add((g, run.path[len(tokens) // group.block_tokens * group.block_tokens // size - 1]))
        return changed

    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        run, groups, pools = self._runs[parent], self.groups, self.memory.pools
        self._runs.check_new(child)
        count_of("num_tokens", num_tokens, 0)
        states = self._state_tokens and num_tokens < run.ends
        gone = any(group.first(num_tokens) < gone for group, gone in zip(groups, run.gone, strict=True))
        if num_tokens > run.room or gone or states:
            raise InvalidArgument(f"{num_tokens} tokens of request {parent} are not there to be forked")
        if child.namespace != run.info.namespace:
            raise InvalidArgument(f"a fork stays in its parent's {run.info.namespace}, asked for {child.namespace}")
        tables = [table[: -(-num_tokens // group.block_tokens)]
                  for group, table in zip(groups, run.tables, strict=True)]  # fmt: skip
        kept = [{"none": 0, "full": num_tokens // group.block_tokens, "all": len(table)}[self._share_forks]
                for group, table in zip(groups, tables, strict=True)]  # fmt: skip
        copied = [(g, number) for g, (table, first) in enumerate(zip(tables, kept, strict=True))
                  for number in range(first, len(table)) if table[number]]  # fmt: skip
        counts = [sum(g == other for other, _ in copied) for g in range(len(groups))]
        if any(counts) and not self.memory.fits(counts):
            raise self._out_of_blocks(counts)
        made = copy(run)
        made.info, made.tables, made.num_states = child, tables, 0
        made.path = run.path[: num_tokens // self.block_size]
        made.token_bytes = run.token_bytes[: 4 * num_tokens]
        made.ends = made.committed = num_tokens
        made.prefill, made.steady, made.gone = min(run.prefill, num_tokens), 0, [*run.gone]
        made.published = [min(published, num_tokens // group.block_tokens, first)
                          for group, published, first in zip(groups, run.published, kept, strict=True)]  # fmt: skip
        made.tenant = self._tenants.setdefault(child.tenant, len(self._tenants))
        if self._reads_requests:
            made.facts = replace(run.facts, hint=child.hint, tenant=child.tenant or None)
        self._serve(run)
        for pool, table, first in zip(pools, tables, kept, strict=True):
            pool.pin([block for block in reversed(table[:first]) if block], hit=False)
        copies = []
        for g, number in copied:
            [block] = self.memory.take(g, 1)
            copies.append(BlockCopy(BlockId(tables[g][number]), BlockId(block), g))
            tables[g][number] = block
        self._copied += len(copies)
        run.shared = made.shared = True
        run.ends = max(run.ends, num_tokens)
        self._runs[child.id] = made
        self._note_peak()
        return TableChange(0, tuple(copies))

    def free(self, request: RequestId, next_use: Sequence[float] = ()) -> None:
        run = self._runs[request]
        del self._runs[request]
        if self._reads_requests:
            output = max(0, run.ends - (run.facts.prompt_tokens or 0))
            run.facts = replace(run.facts, output_tokens=output)
        self._serve(run)
        for group, pool, table, published in zip(
            self.groups, self.memory.pools, run.tables, run.published, strict=True
        ):
            for block in table[run.committed // group.block_tokens : published]:  # promised, and not computed
                if pool.node[block] != ROOT:
                    pool.discard(block)
        if self.rule.keeps_end and self.share_prefix and not (run.closed or run.loading):
            run.publish_end(run.committed)
        run.leave()
        give_up(self.memory, run.path[: run.ends // self.block_size], self.rule, run.asked)

    def table(self, request: RequestId, group: int = 0) -> npt.NDArray[np.int32]:
        """Entries of `block_size` tokens each: a block of more tokens is there as often as it has such units."""
        run, wide = self._runs[request], self.groups[group].block_tokens // self.block_size
        table = np.frombuffer(bytearray(run.tables[group]), dtype=np.int32)
        return table if wide == 1 else np.repeat(table, wide)

    def reset(self, request: RequestId | None = None) -> None:
        self._version += 1
        if request is None:
            gone = {node for _, node in self.memory.resident()}
        else:
            gone = {*self._runs[request].path}  # what a window has passed is not sound either
        for pool in dict.fromkeys(self.memory.pools):
            unsound = [block for block, node in enumerate(pool.node) if node != ROOT and node in gone]
            for block in sorted(unsound, key=pool.end.__getitem__, reverse=True):
                if pool.node[block] != ROOT:
                    pool.discard(block)
        for run in self._runs.values():
            if request is None or not gone.isdisjoint(run.path[: -(-run.ends // self.block_size)]):
                run.closed = True

    def advance(self, now: float) -> None:
        self.memory.clock.now = now
        self._fresh.clear()

    def listen(self, listener: Callable[[CacheEvent], Any] | None) -> None:
        self.memory.listener = listener

    # Counts

    def stats(self) -> AllocatorStats:
        first, each = self.memory.pools[0], self._block_bytes
        if each is None:
            used, cached = first.used, first.unreferenced
        else:
            used = min(int(sum(pool.used * size for pool, size in self._pools) / each), self.num_blocks)
            cached = min(int(sum(pool.unreferenced * size for pool, size in self._pools) / each),
                         self.num_blocks - used)  # fmt: skip
        return AllocatorStats(
            num_blocks=self.num_blocks, free_blocks=self.num_blocks - used - cached, cached_blocks=cached,
            used_blocks=used, num_requests=len(self._runs), hit_tokens=self._hit_tokens,
            prompt_tokens=self._prompt_tokens, evictions=sum(self.memory.evictions), copied_blocks=self._copied,
        )  # fmt: skip

    def results(self) -> dict[str, Any]:
        """What each kind of group, or `shared` by several, has: bytes, most in use, and cached; by kind, evictions
        and tokens that it shortened hits by, summed over admissions, and the first kind's hit."""
        counts, kinds, pools = Counter[str](), [group.kind for group in self.groups], self.memory.pools
        for (pool, size), peak in zip(self._pools, self._peaks, strict=True):
            users = {kind for kind, other in zip(kinds, pools, strict=True) if other is pool}
            name = users.pop() if len(users) == 1 else "shared"
            blocks = {"bytes": pool.num_blocks, "peak_used_bytes": peak, "cached_bytes": pool.unreferenced}
            counts.update({f"{name}_{what}": count * size for what, count in blocks.items()})
        for kind, evictions, tokens in zip(kinds, self.memory.evictions, self._lost_tokens, strict=True):
            counts[f"{kind}_evictions"] += evictions
            if kind != kinds[0]:
                counts[f"{kind}_lost_tokens"] += tokens
        lost = sum(counts[f"{kind}_lost_tokens"] for kind in {*kinds} - {kinds[0]})
        return {**counts, f"{kinds[0]}_hit_tokens": self._hit_tokens + lost}

    def check(self) -> None:
        faults = []
        for pool in dict.fromkeys(self.memory.pools):
            uses = Counter(block for run in self._runs.values() for g, table in enumerate(run.tables)
                           if self.memory.pools[g] is pool for block in table if block)  # fmt: skip
            wrong = [block for block, ref in enumerate(pool.ref) if ref != uses[block]]
            idle = sum(node != ROOT and not ref for node, ref in zip(pool.node, pool.ref, strict=True))
            if wrong or idle != pool.unreferenced or pool.used != len(uses):
                faults.append(f"blocks {wrong[:9]} are not used as counted; {idle} idle, {pool.unreferenced} counted; "
                              f"{len(uses)} in use, {pool.used} counted")  # fmt: skip
            if lost := [block for blocks in pool.index.values() for block in blocks if pool.node[block] == ROOT]:
                faults.append(f"blocks {lost[:9]} are found, and hold nothing")
        for number, run in self._runs.items():
            faults += self._faults(number, run)
        if faults:
            raise InvariantViolation("GroupedAllocator: " + "; ".join(faults))

    def _faults(self, number: RequestId, run: Running) -> list[str]:
        """What is wrong with a request's tables: an entry that is needed and gone, or of another content."""
        faults, wide = [], [group.block_tokens // self.block_size for group in self.groups]
        for g, (group, pool, table) in enumerate(zip(self.groups, self.memory.pools, run.tables, strict=True)):
            if any(table[: run.gone[g]]) or run.gone[g] > group.first(run.ends):
                faults.append(f"request {number}: {run.gone[g]} blocks gone of {group.name} at {run.ends} tokens")
            for at, block in enumerate(table):
                node = pool.node[block]
                if block and node != ROOT and ((at + 1) * wide[g] > len(run.path) or
                                               node != run.path[(at + 1) * wide[g] - 1]):  # fmt: skip
                    faults.append(f"request {number}: block {block} of {group.name} is published with other content")
        return faults


def _named(hit: FoundHit) -> list[list[int]]:
    """By group, the blocks of a hit without the null blocks before them."""
    return [[block for block in table if block] for table in hit.groups]
