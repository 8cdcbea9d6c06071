"""Served requests against the plain dense model: their tokens, and the measured loss of a lossy backend or KV pool."""

# Shapes: O output tokens  V vocabulary

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from framework.engine.executors.leader import measure_gaps
from framework.engine.request import Request, Status
from framework.engine.served_pass import Gaps, served_pass
from framework.llm import LLM
from framework.model.dense import dense_logits

_TIE = 1e-5
_NOT_JUDGED = dict.fromkeys(("dense_checked", "dense_mismatches", "dense_mismatched_requests", "dense_ties"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a dense forward pass says of one served request.

    Attributes:
        request: its number.
        differs_at: index of the first generated token that is not the dense model's likeliest; None if all are.
        ties: tokens that were not the likeliest, but closer to it than 1e-5 of the largest logit.
        wrong: the other tokens that were not the likeliest, given the served ones before them.
    """

    request: int
    differs_at: int | None
    ties: int = 0
    wrong: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossVerdict(Verdict):
    """The same where K and V are rounded: every token that is not the likeliest differs.

    Attributes:
        equal_tokens, tokens: served tokens that are the dense model's likeliest, and all of them.
        logit_error: largest difference of a logit.
        kl_divergence: mean over the tokens of KL(dense || backend), nats.
        attention_error: largest difference of an attention output from the exact one over the same K and V, as a share
            of the largest |V|; over all layers.
    """

    equal_tokens: int
    tokens: int
    logit_error: float
    kl_divergence: float
    attention_error: float


def compare(llm: LLM, requests: Sequence[Request], limit: int) -> tuple[Sequence[Verdict], dict[str, Any]]:
    """Up to `limit` finished greedy requests beside the dense model: a verdict each, and the run's results.

    Where a compression dropped tokens, those that differ are counted. A backend that declares a loss is measured, in
    any dtype, and so is a pool of another dtype than the model's. The others must give the dense model's tokens: each
    the likeliest at its position, given the served tokens before it. Only fp32 is judged so: there the schedule does
    not change the tokens, except at ties, which are counted apart.

    Returns:
        no verdict, and nulls, where nothing can be judged.

    Raises:
        RankError: a rank failed in a measuring pass; the run is then a failure.
    """
    ranks, loss = llm.model.ranks, llm.backend.capabilities.lossy
    own_dtype = llm.kv_dtype == llm.spec.dtype
    if limit == 0 or (ranks is not None and ranks.broken):
        return (), dict(_NOT_JUDGED)
    compressor, rounds = llm.engine.state.compressor, loss is not None or not own_dtype
    dropped = compressor is not None and (compressor.dropped_tokens or (rounds and llm.compression.by_head))
    if rounds and not dropped:
        measured = measure_loss(llm, requests, limit)
        # What rounded K and V lose is for the reader to judge: no backend has declared it.
        return measured, summarise_loss(measured, loss.max_error if loss is not None and own_dtype else None)
    if llm.model.decoder.dtype != torch.float32:
        return (), dict(_NOT_JUDGED)
    verdicts = [_compare(llm, request) for request in _greedy(requests)[:limit]]
    if dropped:
        tokens = sum(len(request.completions[0].tokens) for request in _greedy(requests)[:limit])
        agreed = 1 - sum(verdict.wrong for verdict in verdicts) / tokens if tokens else None
        return verdicts, _NOT_JUDGED | {"dense_checked": len(verdicts), "dense_agreement": agreed}
    differing = [verdict.request for verdict in verdicts if verdict.differs_at is not None]
    return verdicts, {
        "dense_checked": len(verdicts),
        "dense_mismatches": len(differing),
        "dense_mismatched_requests": differing,
        "dense_ties": sum(verdict.ties for verdict in verdicts),
    }


def _greedy(requests: Sequence[Request]) -> list[Request]:
    """Those that finished and whose every token is the likeliest, no beam search: what can be decoded again."""
    return [
        request
        for request in requests
        if request.status is Status.FINISHED and request.sampling.temperature == 0 and request.sampling.beam_width == 1
    ]


@torch.inference_mode()
def _compare(llm: LLM, request: Request) -> Verdict:
    tokens = torch.tensor(_tokens_of(request), device=llm.device)
    output = tokens[len(request.prompt) :]
    logits = dense_logits(llm.model.decoder, tokens[:-1])[len(request.prompt) - 1 :]
    best = logits.max(dim=-1).values
    chosen = logits.gather(1, output[:, None]).squeeze(1)
    gap = best - chosen
    tie = (gap > 0) & (gap <= _TIE * logits.abs().max(dim=-1).values)
    wrong = ((gap > 0) & ~tie).nonzero().flatten()
    first = int(wrong[0]) if len(wrong) else None
    return Verdict(request=request.number, differs_at=first, ties=int(tie.sum()), wrong=len(wrong))


def measure_loss(llm: LLM, requests: Sequence[Request], limit: int) -> list[LossVerdict]:
    """Up to `limit` finished greedy requests again: through the backend over a pool of its own, and the dense model.

    Where several ranks hold the model each compares its own heads. See `served_pass`. O(output tokens) passes a
    request.

    Raises:
        RankError: another rank failed.
    """
    decoder, ranks = llm.model.decoder, llm.model.ranks
    verdicts = []
    for request in _greedy(requests)[:limit]:
        asked = _tokens_of(request), len(request.prompt)
        own = partial(served_pass, decoder, llm.backends, llm.pool, *asked)
        (got, gaps), others = (own(), []) if ranks is None else ranks.run(own, measure_gaps, *asked)
        verdicts.append(_verdict(llm, request, got, [gaps, *others]))
    return verdicts


def summarise_loss(verdicts: Sequence[LossVerdict], max_error: float | None) -> dict[str, Any]:
    """The run's results; `loss_exceeded` are the requests whose attention lost more than `max_error`.

    None: no loss was declared, as where the pool holds fewer bits. Only what is no number is then a mismatch.
    """
    tokens, limit = sum(verdict.tokens for verdict in verdicts), math.inf if max_error is None else max_error
    beyond = [verdict.request for verdict in verdicts if not verdict.attention_error <= limit]  # NaN is beyond
    return _NOT_JUDGED | {  # tokens may differ: `dense_agreement` says how many do not
        "dense_checked": len(verdicts),
        "loss_exceeded": len(beyond) if beyond or max_error is not None else None,
        "dense_mismatched_requests": beyond,
        "dense_agreement": sum(verdict.equal_tokens for verdict in verdicts) / tokens if tokens else None,
        "dense_logit_error": max((verdict.logit_error for verdict in verdicts), default=None),
        "dense_kl_divergence": sum(v.kl_divergence * v.tokens for v in verdicts) / tokens if tokens else None,
        "attention_error": max((verdict.attention_error for verdict in verdicts), default=None),
        "attention_error_declared": max_error,
    }


@torch.inference_mode()
def _verdict(llm: LLM, request: Request, got: Tensor, ranks_gaps: Sequence[Gaps]) -> LossVerdict:
    """The verdict on `request`, whose tokens were chosen from logits `got` (O, V). Gaps are of each rank's heads."""
    output, prompt = request.completions[0].tokens, len(request.prompt)
    tokens = torch.tensor(_tokens_of(request), device=llm.device)
    got, want = got.double(), dense_logits(llm.model.decoder, tokens[:-1])[prompt - 1 :].double()
    wrong = (want.argmax(-1) != tokens[prompt:]).nonzero().flatten()
    log_p, log_q = want.log_softmax(-1), got.log_softmax(-1)
    return LossVerdict(
        request=request.number,
        equal_tokens=len(output) - len(wrong),
        tokens=len(output),
        differs_at=int(wrong[0]) if len(wrong) else None,
        logit_error=float((got - want).abs().max()),
        kl_divergence=float((log_p.exp() * (log_p - log_q)).sum(-1).mean()),
        attention_error=attention_error(ranks_gaps),
    )


def attention_error(ranks_gaps: Sequence[Gaps]) -> float:
    """The largest gap as a share of the largest |V| of its call and layer, over the heads of all ranks.

    NaN where an output is none.
    """
    gaps = np.array(ranks_gaps, dtype=np.float64).max(0)  # NaN stays NaN
    error, scale = gaps[:, 0], gaps[:, 1]
    return float((error / np.where(scale > 0, scale, 1.0)).max())


def _tokens_of(request: Request) -> list[int]:
    return [*request.prompt.tolist(), *request.completions[0].tokens]
