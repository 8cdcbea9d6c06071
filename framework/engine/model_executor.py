"""The executor that computes: a transformer over the KV pool."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from framework.engine.books import named
from framework.engine.executor import BoolArray, FloatArray, Step
from framework.engine.pool import KVPool
from framework.engine.rows import IntArray, Rows
from framework.engine.tables import BlockTables
from framework.interfaces.backend import AttentionBackend, Batch
from framework.model import sampler
from framework.model.decoder import Decoder
from framework.types import BlockCopy


class ModelExecutor:
    """Runs the decoder on packed tokens, with attention by `backend` over `pool`, on the wall clock.

    Args:
        backend: already set up for this model's AttentionSpec.
        pool, tables: on the decoder's device.
    """

    def __init__(self, decoder: Decoder, backend: AttentionBackend, pool: KVPool, tables: BlockTables) -> None:
        self.decoder, self.backend, self.pool, self.tables = decoder, backend, pool, tables
        self.device = torch.device(tables.device)
        self._logits: Tensor = torch.empty(0)
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds since construction."""
        return time.perf_counter() - self._start

    def restart_clock(self) -> None:
        """The clock starts again at 0: what loading took is no part of a run."""
        self._start = time.perf_counter()

    def wait_until(self, when: float) -> None:
        """Sleep."""
        time.sleep(max(0.0, when - self.now()))

    def set_table(self, row: int, start: int, ids: npt.NDArray[np.int32]) -> None:
        """See Executor."""
        self.tables.set(row, start, ids)

    def clear_table(self, row: int) -> None:
        """See Executor."""
        self.tables.clear(row)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """See Executor."""
        try:
            self.pool.copy(self.backend, copies)
        except Exception as error:
            raise named(self.backend, "copy_blocks", error) from error

    def fresh(self, ids: npt.NDArray[np.int32]) -> None:
        """See Executor."""
        self.pool.freed(ids)

    @torch.inference_mode()
    def forward(self, step: Step, rows: Rows) -> None:
        """See Executor."""
        tokens, positions, batch = self._batch(step, rows)
        try:
            self.backend.plan(batch)
        except Exception as error:
            raise named(self.backend, "plan", error) from error

        def attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kv = self.pool.layers[layer]
            try:
                self.backend.write(kv, k, v, batch.slot_mapping)
            except Exception as error:
                raise named(self.backend, "write", error) from error
            out = torch.empty_like(q)
            try:
                self.backend.attend(q, kv, batch, out)
            except Exception as error:
                raise named(self.backend, "attend", error) from error
            return out

        hidden = self.decoder(tokens, positions, attention)
        last = np.cumsum(step.num_new)[step.sampled] - 1
        self._logits = self.decoder.logits(hidden[self._to_device(last)])

    def _batch(self, step: Step, rows: Rows) -> tuple[Tensor, Tensor, Batch]:
        """Packed tokens (T,), their positions (T,), and the ragged batch they form."""
        ends = np.cumsum(step.num_new)
        row_of = np.repeat(step.rows, step.num_new)
        position = np.arange(ends[-1]) + np.repeat(step.computed - (ends - step.num_new), step.num_new)
        context = (step.computed + step.num_new).astype(np.int32)
        starts = np.zeros(len(ends) + 1, dtype=np.int32)
        starts[1:] = ends
        longest = int(context.max())
        slots = self.tables.slots(row_of, position, self.pool.block_size)
        self.tables.flush()
        batch = Batch(
            block_tables=self.tables.select(step.rows, -(-longest // self.pool.block_size)),
            context_lens=self._to_device(context),
            query_starts=self._to_device(starts),
            slot_mapping=self._to_device(slots),
            max_query_len=int(step.num_new.max()),
            max_context_len=longest,
            num_decodes=step.num_decodes,
            host_context_lens=context,
            host_query_starts=starts,
        )
        tokens = self._to_device(rows.tokens[row_of, position].astype(np.int64))
        return tokens, self._to_device(position), batch

    def _to_device(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)

    @torch.inference_mode()
    def sample(self, at: IntArray, streams: IntArray, step: Step, rows: Rows) -> tuple[IntArray, BoolArray]:
        """See Executor."""
        where = step.rows[step.sampled][at]
        logits = self._logits if len(at) == len(self._logits) and (np.diff(at) == 1).all() else None
        if logits is None:
            logits = self._logits[self._to_device(at)]
        tokens, bad = sampler.sample(
            logits,
            temperature=rows.temperature[where],
            top_k=rows.top_k[where],
            top_p=rows.top_p[where],
            seeds=rows.seed[where],
            streams=streams,
            positions=rows.length[where],
        )
        return tokens.cpu().numpy().astype(np.int64), bad.cpu().numpy()

    @torch.inference_mode()
    def logprobs(self, at: IntArray, tokens: IntArray, k: int) -> tuple[FloatArray, IntArray, FloatArray]:
        """See Executor."""
        chosen, ids, values = sampler.logprobs(self._logits[self._to_device(at)], self._to_device(tokens), k)
        return chosen.cpu().numpy(), ids.cpu().numpy(), values.cpu().numpy()
