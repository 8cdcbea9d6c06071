"""Ranks of a model that are threads of one process, and need no process group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from framework.model.config import ModelConfig
from framework.model.decoder import Decoder
from framework.model.dense import dense_logits
from framework.model.shard import Shard


class ThreadGroup:
    """The collectives of ranks that are threads of one process."""

    def __init__(self, rank: int, parts: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.parts, self.barrier = rank, parts, barrier

    def _all(self, x: Tensor) -> list[Tensor]:
        self.parts[self.rank] = x.clone()
        self.barrier.wait()
        parts = list(self.parts)
        self.barrier.wait()
        return parts

    def sum(self, x: Tensor) -> Tensor:
        return x.copy_(torch.stack(self._all(x)).sum(0))

    def gather(self, x: Tensor, widths: list[int]) -> Tensor:
        assert x.shape[1] == widths[self.rank], (x.shape, widths)
        parts = self._all(x)
        return torch.cat(parts, 1) if self.rank == 0 else x


def on_every_rank(decoders: list[Decoder], work: Callable[[Decoder], Tensor]) -> list[Tensor]:
    """What `work` gives on each rank."""
    barrier, parts = threading.Barrier(len(decoders), timeout=30), [None] * len(decoders)

    def one(rank: int) -> Tensor:
        decoders[rank].join(ThreadGroup(rank, parts, barrier))
        return work(decoders[rank])

    with ThreadPoolExecutor(len(decoders)) as pool:
        return list(pool.map(one, range(len(decoders))))


def noisy(config: ModelConfig, shard: Shard = Shard()) -> Decoder:  # noqa: B008
    """A decoder in float64 none of whose weights is zero or one, as `shard` of the same whole."""
    decoder, generator = Decoder(config, dtype=torch.float64, shard=shard), torch.Generator().manual_seed(1)
    planned = Decoder(config, device="meta")
    for name, weight in planned.named_parameters():
        whole = torch.randn(weight.shape, generator=generator, dtype=torch.float64) * 0.3
        decoder.get_parameter(name).copy_(shard.cut(whole, planned.division(name)))
    return decoder


def check_parts(config: ModelConfig, size: int, tokens: list[int]) -> None:
    """A model over so many ranks gives the logits of the whole one, and each rank has a part of it."""
    parts, whole = [noisy(config, Shard(rank, size)) for rank in range(size)], noisy(config)
    found = on_every_rank(parts, lambda decoder: dense_logits(decoder, tokens))[0]
    torch.testing.assert_close(found, dense_logits(whole, tokens), atol=1e-10, rtol=1e-10)
    counts = [sum(weight.numel() for weight in decoder.layers.parameters()) for decoder in (*parts, whole)]
    assert max(counts[:-1]) < 0.9 * counts[-1], counts
