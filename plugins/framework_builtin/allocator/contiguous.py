"""One contiguous run of blocks for each request, reserved when it is admitted."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from framework.errors import InvalidArgument, InvariantViolation, OutOfBlocks
from framework.interfaces.allocator import Allocator, AllocatorStats, Hit
from framework.paged.table import Tables, check_version, count_of
from framework.types import BlockCopy, BlockId, Namespace, RequestId, RequestInfo, TableChange, TokenArray


@dataclass(slots=True)
class _Run:
    """A request's reservation: blocks `first` to `first + size - 1`."""

    first: int
    size: int
    committed: int = 0


class ContiguousAllocator(Allocator):
    """Reserves one run of adjacent blocks for a request's whole life: the way before paging. Shares nothing.

    First fit over the free runs in address order: O(free runs) an admission, and there is at most one more free run
    than there are requests. A fork copies into a reservation of its own. Nothing is published, nothing evicted.
    `table` is the whole reserved run; its leading ceil(length / block_size) entries hold tokens.

    Args:
        num_blocks: usable blocks; ids 1 to num_blocks.
        block_size: tokens.
        max_model_len: tokens of the longest request that the model serves; a pool smaller than that lowers it.
        reserve: what an admission of p prompt tokens that may grow to t reserves. "max": max_model_len. "pow2":
            p + 2**ceil(log2(t - p)), at most max_model_len. "oracle": t, as if the output's length were known.

    Raises:
        InvalidArgument: a size below 1, an unknown `reserve`.

    Source: the Orca (max), (pow2) and (oracle) baselines of Kwon et al. 2023, arXiv:2309.06180 §6.1.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        reserve: Literal["max", "pow2", "oracle"] = "max",
    ) -> None:
        self.num_blocks = count_of("num_blocks", num_blocks, 1)
        self.block_size = count_of("block_size", block_size, 1)
        if reserve not in ("max", "pow2", "oracle"):
            raise InvalidArgument(f"reserve must be max, pow2 or oracle, found {reserve!r}")
        self.reserve = reserve
        self._limit = min(count_of("max_model_len", max_model_len, 1), self.num_blocks * self.block_size)
        self.max_request_tokens = self._limit
        self._starts = [1]  # of the free runs, ascending
        self._sizes = [num_blocks]
        self._runs: Tables[_Run] = Tables()
        self._free = num_blocks
        self._version = self._prompt_tokens = self._copied_blocks = 0

    def reserved_tokens(self, num_tokens: int, max_total_tokens: int) -> int:
        """Tokens that an admission of `num_tokens`, growing to `max_total_tokens`, reserves."""
        if self.reserve == "max":
            return self._limit
        left = max(0, max_total_tokens - num_tokens)
        if self.reserve == "pow2" and left:
            left = 1 << (left - 1).bit_length()
        return max(num_tokens, min(self._limit, num_tokens + left))

    def lookup(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None = None) -> Hit:
        return Hit(version=self._version)

    def _find(self, num_tokens: int, max_total_tokens: int) -> tuple[int, int]:
        """The free run to take from, by its place in the list (-1: none), and the blocks to take."""
        size = -(-self.reserved_tokens(num_tokens, max_total_tokens) // self.block_size)
        if num_tokens > self._limit:
            return -1, size
        return next((index for index, room in enumerate(self._sizes) if room >= size), -1), size

    def fits(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> bool:
        self._check_hit(request, hit)
        if request.id in self._runs or not len(tokens):
            return False
        return self._find(len(tokens), request.max_total_tokens)[0] >= 0

    def _check_hit(self, request: RequestInfo, hit: Hit) -> None:
        check_version(request, hit, self._version)
        if hit.num_tokens or hit.blocks:
            raise InvalidArgument(f"a hit of {hit.num_tokens} tokens is not of this allocator, which shares nothing")

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        self._runs.check_new(request)
        self._check_hit(request, hit)
        if not len(tokens):
            raise InvalidArgument(f"request {request.id} has an empty prompt; it needs at least one token")
        self._runs[request.id] = self._take(len(tokens), request)
        self._prompt_tokens += len(tokens)
        self._version += 1

    def _take(self, num_tokens: int, request: RequestInfo) -> _Run:
        index, size = self._find(num_tokens, request.max_total_tokens)
        if index < 0:
            if num_tokens > self._limit:
                raise OutOfBlocks(f"{num_tokens} tokens pass the longest reservation, {self._limit} tokens")
            raise OutOfBlocks(
                f"need a run of {size} blocks, have {self._free} free of {self.num_blocks} and the longest run is "
                f"{max(self._sizes, default=0)}; preempt a request or raise cache.num_blocks"
            )
        first = self._starts[index]
        if self._sizes[index] == size:
            del self._starts[index], self._sizes[index]
        else:
            self._starts[index] += size
            self._sizes[index] -= size
        self._free -= size
        return _Run(first, size)

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        run = self._runs[request]
        if count_of("num_tokens", num_tokens, 0) > run.size * self.block_size:
            raise OutOfBlocks(
                f"request {request} needs {num_tokens} tokens and reserved {run.size * self.block_size}; "
                "its max_total_tokens was too low"
            )
        return TableChange(run.size)

    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        run = self._runs[request]
        if not run.committed <= len(tokens) <= run.size * self.block_size:
            raise InvalidArgument(
                f"commit of {len(tokens)} tokens for request {request}: {run.committed} are committed and there is "
                f"room for {run.size * self.block_size}"
            )
        run.committed = len(tokens)
        return TableChange(run.size)

    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        run = self._runs[parent]
        self._runs.check_new(child)
        if count_of("num_tokens", num_tokens, 0) > run.size * self.block_size:
            raise InvalidArgument(
                f"fork of {num_tokens} tokens from request {parent}, which reserved {run.size * self.block_size}"
            )
        child_run = self._runs[child.id] = self._take(num_tokens, child)
        child_run.committed = num_tokens
        num_copies = -(-num_tokens // self.block_size)
        self._copied_blocks += num_copies
        self._version += 1
        pairs = ((BlockId(run.first + index), BlockId(child_run.first + index)) for index in range(num_copies))
        return TableChange(0, tuple(BlockCopy(source, destination) for source, destination in pairs))

    def free(self, request: RequestId, next_use: object = ()) -> None:
        run = self._runs[request]
        del self._runs[request]
        self._version += 1
        self._free += run.size
        starts, sizes = self._starts, self._sizes
        index = bisect_left(starts, run.first)
        starts.insert(index, run.first)
        sizes.insert(index, run.size)
        if index + 1 < len(starts) and starts[index] + sizes[index] == starts[index + 1]:
            sizes[index] += sizes.pop(index + 1)
            del starts[index + 1]
        if index and starts[index - 1] + sizes[index - 1] == starts[index]:
            sizes[index - 1] += sizes.pop(index)
            del starts[index]

    def table(self, request: RequestId, group: int = 0) -> npt.NDArray[np.int32]:
        run = self._runs[request]
        return np.arange(run.first, run.first + run.size, dtype=np.int32)

    def reset(self, request: RequestId | None = None) -> None:
        self._version += 1

    def stats(self) -> AllocatorStats:
        """The counts now. O(free runs), for `external_blocks`."""
        return AllocatorStats(
            num_blocks=self.num_blocks,
            free_blocks=self._free,
            cached_blocks=0,
            used_blocks=self.num_blocks - self._free,
            external_blocks=self._free - max(self._sizes, default=0),
            num_requests=len(self._runs),
            prompt_tokens=self._prompt_tokens,
            copied_blocks=self._copied_blocks,
        )

    def check(self) -> None:
        faults = []
        free = list(zip(self._starts, self._sizes, strict=True))
        if any(size < 1 for _, size in free) or any(run.size < 1 for run in self._runs.values()):
            faults.append("I3: a run is empty")
        if any(start + size >= later for (start, size), (later, _) in pairwise(free)):
            faults.append(f"I3: free runs overlap, touch or are out of order: {free}")
        if self._free != sum(self._sizes):
            faults.append(f"I1: the free runs hold {sum(self._sizes)} blocks, the count says {self._free}")
        expected = 1
        for start, size in sorted([*free, *((run.first, run.size) for run in self._runs.values())]):
            if start != expected:
                faults.append(f"I1: runs overlap or leave a hole before block {start}; {expected} was expected")
            expected = start + size
        if expected != self.num_blocks + 1:
            faults.append(f"I11: the runs end at block {expected - 1}, the pool at {self.num_blocks}")
        for request, run in self._runs.items():
            if not 0 <= run.committed <= run.size * self.block_size:
                faults.append(f"I12: request {request} committed {run.committed} tokens in {run.size} blocks")
        if faults:
            raise InvariantViolation("ContiguousAllocator: " + "; ".join(faults))
