"""Greedy decoding by the plain dense model, one sequence at a time: what a served model must give."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from framework.model.decoder import Decoder
from framework.model.dense import DenseCache, TokenIds


@dataclass(frozen=True, slots=True)
class Greedy:
    """What `greedy` chose, and how narrowly.

    Attributes:
        tokens: the generated ids.
        gaps: per token, the best logit minus the runner-up: where it is small beside rounding error, another correct
            implementation may choose otherwise.
        largest_logit: the largest magnitude seen, to judge the gaps by.
    """

    tokens: list[int]
    gaps: list[float]
    largest_logit: float


def greedy(decoder: Decoder, prompt: TokenIds, max_tokens: int) -> Greedy:
    """Greedy decoding of one prompt over a contiguous cache; ties go to the lowest id."""
    ids = torch.as_tensor(prompt, dtype=torch.int64, device=decoder.device)
    cache, start = DenseCache(decoder), 0
    tokens: list[int] = []
    gaps: list[float] = []
    largest = 0.0
    for _ in range(max_tokens):
        positions = torch.arange(start, start + len(ids), device=ids.device)
        logits = decoder.logits(decoder(ids, positions, cache.attend)[-1:])[0]
        start += len(ids)
        best, second = logits.topk(2).values.tolist()
        tokens.append(int(logits.argmax()))
        gaps.append(best - second)
        largest = max(largest, float(logits.abs().max()))
        ids = torch.tensor(tokens[-1:], device=ids.device)
    return Greedy(tokens, gaps, largest)
