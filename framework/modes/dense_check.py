"""Comparison of served tokens with the plain dense model's, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from framework.engine.request import Request, Status
from framework.model.dense import dense_logits
from framework.model.loading import LoadedModel

_TIE = 1e-5


@dataclass(frozen=True, slots=True)
class DenseVerdict:
    """What a dense forward pass says of one served request.

    Attributes:
        request: its number.
        differs_at: index of the first generated token that is not the dense model's likeliest; None if all are.
        ties: tokens that were not the likeliest, but closer to it than 1e-5 of the largest logit.
    """

    request: int
    differs_at: int | None
    ties: int


def compare_dense(
    model: LoadedModel, requests: Sequence[Request], limit: int, *, device: str
) -> list[DenseVerdict] | None:
    """Compare up to `limit` finished greedy requests with one dense forward pass each over prompt and output.

    A served token must be the dense model's likeliest at its position, given the served tokens before it. Only fp32 is
    judged: there the schedule does not change the tokens, except at ties, which are counted apart.

    Returns:
        a verdict a compared request, in their order; None where nothing can be judged: not fp32, or `limit` 0.
    """
    if next(model.decoder.parameters()).dtype != torch.float32 or limit == 0:
        return None
    return [_compare(model, request, device) for request in greedy_requests(requests)[:limit]]


def greedy_requests(requests: Sequence[Request]) -> list[Request]:
    """Those that finished and whose every token is the likeliest, no beam search: what can be decoded again."""
    return [
        request
        for request in requests
        if request.status is Status.FINISHED and request.sampling.temperature == 0 and request.sampling.beam_width == 1
    ]


def check_dense(model: LoadedModel, requests: Sequence[Request], limit: int, *, device: str) -> dict[str, Any]:
    """The verdicts of `compare_dense`, counted; see `summarise`."""
    return summarise(compare_dense(model, requests, limit, device=device))


def summarise(verdicts: Sequence[DenseVerdict] | None) -> dict[str, Any]:
    """`dense_checked` sequences, `dense_mismatches` among them, their requests' numbers, `dense_ties` tokens.

    All null where nothing was judged.
    """
    if verdicts is None:
        return {"dense_checked": None, "dense_mismatches": None, "dense_mismatched_requests": None, "dense_ties": None}
    differing = [verdict.request for verdict in verdicts if verdict.differs_at is not None]
    return {
        "dense_checked": len(verdicts),
        "dense_mismatches": len(differing),
        "dense_mismatched_requests": differing,
        "dense_ties": sum(verdict.ties for verdict in verdicts),
    }


@torch.inference_mode()
def _compare(model: LoadedModel, request: Request, device: str) -> DenseVerdict:
    output = torch.tensor(request.completions[0].tokens, device=device)
    tokens = torch.cat([torch.from_numpy(request.prompt.astype("int64")).to(device), output])
    logits = dense_logits(model.decoder, tokens[:-1])[len(request.prompt) - 1 :]
    best = logits.max(dim=-1).values
    chosen = logits.gather(1, output[:, None]).squeeze(1)
    gap = best - chosen
    tie = (gap > 0) & (gap <= _TIE * logits.abs().max(dim=-1).values)
    wrong = ((gap > 0) & ~tie).nonzero().flatten()
    return DenseVerdict(request.number, int(wrong[0]) if len(wrong) else None, int(tie.sum()))
