"""The thread that copies between a pool and stores, one copy a call, over a pool of a few bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from framework.types import BlockHash
from framework_tiers.guarded import GuardedStore
from framework_tiers.store import BlockFormat, Store
from framework_tiers.stores.host import Host
from framework_tiers.transfers import Copy
from framework_tiers.worker import WorkerTransfers


class Bytes:
    block_bytes = 4

    def __init__(self) -> None:
        self.blocks = np.arange(400, dtype=np.uint8).reshape(100, 4)

    def read(self, block: int, into: Any = None) -> Callable[[], Any]:
        data = np.empty(4, dtype=np.uint8) if into is None else into
        data[:] = self.blocks[block]
        return lambda: data

    def allocate(self, num_bytes: int) -> memoryview:
        return np.empty(num_bytes, dtype=np.uint8).data

    def write(self, block: int, data: Any) -> None:
        self.blocks[block] = data


class Stepped(WorkerTransfers):
    """One job a call of `step`, in this thread."""

    def _start(self) -> None:
        pass

    def step(self) -> list[str]:
        self._carry_out()
        return [f"{copy.key.decode()} to {copy.target}" for copy in self.finished()]


class InTurn(Stepped):
    """Carries out a few jobs each time that it is asked what has ended, in the thread that asks."""

    def num_jobs(self) -> int:
        return 1

    def finished(self) -> Sequence[Copy]:
        for _ in range(self.num_jobs()):
            self._carry_out()
        return super().finished()

    def wait(self, until: float | None) -> None:
        self._carry_out()

    def carry_out_all(self) -> None:
        while self._loads or self._jobs:
            self._carry_out()

    def close(self, *, drain: bool) -> None:
        if drain:
            self.carry_out_all()


def stepped(kind: type[WorkerTransfers] = Stepped, stores: Sequence[Store] | None = None) -> tuple[Any, Bytes]:
    pool = Bytes()
    guarded = [GuardedStore(store) for store in (stores or [Host(), Host()])]
    for store in guarded:
        store.open(BlockFormat("m", "uint8", "NHD", 1, "sha256", 4), 50)
    return kind(pool, guarded, lambda: 0.0), pool


def store(name: str, block: int, tier: int = 1) -> Copy:
    return Copy(BlockHash(name.encode()), 0, tier, block)


def load(name: str, block: int, tier: int = 1) -> Copy:
    return Copy(BlockHash(name.encode()), tier, 0, block)
