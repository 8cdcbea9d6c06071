"""The plain dense answer: causal attention over whole sequences, one at a time. The engine's oracle."""

# Shapes: T tokens of one sequence  C of its context  H query heads  K kv heads  D head dim  V value dim; vocabulary

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from framework.errors import InvalidArgument
from framework.model.decoder import Decoder
from framework.model.layers import Index, Recurrence, State

_STATE_BLOCK = 64
"""Tokens after which a recurrence may begin anew from its state."""

TokenIds = Sequence[int] | npt.NDArray[np.int32] | Tensor


class DenseCache:
    """The attention of one sequence, call by call, without blocks.

    Attributes:
        kv: K and V (C, K, D) of each layer so far; of a latent cache rows (C, 1, D) and what is read of them.
    """

    def __init__(self, decoder: Decoder):
        self._decoder = decoder
        self.kv: dict[int, tuple[Tensor, Tensor]] = {}
        self._index_keys: dict[int, Tensor] = {}
        self._states: dict[int, tuple[int, State]] = {}

    def attend(self, layer: int, q: Tensor, *inputs: Any) -> Tensor:
        """See `framework.model.decoder.Attention`."""
        config, mixer = self._decoder.config, self._decoder.mixer(layer)
        if isinstance(mixer, Recurrence):
            return self._recur(layer, mixer, q, *inputs)
        k, v, *index = inputs
        if layer in self.kv:
            k, v = (torch.cat((before, new)) for before, new in zip(self.kv[layer], (k, v), strict=True))
        self.kv[layer] = k, v
        selected = self._selected(layer, *index) if index else None
        return dense_attention(
            q, k, v, window=config.window(layer), chunk=config.chunk(layer), scale=config.attention_scale,
            soft_cap=config.soft_cap, sinks=mixer.sinks, selected=selected,
        )  # fmt: skip

    def _recur(self, layer: int, mixer: Recurrence, *inputs: Tensor) -> Tensor:
        start, state = self._states.get(layer) or (0, mixer.zero_state(inputs[0].device))

        def save(count: int, after: State) -> None:
            self._states[layer] = count, after

        return mixer.sequence(*inputs, state=state, start=start, block=_STATE_BLOCK, save=save)

    def _selected(self, layer: int, index: Index) -> Tensor:
        """Which positions each of the last tokens may attend to, (T, C) bool: those of the highest scores."""
        before = self._index_keys.get(layer, index.keys[:0])
        keys = self._index_keys[layer] = torch.cat((before, index.keys))
        wide = torch.promote_types(keys.dtype, torch.float32)
        scores = torch.relu(index.queries.to(wide) @ keys.to(wide).T)
        scores = torch.einsum("th,thc->tc", index.weights.to(wide), scores)
        scores = scores.masked_fill(~_causal(len(scores), len(keys), keys.device), -torch.inf)
        best = scores.sort(dim=-1, descending=True, stable=True).indices  # of equal ones the first
        chosen = best[:, : self._decoder.config.index_count]
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, chosen, True)


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int | None = None,
    chunk: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    selected: Tensor | None = None,
) -> Tensor:
    """Causal attention of the last T positions of one sequence: q (T, H, D), k (C, K, D), v (C, K, V) -> (T, H, V).

    Query i stands at position C - T + i. `window`: it sees only the last so many positions, its own included; `chunk`:
    those of its own chunk of so many. `scale`, `soft_cap` and `sinks` (H,) as in AttentionSpec. `selected` (T, C) bool:
    what else it may see.
    """
    queries, context = len(q), len(k)
    mask = _causal(queries, context, q.device)
    if window is not None:
        mask &= ~_causal(queries, context, q.device, back=window)
    if chunk is not None:
        place = torch.arange(context, device=q.device) // chunk
        mask &= place == place[context - queries :, None]
    if selected is not None:
        mask &= selected
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    if soft_cap is None and sinks is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)[0].transpose(0, 1)
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(wide) @ k.to(wide).transpose(2, 3))[0] * (q.shape[-1] ** -0.5 if scale is None else scale)
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(wide)[:, None, None].expand(-1, queries, 1)), -1)
    return (scores.softmax(-1)[..., :context] @ v[0].to(wide)).to(v.dtype).transpose(0, 1)


def _causal(queries: int, context: int, device: torch.device, back: int = 0) -> Tensor:
    """Which of `context` positions the last `queries` ones see, (T, C) bool, from `back` positions behind them."""
    position = torch.arange(context - queries, context, device=device)[:, None]
    return torch.arange(context, device=device)[None] <= position - back


def dense_logits(decoder: Decoder, tokens: TokenIds) -> Tensor:
    """The logits (T, V) after each token of one sequence, computed in one pass without any cache.

    Of a model over several ranks, on rank 0: the others take part, each with its heads.
    """
    ids = _as_ids(decoder, tokens)
    with decoder.during_dense(ids):
        hidden = decoder(ids, torch.arange(len(ids), device=ids.device), DenseCache(decoder).attend)
        return decoder.logits(hidden)


def _as_ids(decoder: Decoder, tokens: TokenIds) -> Tensor:
    ids = torch.as_tensor(tokens, dtype=torch.int64, device=decoder.device)
    if ids.ndim != 1 or len(ids) == 0:
        raise InvalidArgument(f"a prompt is a row of at least one token id, found shape {tuple(ids.shape)}")
    return ids
