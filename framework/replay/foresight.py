"""Next uses of blocks in a full replay, for policies that need the future."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

import numpy as np
import numpy.typing as npt

from framework.engine.engine import Engine
from framework.engine.request import Sequence
from framework.errors import ConfigError
from framework.interfaces.allocator import Allocator
from framework.interfaces.workload import WorkloadRequest
from framework.replay.paths import RequestPaths, build_paths
from framework.workload.traces.own_format import name_blocks

_NOTHING = np.empty(0, dtype=np.int64)


class Foresight:
    """The next use of each block of a request that is about to give its blocks back, for `Allocator.free`.

    Next uses count requests in order of arrival, from 1. A request preempted wants its own blocks again: they carry its
    own number, nearer than any to come. A block's next use is the next request after all that have released it, so that
    requests which end out of order leave no use in the past. Blocks of an output are requested by later prompts where
    the trace recorded its tokens, and never again where it did not.

    Args:
        requests: the whole trace as the replay will submit it.
        max_len: requests longer than this are rejected, so they use nothing.
    """

    def __init__(self, allocator: Allocator, requests: Iterable[WorkloadRequest], *, max_len: int) -> None:
        if not allocator.takes_future:
            raise ConfigError(
                f"{type(allocator).__name__} does not take the future (Allocator.takes_future), which this eviction "
                "policy needs; choose another allocator or policy"
            )
        self._size = allocator.block_size
        prompts: list[int] = []
        self._paths: RequestPaths = build_paths(_admissible(requests, max_len, prompts))
        self._following = _following(self._paths, np.array(prompts, dtype=np.int64))
        self._known = np.zeros(self._paths.num_nodes)

    def attach(self, engine: Engine) -> None:
        """From here on the engine's allocator knows."""
        engine.state.foresee = self

    def __call__(self, seq: Sequence, returning: bool) -> list[float]:
        """See EngineState.foresee."""
        number = seq.request.number
        if returning:
            return [float(number + 1)] * (len(seq.tokens) // self._size)
        uses: list[float] = self.next_uses(number).tolist()
        return uses

    def next_uses(self, number: int) -> npt.NDArray[np.float64]:
        """(m,) of the allocator's blocks that request `number`'s named tokens fill: prompt and recorded output.

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


def _admissible(requests: Iterable[WorkloadRequest], max_len: int, prompts: list[int]) -> Iterator[WorkloadRequest]:
    """The requests that will be served, each prompt with its recorded output; `prompts` takes the prompts' blocks."""
    for request in requests:
        if request.block_ids is None:
            raise ConfigError("this trace has lengths only: no block is ever requested again, and no future helps")
        if request.input_tokens + max(1, request.output_tokens or 0) > max_len:
            prompts.append(0)
            yield replace(request, block_ids=_NOTHING)
        elif request.tokens is not None and request.output is not None and request.sampling.beam_width == 1:
            tokens = np.concatenate([request.tokens, request.output])
            prompts.append(len(request.tokens) // request.block_tokens)
            yield replace(request, prompt=tokens, block_ids=name_blocks(tokens, request.block_tokens))
        else:
            prompts.append(len(request.block_ids))
            yield request


def _following(paths: RequestPaths, prompts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """(E,) the next request, from 1, that has each reference's node among the first `prompts` (R,) of its blocks."""
    counts, never = np.diff(paths.starts), paths.num_requests
    places = np.arange(paths.num_references) - np.repeat(paths.starts[:-1], counts)
    order = np.argsort(paths.nodes, kind="stable")
    # One ascending key for all nodes, so that one running minimum from the end stays within each node's references.
    first_key = paths.nodes[order].astype(np.int64) * (never + 1)
    asks = first_key + np.where(places < np.repeat(prompts, counts), paths.requests, never)[order]
    later = np.minimum.accumulate(np.append(asks[1:], np.iinfo(np.int64).max)[::-1])[::-1]
    found = np.minimum(later - first_key, never)
    result = np.empty(paths.num_references)
    result[order] = np.where(found < never, found + 1, inf)
    return result
