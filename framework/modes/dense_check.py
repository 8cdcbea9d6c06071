"""Do the served tokens equal those of the plain dense model?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from framework.engine.request import Request, Status
from framework.model.dense import dense_logits
from framework.model.loading import LoadedModel

_TIE = 1e-5


def check_dense(model: LoadedModel, requests: Sequence[Request], limit: int, *, device: str) -> dict[str, Any]:
    """Compare up to `limit` finished greedy requests with one dense forward pass each over prompt and output.

    A served token must be the dense model's likeliest at its position, given the served tokens before it. Only fp32 is
    judged: there the schedule does not change the tokens, except at ties closer than 1e-5 of the largest logit, which
    are counted apart.

    Returns:
        `dense_checked` sequences, `dense_mismatches` sequences, `dense_ties` tokens; nulls when not fp32.
    """
    if next(model.decoder.parameters()).dtype != torch.float32 or limit == 0:
        return {"dense_checked": None, "dense_mismatches": None, "dense_ties": None}
    checked = mismatches = ties = 0
    for request in requests:
        sampling = request.sampling
        if checked >= limit or request.status is not Status.FINISHED:
            continue
        if sampling.temperature > 0 or sampling.beam_width > 1:
            continue
        wrong, close = _compare(model, request, device)
        checked += 1
        mismatches += wrong
        ties += close
    return {"dense_checked": checked, "dense_mismatches": mismatches, "dense_ties": ties}


@torch.inference_mode()
def _compare(model: LoadedModel, request: Request, device: str) -> tuple[bool, int]:
    output = torch.tensor(request.completions[0].tokens, device=device)
    tokens = torch.cat([torch.from_numpy(request.prompt.astype("int64")).to(device), output])
    logits = dense_logits(model.decoder, tokens[:-1])[len(request.prompt) - 1 :]
    best = logits.max(dim=-1).values
    chosen = logits.gather(1, output[:, None]).squeeze(1)
    gap = best - chosen
    tie = (gap > 0) & (gap <= _TIE * logits.abs().max(dim=-1).values)
    return bool(((gap > 0) & ~tie).any()), int(tie.sum())
