"""Measured loss of a lossy backend or a narrow KV pool: served requests against the dense model."""

# Shapes: T tokens of a call  O output tokens  H query heads  K kv heads  D head dim  V vocabulary

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from framework.engine.kv_scales import SCALED
from framework.engine.pool import KVPool
from framework.engine.request import Request
from framework.guard.backend import GuardedBackend
from framework.interfaces.backend import AttentionBackend, AttentionSpec, Batch
from framework.model.decoder import Decoder
from framework.model.dense import dense_logits, layer_attention
from framework.modes.dense_check import greedy_requests


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
) -> list[LossVerdict]:
    """Up to `limit` finished greedy requests again: through `backend` over a pool of its own, and the dense model.

    The prompt is one call, each output token another, as it was served. O(output tokens) passes a request.

    Args:
        backend: set up; one a layer, where layers differ in their sliding window.
        pool: of the run; a pool of its kind with one sequence's blocks is allocated beside it.

    Raises:
        PluginError: the backend failed.
    """
    backends = [backend] * len(pool.layers) if isinstance(backend, AttentionBackend) else backend
    return [_measure(decoder, backends, spec, pool, request) for request in greedy_requests(requests)[:limit]]


def summarise(verdicts: Sequence[LossVerdict], max_error: float | None) -> dict[str, Any]:
    """The run's results; `dense_mismatches` are the requests whose attention lost more than `max_error`.

    None: no loss was declared, as where the pool holds fewer bits. Only what is no number is then a mismatch.
    """
    tokens, limit = sum(verdict.tokens for verdict in verdicts), math.inf if max_error is None else max_error
    beyond = [verdict.request for verdict in verdicts if not verdict.attention_error <= limit]  # NaN is beyond
    return {
        "dense_checked": len(verdicts),
        "dense_mismatches": len(beyond) if beyond or max_error is not None else None,
        "dense_mismatched_requests": beyond,
        "dense_ties": None,
        "dense_agreement": sum(verdict.equal_tokens for verdict in verdicts) / tokens if tokens else None,
        "dense_logit_error": max((verdict.logit_error for verdict in verdicts), default=None),
        "dense_kl_divergence": sum(v.kl_divergence * v.tokens for v in verdicts) / tokens if tokens else None,
        "attention_error": max((verdict.attention_error for verdict in verdicts), default=None),
        "attention_error_declared": max_error,
    }


@torch.inference_mode()
def _measure(
    decoder: Decoder, backends: Sequence[AttentionBackend], spec: AttentionSpec, pool: KVPool, request: Request
) -> LossVerdict:
    output = request.completions[0].tokens
    tokens = torch.tensor([*request.prompt.tolist(), *output], device=decoder.device)
    prompt = len(request.prompt)
    served = _Pass(decoder, backends, spec, pool, len(tokens))
    rows = [served.logits(tokens[:prompt])[-1:]]
    rows += [served.logits(tokens[at : at + 1]) for at in range(prompt, len(tokens) - 1)]
    got = torch.cat(rows).double()
    want = dense_logits(decoder, tokens[:-1])[prompt - 1 :].double()
    wrong = (want.argmax(-1) != tokens[prompt:]).nonzero().flatten()
    log_p, log_q = want.log_softmax(-1), got.log_softmax(-1)
    return LossVerdict(
        request=request.number,
        equal_tokens=len(output) - len(wrong),
        tokens=len(output),
        differs_at=int(wrong[0]) if len(wrong) else None,
        logit_error=float((got - want).abs().max()),
        kl_divergence=float((log_p.exp() * (log_p - log_q)).sum(-1).mean()),
        attention_error=served.error,
    )


class _Pass:
    """One sequence, call by call, with attention by the backend; each output beside the exact one in fp64.

    Attributes:
        error: the largest so far, as a share of the largest |V|.
    """

    def __init__(
        self,
        decoder: Decoder,
        backends: Sequence[AttentionBackend],
        spec: AttentionSpec,
        pool: KVPool,
        num_tokens: int,
    ) -> None:
        self._decoder = decoder
        guarded = {id(own): GuardedBackend(own) for own in backends}
        self._backends, self._planners = [guarded[id(own)] for own in backends], list(guarded.values())
        num_blocks = -(-num_tokens // spec.block_size)
        self._pool = KVPool(
            num_blocks, spec.block_size, len(pool.layers), spec.num_kv_heads, spec.head_dim, pool.dtype, pool.device,
            pool.layout,
        )  # fmt: skip
        for own, served in zip(self._pool.layers, pool.layers, strict=True):
            own.sinks, own.alibi_slopes = served.sinks, served.alibi_slopes
            if pool.dtype == SCALED:
                own.k_scale, own.v_scale = served.k_scale, served.v_scale
        self._keys: list[list[Tensor]] = [[] for _ in pool.layers]
        self._values: list[list[Tensor]] = [[] for _ in pool.layers]
        self._table = torch.arange(1, num_blocks + 1, dtype=torch.int32, device=pool.device)[None]
        self._length, self.error = 0, 0.0
        self._batch: Batch | None = None

    def logits(self, tokens: Tensor) -> Tensor:
        """(T, V) after each of the next `tokens` (T,)."""
        start, end = self._length, self._length + len(tokens)
        self._batch, self._length = self._batch_of(start, end), end
        for backend in self._planners:
            backend.plan(self._batch)
        hidden = self._decoder(tokens, torch.arange(start, end, device=tokens.device), self._attend)
        return self._decoder.logits(hidden)

    def _batch_of(self, start: int, end: int) -> Batch:
        device, count = self._table.device, end - start
        contexts, starts = np.array([end], np.int32), np.array([0, count], np.int32)
        size = self._pool.block_size
        return Batch(
            block_tables=self._table,
            context_lens=torch.from_numpy(contexts.copy()).to(device),
            query_starts=torch.from_numpy(starts.copy()).to(device),
            slot_mapping=torch.arange(start + size, end + size, dtype=torch.int64, device=device),  # blocks from 1 on
            max_query_len=count,
            max_context_len=end,
            num_decodes=int(count == 1),
            host_context_lens=contexts,
            host_query_starts=starts,
        )

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert self._batch is not None
        kv, out = self._pool.layers[layer], torch.empty_like(q)
        self._backends[layer].write(kv, k, v, self._batch.slot_mapping)
        self._backends[layer].attend(q, kv, self._batch, out)
        self._keys[layer].append(k.double())
        self._values[layer].append(v.double())
        keys, values = torch.cat(self._keys[layer]), torch.cat(self._values[layer])
        exact = layer_attention(self._decoder, layer, q.double(), keys, values)
        gap, scale = float((out.double() - exact).abs().max()), float(values.abs().max())
        self.error = max(self.error, gap / scale if scale else gap) if gap == gap else float("nan")
        return out
