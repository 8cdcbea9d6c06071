"""Served requests against the plain dense model: their tokens, and the measured loss of a lossy backend or KV pool."""

# Shapes: O output tokens  V vocabulary

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from framework.engine.pool import KVPool
from framework.engine.request import Request, Status
from framework.engine.served_pass import Gaps, served_pass
from framework.interfaces.backend import AttentionBackend, AttentionSpec
from framework.model.decoder import Decoder
from framework.model.dense import dense_logits
from framework.model.loading import LoadedModel
from framework.model.ranks import Ranks
from framework.parallel.serving import measure_gaps

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


@dataclass(frozen=True, slots=True)
class LossVerdict:
    """One served request beside the dense model, given the same tokens.

    Attributes:
        request: its number.
        equal_tokens, tokens: served tokens that are the dense model's likeliest, and all of them.
        differs_at: index of the first served token that is not; None if all are.
        logit_error: largest difference of a logit.
        kl_divergence: mean over the tokens of KL(dense || backend), nats.
        attention_error: largest difference of an attention output from the exact one over the same K and V, as a share
            of the largest |V|; over all layers.
    """

    request: int
    equal_tokens: int
    tokens: int
    differs_at: int | None
    logit_error: float
    kl_divergence: float
    attention_error: float


def measure_loss(
    decoder: Decoder,
    backend: AttentionBackend | Sequence[AttentionBackend],
    spec: AttentionSpec,
    pool: KVPool,
    requests: Sequence[Request],
    limit: int,
    ranks: Ranks | None = None,
) -> list[LossVerdict]:
    """Up to `limit` finished greedy requests again: through `backend` over a pool of its own, and the dense model.

    See `served_pass`. O(output tokens) passes a request.

    Args:
        backend: set up; one a layer, where layers differ in their sliding window.
        spec: of the heads that `decoder` holds.
        pool: of the run.
        ranks: that hold the model's other heads, which they compare; `decoder`, `spec` and `pool` are then rank 0's.

    Raises:
        PluginError: the backend failed.
        RankError: another rank failed.
    """
    backends = [backend] * len(pool.layers) if isinstance(backend, AttentionBackend) else backend
    verdicts = []
    for request in greedy_requests(requests)[:limit]:
        asked = _tokens_of(request), len(request.prompt)
        if ranks is None:
            got, gaps = served_pass(decoder, backends, spec, pool, *asked)
            verdicts.append(_verdict(decoder, request, got, [gaps]))
            continue
        ranks.post(measure_gaps, *asked)
        with ranks.in_step():
            got, gaps = served_pass(decoder, backends, spec, pool, *asked)
            others = ranks.answers()
        verdicts.append(_verdict(decoder, request, got, [gaps, *others]))
    return verdicts


def summarise_loss(verdicts: Sequence[LossVerdict], max_error: float | None) -> dict[str, Any]:
    """The run's results; `loss_exceeded` are the requests whose attention lost more than `max_error`.

    None: no loss was declared, as where the pool holds fewer bits. Only what is no number is then a mismatch.
    """
    tokens, limit = sum(verdict.tokens for verdict in verdicts), math.inf if max_error is None else max_error
    beyond = [verdict.request for verdict in verdicts if not verdict.attention_error <= limit]  # NaN is beyond
    return {
        "dense_checked": len(verdicts),
        "dense_mismatches": None,  # tokens may differ: `dense_agreement` says how many do not
        "loss_exceeded": len(beyond) if beyond or max_error is not None else None,
        "dense_mismatched_requests": beyond,
        "dense_ties": None,
        "dense_agreement": sum(verdict.equal_tokens for verdict in verdicts) / tokens if tokens else None,
        "dense_logit_error": max((verdict.logit_error for verdict in verdicts), default=None),
        "dense_kl_divergence": sum(v.kl_divergence * v.tokens for v in verdicts) / tokens if tokens else None,
        "attention_error": max((verdict.attention_error for verdict in verdicts), default=None),
        "attention_error_declared": max_error,
    }


@torch.inference_mode()
def _verdict(decoder: Decoder, request: Request, got: Tensor, ranks_gaps: Sequence[Gaps]) -> LossVerdict:
    """The verdict on `request`, whose tokens were chosen from logits `got` (O, V). Gaps are of each rank's heads."""
    output, prompt = request.completions[0].tokens, len(request.prompt)
    tokens = torch.tensor(_tokens_of(request), device=decoder.device)
    got, want = got.double(), dense_logits(decoder, tokens[:-1])[prompt - 1 :].double()
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
