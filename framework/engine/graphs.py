"""Decode steps recorded once at a few batch sizes, and replayed: no launch of theirs costs the host anything more."""

# Shapes: B rows of a step  P rows of the size it is padded to  M blocks a table row  V vocabulary

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from framework.config.sections import EngineOptions
from framework.engine.executors.base import Step
from framework.engine.rows import IntArray
from framework.engine.staging import Staging, layout
from framework.engine.tables import BlockTables
from framework.errors import ConfigError
from framework.interfaces.backend import AttentionBackend, Batch

Work = Callable[[], None]
Compute = Callable[[Tensor, Tensor, Batch], Tensor]
"""(tokens (P,), positions (P,), batch) -> logits (P, V)."""


class Recorder(Protocol):
    """Turns work on persistent tensors into something that does the same work again when called."""

    def warm_up(self, work: Work) -> None:
        """Do it once for real, so that nothing is compiled or grows while it is recorded."""

    def capture(self, work: Work) -> Work:
        """Record it. What it allocates may be shared with other recordings of this recorder."""


class CudaRecorder:
    """torch.cuda.CUDAGraph, all recordings in one memory pool: replay them one after another, on one stream."""

    def __init__(self, device: str | torch.device) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._pool: Any = None

    def warm_up(self, work: Work) -> None:
        """On the stream that captures, so that its libraries' handles and workspaces exist."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()
        current.wait_stream(self._stream)
        torch.cuda.synchronize(self._device)

    def capture(self, work: Work) -> Work:
        """Capture the largest first: smaller ones then fit into its memory."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        self._pool = graph.pool()
        replay: Work = graph.replay
        return replay


