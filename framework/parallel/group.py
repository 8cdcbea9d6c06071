"""The collectives of one set of ranks."""

# Shapes: R rows  V vocabulary

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from framework.errors import RankError

dist: Any = torch.distributed  # its types leave out what is made in C++

Words = npt.NDArray[np.int64]

_FIRST = 2048
"""Words (8 bytes) in the first broadcast of a message: a decode step of 64 rows fits, and takes no second."""

_FOREVER = timedelta(days=365)


class Group:
    """NCCL for tensors on CUDA devices, gloo on this machine's loopback for everything else.

    The process groups are made directly, not as torch's default one: a process may belong to several, and to one of its
    own besides (vLLM's stateless groups do likewise). Every rank must make the same calls in the same order.

    Args:
        path: of a file that all ranks, and nobody else, can write: where they find each other.
        timeout_s: seconds after which a call that some rank does not join fails.
        explain: turns what a failed call raised into the error to raise.

    Raises:
        RankError: not all ranks came within the timeout.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        path: str,
        device: str,
        timeout_s: float,
        explain: Callable[[Exception], Exception] | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self._explain = explain or _consequence
        timeout = timedelta(seconds=min(timeout_s, _FOREVER.total_seconds()))
        with self._explained():
            store = dist.FileStore(path, size)
            store.set_timeout(timeout)
            options = dist.ProcessGroupGloo._Options()
            options._timeout, options._threads = timeout, 1
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            self._control = dist.ProcessGroupGloo(dist.PrefixStore("control", store), rank, size, options)
            self._data = self._control if device == "cpu" else _nccl(store, rank, size, timeout)

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's `x`, in place and returned: the same bits on every rank."""
        with self._explained():
            self._data.allreduce([x]).wait()
        return x

    def gather(self, x: Tensor, widths: list[int]) -> Tensor:
        """x (R, widths[rank]) of every rank side by side on rank 0; its own on the others."""
        sent = F.pad(x, (0, max(widths) - x.shape[1])).contiguous()
        options = dist.GatherOptions()
        options.rootRank = 0
        parts = [torch.empty_like(sent) for _ in widths] if self.rank == 0 else []
        with self._explained():
            self._data.gather([parts] if parts else [], [sent], options).wait()
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1) if parts else x

    def send(self, words: Words) -> None:
        """Rank 0 tells every other rank these words, (n,) int64."""
        first = np.zeros(_FIRST, dtype=np.int64)
        first[0] = len(words)
        first[1 : 1 + len(words)] = words[: _FIRST - 1]
        self._broadcast(torch.from_numpy(first))
        if len(words) >= _FIRST:
            self._broadcast(torch.from_numpy(np.ascontiguousarray(words[_FIRST - 1 :])))

    def receive(self) -> Words:
        """The next message of rank 0, for which the others wait as long as it takes."""
        first = np.empty(_FIRST, dtype=np.int64)
        self._broadcast(torch.from_numpy(first), _FOREVER)
        count = int(first[0])
        if count < _FIRST:
            return first[1 : 1 + count]
        rest = np.empty(count - _FIRST + 1, dtype=np.int64)
        self._broadcast(torch.from_numpy(rest))
        return np.concatenate((first[1:], rest))

    def abort(self) -> None:
        """Make the collectives that run on a device fail: nothing else wakes one that waits for a dead rank."""
        if self._data is not self._control:
            self._data.abort()

    def _broadcast(self, tensor: Tensor, timeout: timedelta | None = None) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        if timeout is not None:
            options.timeout = timeout
        with self._explained():
            self._control.broadcast([tensor], options).wait()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise self._explain(error) from error


def _nccl(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(dist.PrefixStore("data", store), rank, size, options)


def _consequence(error: Exception) -> Exception:
    return RankError(f"a collective failed: {' '.join(str(error).split())}")
