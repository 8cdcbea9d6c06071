"""The allocator over groups of KV, of whose first one requests may lose tokens."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.errors import InvalidArgument
from framework.groups.allocator import GroupedAllocator, Running
from framework.groups.pool import ROOT
from framework.types import RequestId, RequestInfo, TableChange, TokenArray


class DroppingGroups(GroupedAllocator):
    """Tokens leave the blocks of the first group alone: windows, chunks and states are of positions, and keep theirs.

    NOTE. All else counts tokens by position. So the first group's table of a request has a null block, which nobody
    else sees, for each whole block of tokens that it lost; of a part of a block more it is given its next block so
    many tokens too early.
    """

    drops_tokens = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._removed: dict[RequestId, int] = {}

    @property
    def each_has_its_own(self) -> bool:
        """Each group has a pool of its own, and blocks of as many tokens as the others."""
        memory = self.memory
        apart = len({*memory.pools}) == len(memory.pools) and not memory.equal_pages and not memory.splits_pages
        return apart and all(group.block_tokens == self.block_size for group in self.groups)

    def _nulls(self, request: RequestId) -> int:
        return self._removed.get(request, 0) // self.block_size

    def drop(
        self, request: RequestId, num_tokens: int, dropped: Sequence[int], rewritten: int | None = None
    ) -> TableChange:
        run, pool, size, gone = self._runs[request], self.memory.pools[0], self.block_size, {*dropped}
        old = run.tables[0][self._nulls(request) :]
        kept = [block for index, block in enumerate(old) if index not in gone]
        rewritten = len(kept) if rewritten is None else rewritten
        stored = run.committed - self._removed.get(request, 0)
        rising = [*dropped] == sorted(gone & {*range(len(old))})
        if not (rising and 0 < num_tokens <= min(stored, len(kept) * size) and 0 <= rewritten <= len(kept)):
            raise InvalidArgument(
                f"request {request} cannot drop blocks {[*dropped]} and keep {num_tokens} tokens, rewritten from block "
                f"{rewritten} on: it has {stored} in {len(old)} blocks of {size}"
            )
        shared = [index for index in range(rewritten, len(kept)) if pool.ref[kept[index]] > 1]
        counts = [len(shared), *[0] * (len(self.groups) - 1)]
        if not self.memory.fits(counts):
            raise self._out_of_blocks(counts)
        self._serve(run)
        for index, block in zip(shared, self.memory.take(0, len(shared)), strict=True):
            pool.release((kept[index],))
            kept[index] = block
        for block in kept[rewritten:][::-1]:
            if pool.node[block] != ROOT:
                pool.discard(block)
        pool.release([old[index] for index in dropped][::-1])
        self._removed[request] = run.committed - num_tokens
        run.tables[0] = array("i", [0] * self._nulls(request) + kept)
        run.published[0], run.closed, run.steady = 0, True, run.ends
        return TableChange(min([rewritten, *dropped[:1]]))

    def table(self, request: RequestId, group: int = 0) -> npt.NDArray[np.int32]:
        table = super().table(request, group)
        return table if group else table[self._nulls(request) :]

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        return self._seen(request, super().extend(request, num_tokens))

    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        return self._seen(request, super().commit(request, tokens))

    def _seen(self, request: RequestId, change: TableChange) -> TableChange:
        nulls = self._nulls(request)
        return replace(change, start=max(0, change.start - nulls)) if nulls else change

    def _written_by_others(self, run: Running, start: int) -> list[tuple[int, int]]:
        found, removed = super()._written_by_others(run, start), self._removed.get(run.info.id, 0)
        if not removed:
            return found
        number, table = self._nulls(run.info.id) + (start - removed) // self.block_size, run.tables[0]
        is_shared = number < len(table) and self.memory.pools[0].ref[table[number]] > 1
        return [(0, number)] * is_shared + [one for one in found if one[0]]

    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        table = self._runs[parent].tables[0]
        lacking = max(0, -(-num_tokens // self.block_size) - len(table)) if parent in self._removed else 0
        table.extend([0] * lacking)  # tokens that have no room are those that were dropped
        try:
            change = super().fork(parent, child, num_tokens)
        finally:
            del table[len(table) - lacking :]
        made = self._runs[child.id].tables[0]
        del made[len(made) - lacking :]
        if parent in self._removed:
            self._removed[child.id] = self._removed[parent]
        return change

    def free(self, request: RequestId, next_use: Sequence[float] = ()) -> None:
        super().free(request, next_use)
        self._removed.pop(request, None)

    def _faults(self, number: RequestId, run: Running) -> list[str]:
        if number in self._removed:  # what is in its table stands elsewhere than its content says
            run = copy.copy(run)
            run.tables = [array("i"), *run.tables[1:]]
        return super()._faults(number, run)
