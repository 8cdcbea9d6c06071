"""When is each block of a trace requested next? What policies that need the future are told during a full replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

import numpy as np
import numpy.typing as npt

from framework.engine.request import Sequence
from framework.engine.scheduler import Scheduler
from framework.errors import ConfigError
from framework.interfaces.allocator import Allocator
from framework.replay.paths import RequestPaths, build_paths
from framework.workload.traces import TraceRequest

_NOTHING = np.empty(0, dtype=np.int64)


class Foresight:
    """Tells an allocator the next use of each block of a request that is about to give its blocks back.

    Next uses count requests in order of arrival, from 1. A request preempted wants its own blocks again: they carry its
    own number, nearer than any to come. A block's next use is the next request after all that have released it, so that
    requests which end out of order leave no use in the past. Blocks of outputs are never requested again.

    Args:
        requests: the whole trace as the replay will submit it.
        max_len: requests longer than this are rejected, so they use nothing.
    """

    def __init__(self, allocator: Allocator, requests: Iterable[TraceRequest], *, max_len: int) -> None:
        if type(allocator).foresee is Allocator.foresee:
            raise ConfigError(
                f"{type(allocator).__name__} does not take the future (Allocator.foresee), which this eviction policy "
                "needs; choose another allocator or policy"
            )
        self._allocator, self._size = allocator, allocator.block_size
        self._paths: RequestPaths = build_paths(_admissible(requests, max_len))
        never = self._paths.num_requests
        following = self._paths.next_requests.astype(np.float64) + 1
        following[following > never] = inf
        self._following = following
        self._known = np.zeros(self._paths.num_nodes)

    def attach(self, scheduler: Scheduler) -> None:
        """From here on the scheduler's allocator knows."""
        scheduler.foresee = self

    def __call__(self, seq: Sequence, returning: bool) -> None:
        """See Scheduler.foresee."""
        number = seq.request.number
        if returning:
            self._allocator.foresee(seq.id, [float(number + 1)] * (len(seq.tokens) // self._size))
        else:
            self._allocator.foresee(seq.id, self.next_uses(number).tolist())

    def next_uses(self, number: int) -> npt.NDArray[np.float64]:
        """(m,) of the allocator's blocks that request `number`'s named prompt fills.

        A block is requested again by whoever requests the trace block that holds its last token.
        """
        start, end = self._paths.starts[number : number + 2].tolist()
        nodes, known = self._paths.nodes[start:end], self._known
        known[nodes] = np.maximum(known[nodes], self._following[start:end])
        block_tokens = self._paths.block_tokens
        named = min((end - start) * block_tokens, int(self._paths.input_tokens[number]))
        last = (np.arange(1, named // self._size + 1) * self._size - 1) // block_tokens
        uses: npt.NDArray[np.float64] = known[nodes[last]]
        return uses


def _admissible(requests: Iterable[TraceRequest], max_len: int) -> Iterator[TraceRequest]:
    for request in requests:
        if request.block_ids is None:
            raise ConfigError("this trace has lengths only: no block is ever requested again, and no future helps")
        if request.input_tokens + max(1, request.output_tokens) > max_len:
            yield replace(request, block_ids=_NOTHING)
        else:
            yield request
