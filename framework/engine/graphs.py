"""Decode steps recorded once at a few batch sizes, and replayed: no launch of theirs costs the host anything more."""

# Shapes: B rows of a step  P rows of the size it is padded to  M blocks a table row  V vocabulary

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
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
Compute = Callable[[Tensor, Tensor, Sequence[Batch]], Tensor]
"""(tokens (P,), positions (P,), a batch for each group of KV) -> logits (P, V)."""


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
        tables: of each group of KV.
        sizes: batch sizes to record, see `bucket_sizes`.

    Attributes:
        sizes: recorded, smallest first.
        num_replays, num_padded_rows: so far.
        capture_s: seconds that warming up and recording took.
    """

    def __init__(
        self, compute: Compute, tables: Sequence[BlockTables], sizes: Iterable[int], recorder: Recorder
    ) -> None:
        start = time.perf_counter()
        self._compute, self._tables = compute, tables
        self.sizes = tuple(sorted(set(sizes)))
        self.num_replays = self.num_padded_rows = 0
        largest, device = self.sizes[-1], tables[0].device
        self._room = 4 * largest + 1024
        capacity = layout(*self._inputs(largest, [self._room] * len(tables)))[1]
        self.staging = Staging(device, capacity, fixed=True)
        self._spill = Staging(device)
        self._gathered = [torch.zeros(largest, each.max_blocks, dtype=torch.int32, device=device) for each in tables]
        self._logits: Tensor | None = None
        self._recorded = {size: self._record(size, recorder) for size in reversed(self.sizes)}
        self.capture_s = time.perf_counter() - start

    def size_for(self, step: Step) -> int | None:
        """The size this step is padded to; None if some row computes more than one token, or none is large enough."""
        count = len(step.rows)
        if step.num_decodes != count or count > self.sizes[-1]:
            return None
        return next(size for size in self.sizes if size >= count)

    def run(self, size: int, step: Step, tokens: IntArray, slots: Sequence[IntArray], context: IntArray) -> Tensor:
        """The logits (B, V) of a step that `size_for` gave `size`: a view, overwritten by the next.

        Args:
            tokens: (B,) token ids. slots: (B,) of each group, where each one's K and V go. context: (B,) tokens in the
                pool, with it.
        """
        (batches, replay), count, changes = self._recorded[size], len(step.rows), list[npt.NDArray[Any]]()
        for tables in self._tables:
            index, values = tables.take_changes()
            if len(index) > self._room:  # a flood, such as many long prompts admitted at once
                tables.apply(*self._spill.upload(index, values))
                index, values = index[:0], values[:0]
            changes += index, values
        inputs = self._inputs(size, [len(index) for index in changes[::2]])
        inputs[0][:count], inputs[1][:count] = tokens, step.computed
        inputs[2][:count], inputs[3][:count] = step.rows, context
        behind = 4 + len(slots)
        for given, slot in zip(inputs[4:], slots, strict=False):
            given[:count] = slot
        for given, change in zip(inputs[behind:], changes, strict=True):
            given[:] = change
        batches[0].host_context_lens[:] = inputs[3]
        sent = self.staging.upload(*inputs)
        for number, tables in enumerate(self._tables):
            changed = sent[behind + 2 * number : behind + 2 * number + 2]
            if len(changed[0]):
                tables.apply(*changed)
        replay()
        self.num_replays += 1
        self.num_padded_rows += size - count
        assert self._logits is not None
        return self._logits[:count]

    def _inputs(self, size: int, num_changes: Sequence[int]) -> list[npt.NDArray[Any]]:
        """A step's upload with nothing but padding in it: tokens, positions, rows, contexts, slots of each group, and
        behind all that a graph reads, changes of each table."""
        of_row = [np.full(size, value, dtype=np.int64) for value in (0, 0, self._tables[0].max_rows)]
        slots = [np.full(size, -1) for _ in self._tables]
        changes = [np.zeros(count, dtype) for count in num_changes for dtype in (np.int64, np.int32)]
        return [*of_row, np.zeros(size, dtype=np.int32), *slots, *changes]

    def _record(self, size: int, recorder: Recorder) -> tuple[list[Batch], Work]:
        """The batches of a size, whose inputs' places are fixed, and what reads them and writes logits (P, V).

        Warms up on padding alone, which touches no block.
        """
        arrays = self._inputs(size, [0] * len(self._tables))
        tokens, positions, rows, contexts, *slots = (
            self.staging.view(array, place)
            for array, place in zip(arrays[: 4 + len(self._tables)], layout(*arrays)[0], strict=False)
        )
        starts = np.arange(size + 1, dtype=np.int32)
        lengths, on_device = np.zeros(size, dtype=np.int32), torch.from_numpy(starts).to(rows.device)
        batches = [
            Batch(
                block_tables=gathered[:size],
                context_lens=contexts,
                query_starts=on_device,
                slot_mapping=slot,
                max_query_len=1,
                max_context_len=tables.max_blocks * tables.block_size,
                num_decodes=size,
                host_context_lens=lengths,
                host_query_starts=starts,
            )
            for tables, gathered, slot in zip(self._tables, self._gathered, slots, strict=True)
        ]
        self.staging.upload(*arrays)

        def work() -> None:
            for tables, batch in zip(self._tables, batches, strict=True):
                tables.gather(rows, tables.max_blocks, out=batch.block_tables)
            logits = self._compute(tokens, positions, batches)
            if self._logits is None:  # one tensor for all sizes: the largest is warmed up first
                self._logits = torch.empty_like(logits)
            self._logits[:size].copy_(logits)

        recorder.warm_up(work)
        return batches, recorder.capture(work)


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
