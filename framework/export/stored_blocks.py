"""Blocks of another engine in one of our stores, in the order of an eviction policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from framework.errors import FrameworkError, Unsupported
from framework.guard.store import GuardedStore
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.store import BlockFormat, Store
from framework.tiers.tier import Tier
from framework.types import UNKNOWN_REQUEST, BlockHash, RequestFacts

_LOG = logging.getLogger(__name__)


class HostBlock(NamedTuple):
    """A block as the host names it: key, group of layers, place in the prompt, and tokens up to its end."""

    key: BlockHash
    group: int
    depth: int
    num_tokens: int


class Finished(NamedTuple):
    """A job that ended. `failed`: keys that were not stored, or not loaded. `num_moved`: blocks copied."""

    job: int
    keys: tuple[BlockHash, ...]
    failed: frozenset[BlockHash]
    num_moved: int


@dataclass(slots=True)
class _Fact:
    block: HostBlock
    parent: BlockHash | None
    last_use: int


class _Facts:
    """What is known of held blocks; see `framework.tiers.tier.Contents`."""

    def __init__(self) -> None:
        self.of: dict[BlockHash, _Fact] = {}

    def name(self, key: BlockHash) -> BlockHash:
        return key

    def depth(self, key: BlockHash) -> int:
        return self.of[key].block.depth

    def num_tokens(self, key: BlockHash) -> int:
        return self.of[key].block.num_tokens

    def parent(self, key: BlockHash) -> BlockHash | None:
        return self.of[key].parent

    def partial(self, key: BlockHash) -> bool:
        return False

    def tenant(self, key: BlockHash) -> int:
        return 0

    def last_use(self, key: BlockHash) -> int:
        return self.of[key].last_use

    def uses(self, key: BlockHash) -> int:
        return 1

    def next_use(self, key: BlockHash) -> float:
        return float("inf")

    def last_request(self, key: BlockHash) -> RequestFacts:
        return UNKNOWN_REQUEST


@dataclass(slots=True)
class _Request:
    pinned: list[BlockHash] = field(default_factory=list)  # once each, until the request ends
    chain: dict[tuple[int, int], BlockHash] = field(default_factory=dict)  # by group and depth


@dataclass(slots=True)
class _Job:
    keys: tuple[BlockHash, ...]
    pinned: list[BlockHash]
    writes: bool
    failed: set[BlockHash]  # before the copies began
    copies: Future[set[BlockHash]]


class StoredBlocks:
    """One tier for another engine: up to `num_blocks` blocks in a store, which a thread of its own reads and writes.

    What a running request uses or stores, and what is being copied, is never evicted. A block whose bytes could not be
    written or read is held no longer. The policy's `now` is the number of requests begun. All methods are for one
    thread at a time; copies are carried out in the order of the calls.

    Args:
        store: not open. `policy`: fresh. What the store holds already is adopted, the most recently used first.

    Raises:
        Unsupported: a store that keeps keys only.
        StoreFailed, PluginError: the store cannot be opened or listed.
    """

    def __init__(self, store: Store, policy: EvictionPolicy, num_blocks: int, format: BlockFormat) -> None:
        self._store = GuardedStore(store)
        if not self._store.holds_kv:
            raise Unsupported(
                f"store {self._store.name} keeps keys only, and another engine needs the bytes; take disk"
            )
        self._facts = _Facts()
        self.tier = Tier(1, num_blocks, policy, self._facts)
        self.medium, self._tokens = self._store.medium, format.block_size
        self._requests: dict[str, _Request] = {}
        self._jobs: dict[int, _Job] = {}
        self._writing: set[BlockHash] = set()
        self._lost: set[BlockHash] = set()  # still pinned
        self._promised: list[BlockHash] = []
        self._count, self._logged = 0, False
        self._store.open(format, num_blocks)
        try:
            for key in list(self._store.keys())[-num_blocks:]:
                self._facts.of[key] = _Fact(HostBlock(key, 0, 0, self._tokens), None, 0)
                self.tier.adopt(key, 0)
        except BaseException:
            self._store.close()
            raise
        self._thread = ThreadPoolExecutor(1, "stored-blocks")

    def begin(self, request: str) -> None:
        """A new request."""
        self._count += 1
        self._requests[request] = _Request()

    def end(self, request: str) -> None:
        """It stores and loads nothing more."""
        if gone := self._requests.pop(request, None):
            self._unpin(gone.pinned)

    def find(self, request: str, block: HostBlock) -> Literal["held", "writing", "absent"]:
        """Where a block is; one that is held stays so until `end_step`."""
        key = block.key
        self._see(self._requests.get(request), [block])
        if key not in self.tier or key in self._lost:
            return "absent"
        if key in self._writing:
            return "writing"
        self.tier.pin([key], self._count)
        self._promised.append(key)
        return "held"

    def end_step(self) -> None:
        """What `find` found is loaded by now, or will not be."""
        promised, self._promised = self._promised, []
        self._unpin(promised)

    def store(self, job: int, request: str, blocks: Sequence[HostBlock], rows: Sequence[memoryview]) -> None:
        """Begin to store what is not held of these blocks, evicting for it; the others were used.

        Args:
            rows: (block_bytes,) uint8 each, unchanged until the job is finished.
        """
        user = self._requests.get(request) or _Request()
        self._see(user, blocks)
        self._use(user, [block for block in blocks if block.key in self.tier])
        writes, failed = [], set[BlockHash]()
        for block, row in zip(blocks, rows, strict=True):
            key = block.key
            if key in self.tier and key not in self._lost:
                continue
            victims = self._hold(user, block)
            if victims is None:
                failed.add(key)
                continue
            writes.append((key, row, victims))
        keys = [key for key, _, _ in writes]
        self._writing.update(keys)
        self._jobs[job] = _Job(
            tuple(block.key for block in blocks), keys, True, failed, self._thread.submit(self._write, writes)
        )
        self._leave(request, user)

    def load(self, job: int, request: str, blocks: Sequence[HostBlock], rows: Sequence[memoryview]) -> None:
        """Begin to fill `rows` with the bytes of these blocks; undefined for those that fail."""
        user = self._requests.get(request) or _Request()
        here = [key in self.tier and key not in self._lost for key, *_ in blocks]
        self._use(user, [block for block, held in zip(blocks, here, strict=True) if held])
        reads = [(block.key, row) for block, row, held in zip(blocks, rows, here, strict=True) if held]
        keys = [key for key, _ in reads]
        self.tier.pin(keys[::-1], self._count)
        self.tier.counts.read += len(reads)
        failed = {block.key for block, held in zip(blocks, here, strict=True) if not held}
        self._jobs[job] = _Job(
            tuple(block.key for block in blocks), keys, False, failed, self._thread.submit(self._read, reads)
        )
        self._leave(request, user)

    def finished(self) -> list[Finished]:
        """The jobs that ended since the last call."""
        ended = [(number, job) for number, job in self._jobs.items() if job.copies.done()]
        result = []
        for number, job in ended:
            del self._jobs[number]
            failed = job.copies.result()
            if job.writes:
                self._writing.difference_update(job.pinned)
            self._lost |= failed
            self._unpin(job.pinned)
            result.append(Finished(number, job.keys, frozenset(failed | job.failed), len(job.pinned) - len(failed)))
        return result

    def drain(self) -> None:
        """Wait until every job has ended."""
        wait([job.copies for job in self._jobs.values()])

    def close(self) -> None:
        """Jobs that have not begun are dropped; what outlives the process stays."""
        self._thread.shutdown(cancel_futures=True)
        self._jobs.clear()
        self._store.close()

    def _see(self, user: _Request | None, blocks: Iterable[HostBlock]) -> None:
        if user is not None:
            user.chain.update(((block.group, block.depth), block.key) for block in blocks)

    def _use(self, user: _Request, blocks: Sequence[HostBlock]) -> None:
        """A request uses these held blocks: once each until it ends."""
        known = set(user.pinned)
        new = sorted((block for block in blocks if block.key not in known), key=lambda block: -block.depth)
        for block in new:
            self._facts.of[block.key].last_use = self._count
        if new:
            keys = [block.key for block in new]
            self.tier.use(keys, self._count)
            user.pinned += keys

    def _hold(self, user: _Request, block: HostBlock) -> list[BlockHash] | None:
        """Hold a block, pinned for its copy and its request; whom that evicted, None where there is no room."""
        key, victims = block.key, list[BlockHash]()
        if key in self._lost:  # in use, so held
            self._lost.discard(key)
            self.tier.pin([key], self._count)
            return victims
        while len(self.tier) >= self.tier.num_blocks:
            victim = self.tier.victim(self._count)
            if victim is None:
                self.tier.counts.refused += 1
                return None
            del self._facts.of[victim]
            victims.append(victim)
        self._facts.of[key] = _Fact(block, user.chain.get((block.group, block.depth - 1)), self._count)
        self.tier.insert(key, self._count, pinned=True)
        self.tier.pin([key], self._count)
        user.pinned.append(key)
        return victims

    def _leave(self, request: str, user: _Request) -> None:
        """Where the request had ended before, nothing would unpin its blocks later."""
        if request not in self._requests:
            self._unpin(user.pinned)

    def _unpin(self, keys: Sequence[BlockHash]) -> None:
        if keys:
            self.tier.unpin(keys, self._count)
        for key in keys:
            if key in self._lost and not self.tier.is_pinned(key):
                self._lost.discard(key)
                self.tier.lose(key, self._count)
                del self._facts.of[key]
                self._thread.submit(self._attempt, partial(self._store.remove, key))

    # In the thread

    def _write(self, writes: Sequence[tuple[BlockHash, memoryview, Sequence[BlockHash]]]) -> set[BlockHash]:
        failed = set[BlockHash]()
        for key, row, victims in writes:
            for victim in victims:
                self._attempt(partial(self._store.remove, victim))
            if not self._attempt(partial(self._store.write, key, row.toreadonly())):
                failed.add(key)
        return failed

    def _read(self, reads: Sequence[tuple[BlockHash, memoryview]]) -> set[BlockHash]:
        return {key for key, row in reads if not self._attempt(partial(self._store.read, key, row))}

    def _attempt(self, call: Callable[[], Any]) -> bool:
        """Whether it succeeded. The first failure is logged: a block less, not the run."""
        try:
            if call() is not False:
                return True
            failure = "a block was not there, or damaged"
        except FrameworkError as error:
            failure = str(error)
        if not self._logged:
            self._logged = True
            _LOG.warning(
                "store %s: %s; such blocks are computed again, and later failures are not logged",
                self._store.name,
                failure,
            )
        return False
