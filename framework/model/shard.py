"""The part of a model that one rank holds.

Megatron's division (Shoeybi et al. 2019, arXiv:1909.08053 §3): q, k, v by heads and gate, up by columns, so that
attention and the activation need nobody else; the output and down projections by rows, so that one sum over the ranks
ends each; embedding and head by vocabulary; recurrent layers and their states by heads, experts each by columns. Norms
of whole tokens and the residual stream are whole on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from framework.errors import InvalidArgument
from framework.model.shape import Division, ModelShape

S = TypeVar("S", bound=ModelShape)


class Group(Protocol):
    """What a decoder needs of the ranks that hold its other parts: all make the same calls in the same order."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's `x`, in place and returned: the same bits on every rank."""

    def gather(self, x: Tensor, widths: list[int]) -> Tensor:
        """x (R, widths[rank]) of every rank side by side on rank 0; its own on the others."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of rank `rank` of `size`. One rank holds the whole."""

    rank: int = 0
    size: int = 1

    def require(self, config: ModelShape) -> None:
        """Raise unless a model of this shape divides over `size` ranks.

        Heads divide evenly. With fewer kv heads than ranks, each is held by as many ranks as share its queries. The
        vocabulary and the MLP may divide unevenly, by one.

        Raises:
            InvalidArgument: all the reasons why not, and the sizes that would do.
        """
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise InvalidArgument(f"tensor_parallel_size must be a whole number of at least 1, found {self.size!r}")
        reasons = _reasons(config, self.size)
        if reasons:
            sizes = [n for n in range(1, config.num_heads + 1) if not _reasons(config, n)]
            raise InvalidArgument(
                f"tensor_parallel_size {self.size} does not divide this {config.family} model: {'; '.join(reasons)}. "
                f"Would work: {', '.join(map(str, sizes))}"
            )

    def config(self, config: S) -> S:
        """The shape of this rank's part: its heads, its kv heads, its slice of the MLP. The vocabulary stays whole.

        Raises:
            InvalidArgument: see `require`.
        """
        self.require(config)
        return replace(config, **config.divided(lambda count: len(self.split(count))))

    def kv_heads(self, config: ModelShape) -> range:
        """The kv heads its query heads read. With fewer kv heads than ranks one, which other ranks hold too."""
        return self.split(config.num_kv_heads)

    def split(self, count: int) -> range:
        """This rank's share of `count` things in order; earlier ranks take one more where it does not divide. Of fewer
        than ranks one, which other ranks hold too."""
        if count < self.size:
            first = self.rank * count // self.size
            return range(first, first + 1)
        each, more = divmod(count, self.size)
        start = self.rank * each + min(self.rank, more)
        return range(start, start + each + (self.rank < more))

    def cut(self, whole: Tensor, division: Division | None) -> Tensor:
        """This rank's part of a weight, all of it where it is not divided."""
        if division is None or self.size == 1:
            return whole
        dim, parts = division
        if not parts:
            return whole if self.rank == 0 else torch.zeros_like(whole)
        pieces, start = [], 0
        for count, width in parts:
            share = self.split(count)
            pieces.append(whole.narrow(dim, start + share.start * width, len(share) * width))
            start += count * width
        return torch.cat(pieces, dim)


WHOLE = Shard()


def _reasons(config: ModelShape, size: int) -> list[str]:
    reasons = [*config.undivided(size)] if size > 1 else []
    heads, kv = config.num_heads, config.num_kv_heads
    if heads % size:
        reasons.append(f"num_heads {heads} is not a multiple of it")
    if max(kv, size) % min(kv, size):
        reasons.append(f"num_kv_heads {kv} is neither a multiple nor a divisor of it")
    for name in ("vocab_size", "intermediate_size"):
        if getattr(config, name) < size:
            reasons.append(f"{name} {getattr(config, name)} is smaller")
    return reasons
