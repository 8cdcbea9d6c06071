"""Copies between the pool and stores by a thread of their own."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from framework.errors import StoreFailed
from framework.interfaces.below import THREAD
from framework.types import BlockHash
from framework_tiers.guarded import GuardedStore
from framework_tiers.transfers import Copy, Transfers

Bytes = npt.NDArray[np.uint8]

_MOST_STAGED = 256 * 2**20  # bytes of blocks read from the pool and not yet stored
_MOST_LOADS = 8  # in a row, while something else waits
_PATIENCE_S = 2.0  # for a store that does not return, where nothing is to be carried out any more
_LIST_EVERY_S = 5.0  # while there is nothing to copy: what other processes stored in a shared store
_SMOOTHING = 0.1  # weight of the newest read in the mean that predictions use


class PoolBytes(Protocol):
    """The bytes of the pool's blocks, K and V of all layers."""

    block_bytes: int

    def read(self, block: int, into: Bytes | None = None) -> Callable[[], Bytes]:
        """Begin to copy a block out, ahead of anything the pool's device is asked for later.

        Args:
            into: (block_bytes,) memory to copy it to; None: memory of its own.

        Returns:
            waits for the end of the copy and returns the block's (block_bytes,) bytes.
        """

    def allocate(self, num_bytes: int) -> memoryview:
        """Memory from which `write` and to which `read` are fast."""

    def write(self, block: int, data: Bytes) -> None:
        """Copy `data` into a block, after all that the pool's device was asked for before; returns when it is there."""


@dataclass(slots=True, eq=False)
class _Job:
    """A copy, or the removal of a key from a tier (`copy` None).

    Attributes:
        staged: waits for the pool's bytes. reserved: the store has a place for them. placed: they go there.
    """

    copy: Copy | None
    key: BlockHash
    tier: int
    staged: Callable[[], Bytes] | None = None
    reserved: bool = False
    placed: bool = False