class DecodeGraphs:
    """Steps in which every row computes one token, replayed at the next larger of a few sizes.

    Padded rows read and write nothing: their context is 0, their slot -1, their table the null block's. One upload
    brings a step's inputs, its table changes included. Whatever `compute` does is recorded: the backend's `plan`,
    writes and attention, the decoder and its logits. The longest context is taken for each row's, so that launches
    depend on the size alone.

    Args:
        compute: gives logits; waits for no device and reads no lengths on the host.
        sizes: batch sizes to record, see `bucket_sizes`.

    Attributes:
        sizes: recorded, smallest first.
        num_replays, num_padded_rows: so far.
        capture_s: seconds that warming up and recording took.
    """

    def __init__(self, compute: Compute, tables: BlockTables, sizes: Iterable[int], recorder: Recorder) -> None:
        start = time.perf_counter()
        self._compute, self._tables = compute, tables
        self.sizes = tuple(sorted(set(sizes)))
        self.num_replays = self.num_padded_rows = 0
        largest = self.sizes[-1]
        self._room = 4 * largest + 1024
        self.staging = Staging(tables.device, layout(*self._inputs(largest, self._room))[1], fixed=True)
        self._spill = Staging(tables.device)
        self._table = torch.zeros(largest, tables.max_blocks, dtype=torch.int32, device=tables.device)
        self._logits: Tensor | None = None
        self._recorded = {size: self._record(size, recorder) for size in reversed(self.sizes)}
        self.capture_s = time.perf_counter() - start

    def size_for(self, step: Step) -> int | None:
        """The size this step is padded to; None if some row computes more than one token, or none is large enough."""
        count = len(step.rows)
        if step.num_decodes != count or count > self.sizes[-1]:
            return None
        return next(size for size in self.sizes if size >= count)

    def run(self, size: int, step: Step, tokens: IntArray, slots: IntArray, context: IntArray) -> Tensor:
        """The logits (B, V) of a step that `size_for` gave `size`: a view, overwritten by the next.

        Args:
            tokens: (B,) token ids. slots: (B,) where each one's K and V go. context: (B,) tokens in the pool, with it.
        """
        (batch, replay), count = self._recorded[size], len(step.rows)
        index, values = self._tables.take_changes()
        if len(index) > self._room:  # a flood, such as many long prompts admitted at once
            self._tables.apply(*self._spill.upload(index, values))
            index, values = index[:0], values[:0]
        inputs = self._inputs(size, len(index))
        inputs[0][:count], inputs[1][:count], inputs[2][:count] = tokens, step.computed, slots
        inputs[3][:count], inputs[4][:count] = step.rows, context
        inputs[5][:], inputs[6][:] = index, values
        batch.host_context_lens[:] = inputs[4]
        sent = self.staging.upload(*inputs)
        if len(index):
            self._tables.apply(sent[5], sent[6])
        replay()
        self.num_replays += 1
        self.num_padded_rows += size - count
        assert self._logits is not None
        return self._logits[:count]

    def _inputs(self, size: int, num_changes: int) -> list[npt.NDArray[Any]]:
        """A step's upload with nothing but padding in it: tokens, positions, slots, rows, contexts, table changes."""
        of_row = [np.full(size, value, dtype=np.int64) for value in (0, 0, -1, self._tables.max_rows)]
        changes = np.zeros(num_changes, dtype=np.int64), np.zeros(num_changes, dtype=np.int32)
        return [*of_row, np.zeros(size, dtype=np.int32), *changes]

    def _record(self, size: int, recorder: Recorder) -> tuple[Batch, Work]:
        """The batch of a size, whose inputs' places are fixed, and what reads them and writes logits (P, V).

        Warms up on padding alone, which touches no block.
        """
        arrays = self._inputs(size, 0)
        places, _ = layout(*arrays)
        tokens, positions, slots, rows, contexts = (
            self.staging.view(array, place) for array, place in zip(arrays[:5], places[:5], strict=True)
        )
        starts = np.arange(size + 1, dtype=np.int32)
        batch = Batch(
            block_tables=self._table[:size],
            context_lens=contexts,
            query_starts=torch.from_numpy(starts).to(self._tables.device),
            slot_mapping=slots,
            max_query_len=1,
            max_context_len=self._tables.max_blocks * self._tables.block_size,
            num_decodes=size,
            host_context_lens=np.zeros(size, dtype=np.int32),
            host_query_starts=starts,
        )
        self.staging.upload(*arrays)

        def work() -> None:
            self._tables.gather(rows, self._tables.max_blocks, out=batch.block_tables)
            logits = self._compute(tokens, positions, batch)
            if self._logits is None:  # one tensor for all sizes: the largest is warmed up first
                self._logits = torch.empty_like(logits)
            self._logits[:size].copy_(logits)

        recorder.warm_up(work)
        return batch, recorder.capture(work)


def bucket_sizes(max_rows: int) -> tuple[int, ...]:
    """Batch sizes to record: the powers of 2 up to `max_rows`, and `max_rows`."""
    return tuple(sorted({1 << power for power in range(max_rows.bit_length())} | {max_rows}))


def choose(options: EngineOptions, backend: AttentionBackend, device: str) -> tuple[tuple[int, ...], str]:
    """Sizes to capture, and why none are: exactly one of the two is empty.

    Raises:
        ConfigError: `engine.cuda_graphs` is true and it cannot be.
    """
    if options.cuda_graphs is False:
        return (), "engine.cuda_graphs=false"
    reasons, num_ranks = [], options.tensor_parallel_size
    if torch.device(device).type != "cuda":
        reasons.append(f"device {device} has no CUDA graphs")
    if not backend.capabilities.graph_safe:
        reasons.append(f"{type(backend).__name__} does not declare graph_safe: it reads lengths on the host")
    if num_ranks > 1:
        reasons.append(f"the host tells {num_ranks} ranks of each step")
    if reasons and options.cuda_graphs is True:
        raise ConfigError(
            f"engine.cuda_graphs=true cannot be: {'; '.join(reasons)}. Take engine.cuda_graphs=auto, or one rank, a "
            "CUDA device and a graph-safe backend such as +backend=triton"
        )
    return ((), "; ".join(reasons)) if reasons else (bucket_sizes(options.max_batch_requests), "")
