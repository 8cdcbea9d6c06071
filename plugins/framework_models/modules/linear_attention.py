"""Linear attention in plain torch: a short convolution over time, and a matrix a head that is written and read."""

# Shapes: T packed tokens  B rows  G key heads  N value heads  K key dim  V value dim  C convolved  W kernel

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from framework.model.layers import NewWeight, Recurrence, Save, State
from framework.model.shape import Division
from framework_models.recurrent import RecurrentConfig


class LinearAttention(Recurrence):
    """Of each value head it keeps a matrix S (K, V), which decays, takes up a token's value at its key, and is read at
    the query. A state is the last W - 1 inputs of the convolution (C, W - 1), and that memory (N, K, V) in float32 at
    least; inputs are what is convolved (T, C), log decay (T, N, 1), or (T, N, K) of each row of S, and write strength
    (T, N).

    Attributes:
        CORRECTS: what the memory holds at the key already is taken off the value: the delta rule.
        CHUNK: most tokens that are worth computing at once.
        convolution_bias: (C,), None: there is none. skip: (N,), by which values are added to outputs; None: they are
            not.
    """

    CORRECTS: ClassVar[bool] = True
    CHUNK: ClassVar[int] = 64

    def __init__(self, config: RecurrentConfig, weight: NewWeight):
        super().__init__()
        self.config = config
        self.convolution = weight(config.num_channels, 1, config.kernel)
        self.convolution_bias: nn.Parameter | None = None
        self.skip: nn.Parameter | None = None

    def heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Heads of (T, C): queries and keys (T, N, K) as they are multiplied, values (T, N, V)."""
        raise NotImplementedError

    def scores(self, left: Tensor, k: Tensor, total: Tensor) -> Tensor:
        """Products of two tokens of a chunk, of left (..., N, chunks, c, K) with k (N, chunks, c, K), of which the
        second is not later, decayed from there to the first: (..., N, chunks, c, c)."""
        return left @ k.transpose(2, 3) * between(total).squeeze(-1)

    @property
    def convolved(self) -> tuple[tuple[int, int], ...]:
        """What is convolved, in its order: so many heads of so many elements each."""
        config = self.config
        keys = config.num_key_heads, config.key_dim
        return keys, keys, (config.num_value_heads, config.value_dim)

    def divisions(self) -> Mapping[str, Division]:
        each = 0, ((self.config.num_value_heads, 1),)
        return {"convolution": (0, self.convolved), "decay_bias": each, "decay_log": each}

    @property
    def wide(self) -> torch.dtype:
        """In which memories and what goes into them are computed."""
        return torch.promote_types(self.convolution.dtype, torch.float32)

    def zero_state(self, device: torch.device) -> State:
        """See Recurrence."""
        config = self.config
        convolved = torch.zeros(config.num_channels, config.kernel - 1, dtype=self.convolution.dtype, device=device)
        return convolved, torch.zeros(
            config.num_value_heads, config.key_dim, config.value_dim, dtype=self.wide, device=device
        )

    def step(self, *inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """See Recurrence."""
        (x, decay, strength), (before, memory) = inputs, state
        window = torch.cat((before, x.unsqueeze(-1)), -1)  # (B, C, W)
        convolved = (window * self.convolution[:, 0]).sum(-1)
        q, k, v = self.heads(convolved if self.convolution_bias is None else convolved + self.convolution_bias)
        memory = memory * decay.exp().unsqueeze(-1)
        new = v - (memory * k.unsqueeze(-1)).sum(-2) if self.CORRECTS else v
        memory = memory + k.unsqueeze(-1) * (new * strength.unsqueeze(-1)).unsqueeze(-2)
        out = (memory * q.unsqueeze(-1)).sum(-2)
        return self._skipped(out, v).to(x.dtype), (window[..., 1:], memory)

    def sequence(self, *inputs: Tensor, state: State, start: int, block: int, save: Save) -> Tensor:
        """See Recurrence."""
        (x, decay, strength), (before, memory) = inputs, state
        convolved, last = torch.cat((before, x.T), -1), before.shape[-1]  # (C, W - 1 + T)
        count, chunk = len(x), self._chunk(block)
        q, k, values = self.heads(F.conv1d(convolved, self.convolution, self.convolution_bias, groups=len(convolved)).T)
        lead = start % chunk
        tail = -(lead + count) % chunk

        def chunks(a: Tensor) -> Tensor:
            """(T, N, ...) to (N, chunks, chunk, ...), which end where blocks do; padding changes nothing."""
            padded = F.pad(a.to(self.wide), (0, 0) * (a.dim() - 1) + (lead, tail))
            return padded.reshape(-1, chunk, *a.shape[1:]).movedim(2, 0)

        q, k, v, decay, strength = map(chunks, (q, k, values, decay, strength))
        total = decay.cumsum(2)  # log decay from the chunk's begin through each token
        fresh, known = v * strength.unsqueeze(-1), None
        if self.CORRECTS:
            # What tokens of a chunk write depends on what the ones before wrote: a triangular system.
            written = k * strength.unsqueeze(-1)
            inside, system = self.scores(torch.stack((q, written)), k, total)
            right = torch.cat((fresh, written * total.exp()), -1)
            solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
            fresh, known = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]
        else:
            inside = self.scores(q, k, total)
        q = q * total.exp()
        k = k * (total[..., -1:, :] - total).exp()
        out = torch.empty_like(v)
        for index in range(out.shape[1]):
            new = fresh[:, index] if known is None else fresh[:, index] - known[:, index] @ memory
            out[:, index] = q[:, index] @ memory + inside[:, index] @ new
            memory = memory * total[:, index, -1].exp().unsqueeze(-1) + k[:, index].transpose(1, 2) @ new
            end = min((index + 1) * chunk - lead, count)
            if end == count or not (start + end) % block:
                save(start + end, (convolved[:, end : end + last], memory))
        out = out.movedim(0, 2).flatten(0, 1)[lead : lead + count]
        return self._skipped(out, values).to(x.dtype)

    def _skipped(self, out: Tensor, v: Tensor) -> Tensor:
        return out if self.skip is None else out + self.skip.unsqueeze(-1) * v

    def _chunk(self, block: int) -> int:
        """The largest divisor of a block that is no larger than what is worth computing at once."""
        return max(size for size in range(1, min(block, self.CHUNK) + 1) if not block % size)


class DeltaRule(LinearAttention):
    """Queries, keys and values are convolved; queries and keys have length 1, and queries are scaled."""

    def heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        width = config.num_key_heads * config.key_dim
        widths = [width, width, config.num_value_heads * config.value_dim]
        q, k, v = torch.split(F.silu(convolved).to(self.wide), widths, -1)
        q, k = (x.reshape(len(x), -1, config.key_dim) for x in (q, k))
        v = v.reshape(len(v), -1, config.value_dim)
        shared = config.num_value_heads // config.num_key_heads
        q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
        return (q * config.key_dim**-0.5).repeat_interleave(shared, 1), k.repeat_interleave(shared, 1), v


def between(total: Tensor) -> Tensor:
    """By what is decayed from each token of a chunk to each that is not before it, 0 to those before.

    Args:
        total: (..., c, K or 1) log decay from the chunk's begin through each token.

    Returns:
        (..., c, c, K or 1): to, from.
    """
    apart = total.unsqueeze(-2) - total.unsqueeze(-3)
    earlier = torch.ones(apart.shape[-3:-1], dtype=torch.bool, device=apart.device).triu(1)
    return apart.masked_fill(earlier.unsqueeze(-1), -torch.inf).exp()
