"""Drawing the next token of every row of a batch at once."""

# Shapes: R rows  V vocabulary  C candidates, likeliest first

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BUCKETS, _BUCKETS_PER_ROOT = 1024, 64
"""Scores 0 to -256 fall into buckets by their square root: fine near the best, and the tail is one bucket."""

_TINY_TEMPERATURE = 1e-30

Upload = Callable[..., list[Tensor]]
"""(*arrays) -> the same on the device."""


def sample(
    logits: Tensor,
    *,
    temperature: npt.ArrayLike,
    top_k: npt.ArrayLike,
    top_p: npt.ArrayLike,
    seeds: npt.ArrayLike,
    streams: npt.ArrayLike,
    positions: npt.ArrayLike,
    upload: Upload | None = None,
) -> tuple[Tensor, Tensor]:
    """One token a row: the argmax where temperature is 0 (ties to the lowest id), else a draw.

    A draw is temperature, then top-k (ties with the k-th are kept), then top-p, as in transformers; one uniform number
    from (seed, stream, position) then picks from what is left, so a row's token depends on no other row, nor on the
    device but for rounding of the logits.

    Args:
        logits: (R, V) float32, not changed. A row may hold -inf, but not only.
        temperature, top_k, top_p: (R,) on the host, ranges as in `framework.sampling.Sampling`.
        seeds, streams, positions: (R,) non-negative integers on the host: of the request, the sample's index within
            it, the place of the token to be drawn.
        upload: brings host arrays to the device of `logits` in one copy; None: one copy each.

    Nothing is read back from the device: off the CPU no shape depends on values.

    Returns:
        tokens (R,) int64 and bad (R,) bool, on the device of `logits`. A row is bad if it holds NaN or +inf or nothing
        above -inf: its token is -1, and the other rows are unharmed.
    """
    best, tokens = logits.max(dim=-1)
    bad = ~best.isfinite()
    temperature, top_k, top_p = (np.asarray(x, dtype=np.float64) for x in (temperature, top_k, top_p))
    drawn = np.flatnonzero(temperature > 0)
    if len(drawn):
        uniforms = uniform(seeds, streams, positions)
        filtered = (top_p < 1) | ((top_k > 0) & (top_k < logits.shape[1]))
        groups = [drawn[~filtered[drawn]], drawn[filtered[drawn]]]
        numbers = [np.stack([c[rows] for c in (temperature, top_k, top_p, uniforms)]) for rows in groups]
        sent = (upload or _copies(logits.device))(*groups, *numbers)
        for rows, index, per_row, method in zip(groups, sent[:2], sent[2:], _METHODS, strict=True):
            if len(rows):
                tokens[index] = method(_Rows(logits, best, index, per_row))
    return tokens.masked_fill_(bad, -1), bad


