"""A dense model that reads only what a compression kept: what the engine must compute from the pool."""

# Shapes: T tokens  H query heads  K kv heads  D head dim

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from framework.interfaces.compression import Compression, Kept, Written
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.model.loading import LoadedModel, load_model
from framework.registry.components import build_component
from framework_recall.model import CHECKPOINT

METHODS = ("streaming", "knorm", "keydiff", "snapkv", "expected_attention", "paged_eviction", "openvino")


@cache
def recall_model() -> LoadedModel:
    return load_model(str(CHECKPOINT), device="cpu")


class Recorded(Compression):
    """A compression that remembers what it kept, and of how many tokens."""

    def __init__(self, name: str, **options: Any) -> None:
        self.inner: Any = build_component("compression", {"name": name, **options}, {})
        self.num_queries, self.reads_cache = self.inner.num_queries, self.inner.reads_cache
        self.step_end, self.due = self.inner.step_end, self.inner.due
        self.kept: dict[int, list[tuple[int, int, Kept]]] = {}

    def keep(self, written: Written) -> Kept | None:
        found = self.inner.keep(written)
        self.kept.setdefault(written.info.id, []).append((written.computed, written.block_size, found))
        return found


def llm_of(compression: Any, *, block_size: int = 16, num_blocks: int = 200, **options: Any) -> LLM:
    engine = EngineOptions(**{"max_batch_tokens": 512, "max_batch_requests": 8} | options.pop("engine", {}))
    cache_options = CacheOptions(num_blocks=num_blocks, block_size=block_size, layout=options.pop("layout", "NHD"))
    return LLM(recall_model(), compression=compression, cache=cache_options, engine=engine, device="cpu", **options)


def masked_logits(tokens: Sequence[int], kept: Sequence[tuple[int, int, Kept]]) -> torch.Tensor:
    """(T, V): each token reads what was there when it was computed, of each head of each layer."""
    decoder = recall_model().decoder
    config, length = decoder.config, len(tokens)
    alive = torch.ones(config.num_layers, config.num_kv_heads, length, length, dtype=torch.bool).tril()
    there = [[list(range(length)) for _ in range(config.num_kv_heads)] for _ in range(config.num_layers)]
    for computed, size, one in kept:
        for layer, heads in enumerate(there):
            for head, stored in enumerate(heads):
                old = [token for token in stored if token < computed]
                if one.tokens is None:
                    left = [token for place, token in enumerate(old) if place // size in {*one.blocks}]
                else:
                    shape = (config.num_layers, config.num_kv_heads, one.tokens.shape[2])
                    left = np.array(old)[np.broadcast_to(one.tokens, shape)[layer, head]].tolist()
                alive[layer, head, computed:, sorted({*old} - {*left})] = False
                heads[head] = [*left, *range(computed, length)]

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        group = config.num_heads // config.num_kv_heads
        q, k, v = q.transpose(0, 1), *(one.transpose(0, 1).repeat_interleave(group, 0) for one in (k, v))
        scores = q @ k.transpose(1, 2) * config.head_dim**-0.5
        mask = alive[layer].repeat_interleave(group, 0)
        return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v).transpose(0, 1)

    with torch.inference_mode():
        ids = torch.tensor([*tokens])
        return decoder.logits(decoder(ids, torch.arange(length), attend))


def differences(requests: Sequence[Any], recorded: Recorded) -> list[tuple[int, int]]:
    """(request, token) of the generated tokens that the reference does not find likeliest, ties apart."""
    found = []
    for request in requests:
        tokens = [*request.prompt.tolist(), *request.completions[0].tokens]
        logits = masked_logits(tokens[:-1], recorded.kept.get(request.sequences[0].id, []))
        for place in range(len(request.prompt), len(tokens)):
            row = logits[place - 1]
            if row.max() - row[tokens[place]] > 1e-4 * row.abs().max():
                found.append((request.number, place))
    return found


def prompts_of(count: int, length: int = 150, seed: int = 0) -> list[list[int]]:
    """Prompts of words in no order."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 2048, length + 3 * i).tolist() for i in range(count)]