class WorkerTransfers(Transfers):
    """Carries out copies over real stores in one thread; the thread that steps the engine only asks.

    NOTE. One thread for all tiers: a store is called from one thread at a time, and the order of the calls is the order
    of the copies. Loads go first, so a slow write delays one by a block at most; after a few in a row the oldest store
    has its turn, or it would starve.

    A store that raises StoreFailed is a block less. What else is raised in the thread ends it, and is raised again in
    the thread that steps the engine.

    Args:
        stores: opened, of the tiers from 1 on. A store that keeps keys only gets nothing, and finds nothing.
        now: the run's clock.
    """

    def __init__(self, pool: PoolBytes, stores: Sequence[GuardedStore], now: Callable[[], float]) -> None:
        self._pool, self._stores, self._now = pool, tuple(stores), now
        self._lock = threading.Condition()
        self._loads: deque[_Job] = deque()
        self._jobs: deque[_Job] = deque()
        self._of_key: Counter[tuple[int, BlockHash]] = Counter()  # jobs that wait and write or remove it
        self._unread: dict[Copy, _Job] = {}  # stores whose block the pool still holds
        self._ended: deque[Copy] = deque()
        self._most_staged = max(1, _MOST_STAGED // pool.block_bytes)
        self._num_staged = self.num_pending = self._loads_in_a_row = 0
        self._read_s: list[float | None] = [None for _ in stores]
        self._closing = False
        self._broken: BaseException | None = None  # what ended the thread
        self._seen = {number: set[BlockHash]() for number, store in enumerate(stores, start=1) if store.lists}
        self._found: list[tuple[int, list[BlockHash]]] = []
        self._buffer = np.frombuffer(pool.allocate(pool.block_bytes), dtype=np.uint8)
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        self._start()

    def _start(self) -> None:
        self._thread.start()

    # The engine's side

    def submit(self, copies: Sequence[Copy]) -> None:
        with self._lock:
            for copy in copies:
                self.num_pending += 1
                if not copy.target:
                    self._loads.append(_Job(copy, copy.key, copy.source))
                    continue
                job = _Job(copy, copy.key, copy.target)
                self._of_key[copy.target, copy.key] += 1
                self._jobs.append(job)
                if not copy.source:
                    self._unread[copy] = job
            self._lock.notify_all()

    def remove(self, key: BlockHash, tier: int) -> None:
        with self._lock:
            self._of_key[tier, key] += 1
            self._jobs.append(_Job(None, key, tier))
            self._lock.notify_all()

    def release(self, copy: Copy) -> None:
        """See Transfers. The block is read here and now, unless the thread has read it already."""
        with self._lock:
            while self._num_staged >= self._most_staged and copy in self._unread and self._thread.is_alive():
                self._lock.wait(0.1)
            job = self._unread.pop(copy, None)
            if job is not None:
                self._stage(job)

    def _stage(self, job: _Job, into: Bytes | None = None) -> None:
        assert job.copy is not None
        job.staged = self._pool.read(job.copy.block, into)
        self._num_staged += 1

    def finished(self) -> Sequence[Copy]:
        self._require_sound()
        if not self._ended:
            return ()
        with self._lock:
            ended = list(self._ended)
            self._ended.clear()
            self.num_pending -= len(ended)
        return ended

    def _require_sound(self) -> None:
        """Raise what ended the thread, once."""
        error, self._broken = self._broken, None
        if error is not None:
            raise error

    def wait(self, until: float | None) -> None:
        with self._lock:
            while not self._ended and self.num_pending and self._thread.is_alive():
                left = None if until is None else until - self._now()
                if left is not None and left <= 0:
                    return
                self._lock.wait(0.1 if left is None else min(left, 0.1))  # short: an interrupt is not to be delayed

    def load_times(self, tiers: Sequence[int]) -> tuple[float, ...] | None:
        """See Transfers: from the mean time of a read so far, and the loads that wait."""
        with self._lock:
            ahead = [job.tier for job in self._loads]
        each = [self._read_s[tier - 1] if tier else 0.0 for tier in (*ahead, *tiers)]
        times, total = list[float](), 0.0
        for seconds in each:
            if seconds is None:
                return None
            total += seconds
            times.append(total)
        return tuple(times[len(ahead) :])

    def close(self, *, drain: bool) -> None:
        """See Transfers. The stores are closed too."""
        with self._lock:
            closed, self._closing = self._closing, True
            if not drain:
                self._loads.clear()
                self._jobs.clear()
            self._lock.notify_all()
        if closed:
            return
        self._thread.join(None if drain else _PATIENCE_S)
        if self._thread.is_alive():
            return
        for number, store in enumerate(self._stores, start=1):
            try:
                store.close()
            except StoreFailed as error:  # what it took ends with the process
                self._failed(number, error)
        if drain:
            self._require_sound()

    # The thread's side

    def _failed(self, tier: int, error: StoreFailed) -> str:
        """Note what a store could not do; returns it as a copy's failure."""
        reason = f"tier {tier}: {type(self._stores[tier - 1].plugin).__name__}: {error}"
        self.failure = self.failure or reason
        return reason

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            with self._lock:
                self._broken = error
                self._lock.notify_all()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._loads and not self._jobs:
                    if self._closing:
                        return
                    if not self._lock.wait(_LIST_EVERY_S if self._seen else None):
                        break
            if self._loads or self._jobs:
                self._carry_out()
            else:
                self._list()

    def _list(self) -> None:
        """Note what lies in a store that was not there, or not noted, before."""
        for number, seen in list(self._seen.items()):
            try:
                new = [key for key in self._stores[number - 1].keys() if key not in seen]  # noqa: SIM118
            except StoreFailed as error:
                del self._seen[number]
                self._failed(number, error)
                continue
            seen.update(new)
            if new:
                with self._lock:
                    self._found.append((number, new))

    def discovered(self) -> Sequence[tuple[int, Sequence[BlockHash]]]:
        if not self._found:
            return ()
        with self._lock:
            keys, self._found = self._found, []
        return keys

    def _carry_out(self) -> None:
        with self._lock:
            if not self._loads and not self._jobs:  # dropped meanwhile
                return
            job = self._next()
        failed = self._do(job)
        with self._lock:
            if job.copy is not None:
                job.copy.failed = failed
                self._ended.append(job.copy)
            self._num_staged -= job.staged is not None
            self._lock.notify_all()

    def _next(self) -> _Job:
        """A load, unless what writes or removes its content waits, or others waited long; else the oldest job."""
        if self._loads and not (self._jobs and self._must_wait(self._loads[0])):
            self._loads_in_a_row += 1
            return self._loads.popleft()
        self._loads_in_a_row = 0
        job = self._jobs.popleft()
        key = job.tier, job.key
        self._of_key[key] -= 1
        if not self._of_key[key]:
            del self._of_key[key]
        return job

    def _begin(self, job: _Job) -> None:
        """Read the pool's block, straight into the store's memory where it has some, unless `release` was faster.

        The store is asked without the lock: whoever submits or releases does not wait for it.
        """
        store = self._stores[job.tier - 1]
        try:
            place = store.reserve(job.key)
        except StoreFailed as error:
            place = None
            self._failed(job.tier, error)
            self._undo(store, job)
        job.reserved = place is not None
        with self._lock:
            if job.copy is not None and self._unread.pop(job.copy, None) is not None:
                self._stage(job, None if place is None else np.frombuffer(place, dtype=np.uint8))
                job.placed = job.reserved

    def _undo(self, store: GuardedStore, job: _Job) -> None:
        """Remove what a `reserve` may have taken and nobody fills."""
        try:
            store.remove(job.key)
        except StoreFailed as error:
            self._failed(job.tier, error)

    def _must_wait(self, load: _Job) -> bool:
        return (load.tier, load.key) in self._of_key or self._loads_in_a_row >= _MOST_LOADS

    def _do(self, job: _Job) -> str:
        """Carry out a job; returns why it failed, empty if it did not."""
        try:
            if job.copy is not None:
                return self._store(job.copy, job) if job.copy.target else self._load(job.copy)
            self._stores[job.tier - 1].remove(job.key)
        except StoreFailed as error:  # a block less, not the run
            return self._failed(job.tier, error)
        return ""

    def _store(self, copy: Copy, job: _Job) -> str:
        target = self._stores[copy.target - 1]
        if copy in self._unread:
            self._begin(job)
        try:
            if job.staged is not None:
                data = job.staged()
            elif self._stores[copy.source - 1].read(copy.key, self._buffer.data):
                data = self._buffer
            else:
                return f"tier {copy.source}: a block was not there, or damaged, as it was to be stored below"
            if target.holds_kv and not job.placed:
                target.write(copy.key, data.data.toreadonly())
        except StoreFailed:
            if job.reserved:
                self._undo(target, job)
            raise
        return ""

    def _load(self, copy: Copy) -> str:
        start, source = time.perf_counter(), self._stores[copy.source - 1]
        place = source.view(copy.key)
        if place is None and not source.read(copy.key, self._buffer.data):
            return f"tier {copy.source}: a block was not there, or damaged"
        self._pool.write(copy.block, self._buffer if place is None else np.frombuffer(place, dtype=np.uint8))
        seconds, mean = time.perf_counter() - start, self._read_s[copy.source - 1]
        self._read_s[copy.source - 1] = seconds if mean is None else mean + _SMOOTHING * (seconds - mean)
        return ""