def logprobs(logits: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Natural log-probabilities under the raw logits (R, V) float32, before temperature and filters.

    Returns:
        chosen (R,) float32, of `tokens` (R,) int64; the ids (R, k) int64 and the log-probabilities (R, k) float32 of
        the k likeliest, likeliest first, equals by id. k is cut to V.
    """
    total = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(1, tokens.clamp(min=0)[:, None]) - total
    values, ids = _ranked(logits, min(k, logits.shape[1]))
    return chosen.squeeze(1), ids, values - total


def uniform(seeds: npt.ArrayLike, streams: npt.ArrayLike, positions: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """(R,) numbers in [0, 1), each a pure function of its (seed, stream, position): 53 bits of a chained splitmix64.

    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
    """
    state = np.zeros(np.shape(seeds), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for word in (seeds, streams, positions):
            state = _mix(state + np.uint64(0x9E3779B97F4A7C15) + np.asarray(word).astype(np.uint64))
    numbers: npt.NDArray[np.float64] = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


class _Rows:
    """The rows of one batch that are drawn alike, scaled so that the likeliest score is 0."""

    def __init__(self, logits: Tensor, best: Tensor, index: Tensor, numbers: Tensor):
        """index: (R,) int64, the rows. numbers: (4, R) float64, their temperature, top-k, top-p and uniform."""
        temperature, self.top_k, self.top_p, self.uniforms = numbers[:, :, None].unbind()
        scores, top = logits[index], best[index, None]
        # A bad row is drawn from as if flat: its token is thrown away.
        scores = torch.where(top.isfinite(), scores - top, 0.0)
        self.scores = scores.div_(temperature.clamp(min=_TINY_TEMPERATURE).float())

    def draw(self) -> Tensor:
        """(R,) ids, without filters: the inverse of the cumulative distribution in the vocabulary's order."""
        cumulative = self.scores.exp().cumsum(dim=-1, dtype=torch.float64)
        return _invert(cumulative, self.uniforms)

    def draw_filtered(self) -> Tensor:
        """(R,) ids, after top-k and top-p."""
        weights = self.scores.exp().double()
        total = weights.sum(dim=-1, keepdim=True)
        if self.scores.device.type == "cpu":
            values, ids = _gather_ranked(self.scores, self._candidates(weights, total))
        else:  # how many candidates there are is not known without waiting for the device
            values, ids = self.scores.sort(dim=-1, descending=True, stable=True)
        by_k = self.top_k > 0
        kth = values.gather(1, (self.top_k.long() - 1).clamp(min=0, max=values.shape[1] - 1))
        weights = values.exp().double().masked_fill(by_k & (values < kth), 0.0)
        total = torch.where(by_k, weights.sum(dim=-1, keepdim=True), total)
        before = weights.cumsum(dim=-1) - weights
        weights.masked_fill_(before >= self.top_p * total, 0.0)
        return ids.gather(1, _invert(weights.cumsum(dim=-1), self.uniforms)[:, None]).squeeze(1)

    def _candidates(self, weights: Tensor, total: Tensor) -> Tensor:
        """(R, V) bool: all that top-k can keep, or top-p where there is no top-k, and little more.

        Scores are put into buckets, so that only the candidates need sorting: equal scores share a bucket and higher
        ones never come later, so whole buckets from the best down to the one that completes the filter are enough.
        One more is taken, since sums by bucket round otherwise than sums in order.
        """
        buckets = self.scores.neg().sqrt_().mul_(_BUCKETS_PER_ROOT).clamp_(max=_BUCKETS - 1).long()
        by_k = self.top_k > 0
        amounts = torch.where(by_k, 1.0, weights)
        needed = torch.where(by_k, self.top_k, self.top_p * total)
        filled = weights.new_zeros(len(weights), _BUCKETS).scatter_add_(1, buckets, amounts).cumsum(dim=-1)
        return buckets <= (filled < needed).sum(dim=-1, keepdim=True) + 1


_METHODS = (_Rows.draw, _Rows.draw_filtered)


def _copies(device: torch.device) -> Upload:
    return lambda *arrays: [torch.from_numpy(array).to(device) for array in arrays]


def _invert(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """(R,) first index whose cumulative weight passes uniform * total: never one of weight 0."""
    target = uniforms * cumulative[:, -1:]
    places = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    return places.clamp_(max=cumulative.shape[1] - 1)


def _ranked(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row and their ids, largest first, ties by lowest id."""
    if count == scores.shape[1]:
        values, ids = scores.sort(dim=-1, descending=True, stable=True)
        return values, ids
    ids = scores.topk(count, dim=-1, sorted=False).indices.sort(dim=-1).values
    values, order = scores.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _gather_ranked(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The masked scores of each row and their ids, largest first, ties by lowest id, padded with -inf: (R, C)."""
    row, column = mask.nonzero(as_tuple=True)
    counts = mask.sum(dim=-1)
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    width = int(counts.max())
    values = scores.new_full((len(scores), width), -torch.inf)
    ids = column.new_zeros(len(scores), width)
    values[row, place], ids[row, place] = scores[row, column], column
    values, order = values.sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)
