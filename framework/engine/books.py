"""The allocator as the engine sees it: what it raises is contained, and what it answers is checked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from framework.errors import FrameworkError, PluginError
from framework.interfaces.allocator import Allocator, AllocatorStats, Hit
from framework.types import Namespace, RequestId, RequestInfo, TableChange, TokenArray


class Books:
    """Passes calls on. An error that is none of ours becomes a PluginError with the allocator's name and the call's.

    A table is refused unless it holds at least the blocks asked for, each 1 to `num_blocks`: executors index memory
    with it.
    """

    def __init__(self, allocator: Allocator) -> None:
        self.allocator, self.block_size = allocator, allocator.block_size

    def lookup(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None) -> Hit:
        """See Allocator."""
        try:
            return self.allocator.lookup(tokens, namespace, previous)
        except Exception as error:
            raise self._named("lookup", error) from error

    def fits(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> bool:
        """See Allocator."""
        try:
            return self.allocator.fits(request, tokens, hit)
        except Exception as error:
            raise self._named("fits", error) from error

    def ever_fits(self, request: RequestInfo) -> bool:
        """See Allocator."""
        try:
            return self.allocator.ever_fits(request)
        except Exception as error:
            raise self._named("ever_fits", error) from error

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> None:
        """See Allocator."""
        try:
            self.allocator.allocate(request, tokens, hit)
        except Exception as error:
            raise self._named("allocate", error) from error

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        """See Allocator."""
        try:
            return self.allocator.extend(request, num_tokens)
        except Exception as error:
            raise self._named("extend", error) from error

    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        """See Allocator."""
        try:
            return self.allocator.commit(request, tokens)
        except Exception as error:
            raise self._named("commit", error) from error

    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        """See Allocator."""
        try:
            return self.allocator.fork(parent, child, num_tokens)
        except Exception as error:
            raise self._named("fork", error) from error

    def free(self, request: RequestId) -> None:
        """See Allocator."""
        try:
            self.allocator.free(request)
        except Exception as error:
            raise self._named("free", error) from error

    def table(self, request: RequestId, num_tokens: int = 0, start: int = 0) -> npt.NDArray[np.int32]:
        """The request's blocks, enough for `num_tokens`; those from `start` on are checked."""
        try:
            table = self.allocator.table(request)
        except Exception as error:
            raise self._named("table", error) from error
        if len(table) * self.block_size < num_tokens:
            raise PluginError(
                f"{type(self.allocator).__name__} left sequence {request} with {len(table)} blocks of "
                f"{self.block_size}, asked for room for {num_tokens} tokens"
            )
        new = table[start:] if start else table
        low, high = _bounds(new)
        if low < 1 or high > self.allocator.num_blocks:
            raise PluginError(
                f"{type(self.allocator).__name__} gave sequence {request} blocks {new.tolist()}; blocks are 1 to "
                f"{self.allocator.num_blocks}"
            )
        return table

    def _named(self, method: str, error: Exception) -> FrameworkError:
        return named(self.allocator, method, error)


def stats_of(allocator: Allocator) -> AllocatorStats:
    """`allocator.stats()`.

    Raises:
        PluginError: it failed.
    """
    try:
        return allocator.stats()
    except Exception as error:
        raise named(allocator, "stats", error) from error


def named(plugin: object, method: str, error: Exception) -> FrameworkError:
    """The error of a plugin's method as one of ours: a PluginError with class and method, unless it is ours already."""
    if isinstance(error, FrameworkError):
        return error
    return PluginError(f"{type(plugin).__name__}.{method} raised {type(error).__name__}: {error}")


def _bounds(ids: npt.NDArray[np.int32]) -> tuple[int, int]:
    """Least and greatest; of no blocks (1, 1). A decoding row gets one block: min() and max() would cost more there."""
    if len(ids) == 1:
        return int(ids[0]), int(ids[0])
    return (int(ids.min()), int(ids.max())) if len(ids) else (1, 1)
