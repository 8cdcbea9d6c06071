"""Backends for tests: a graph-safe one in plain torch, on any device, slow; and one that answers NaN."""

from __future__ import annotations

import torch

from framework.interfaces.backend import AttentionBackend, Capabilities
from framework_torch.backend import TorchBackend


class StaticBackend(AttentionBackend):
    """Launches depend on shapes alone: attends to the whole width of the block table, and masks by the lengths."""

    capabilities = Capabilities(
        dtypes=frozenset({"float32", "float64", "bfloat16"}),
        devices=frozenset({"cpu", "meta", "cuda"}),
        features=frozenset({"sliding_window"}),
        graph_safe=True,
    )

    def plan(self, batch):
        rows = torch.arange(len(batch.context_lens), device=batch.context_lens.device)
        tokens = torch.arange(len(batch.slot_mapping), device=rows.device)
        self.row = (tokens[:, None] >= batch.query_starts[None, 1:]).sum(1).clamp(max=len(rows) - 1)
        ends = batch.query_starts[1:][self.row].long()
        self.position = batch.context_lens[self.row].long() - (ends - tokens)  # of each query, -1 for padding

    def write(self, pool, k, v, slot_mapping):
        padding = (slot_mapping < 0)[:, None, None]
        slots = slot_mapping.clamp(min=0)
        block, offset = slots // pool.block_size, slots % pool.block_size
        for stored, values in ((pool.k, k), (pool.v, v)):
            stored[block, offset] = torch.where(padding, stored[0, 0], values)

    def attend(self, q, pool, batch, out, *, lse=None):
        self.require(q, pool, batch, out, lse)
        tables = batch.block_tables.long()[self.row]
        keys = torch.arange(tables.shape[1] * pool.block_size, device=q.device)
        seen = keys[None, :] <= self.position[:, None]
        if self.spec.sliding_window is not None:
            seen &= keys[None, :] > self.position[:, None] - self.spec.sliding_window
        group = q.shape[1] // pool.k.shape[2]
        k, v = (x[tables].flatten(1, 2).repeat_interleave(group, dim=2) for x in (pool.k, pool.v))
        # What is not seen may hold NaN.
        k, v = (torch.where(seen[:, :, None, None], x, 0) for x in (k, v))
        scores = torch.einsum("thd,tchd->thc", q, k) * self.spec.softmax_scale
        scores = scores.masked_fill(~seen[:, None, :], -torch.inf)
        weights = torch.where(seen.any(1)[:, None, None], scores.softmax(-1), 0)
        out.copy_(torch.einsum("thc,tchd->thd", weights, v))


class NanOnce(TorchBackend):
    """Answers NaN for every head of one token, in the first call of its life."""

    spoilt = False

    def attend(self, q, pool, batch, out, *, lse=None):  # type: ignore[no-untyped-def]
        super().attend(q, pool, batch, out, lse=lse)
        if not self.spoilt:
            self.spoilt, out[1] = True, float("nan")
