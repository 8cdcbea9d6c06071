"""Gated delta rule: the layers with a recurrent state of Qwen3-Next and 3.5, in plain torch."""

# Shapes: T packed tokens  B rows  E hidden  G key heads  N value heads  K key dim  V value dim  C convolved  W kernel

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from framework.model.config import RecurrentConfig

State: TypeAlias = tuple[Tensor, Tensor]
"""After some tokens of a sequence: the last W - 1 inputs of the convolution (C, W - 1), and the memory (N, K, V) in
float32 at least."""

Save: TypeAlias = Callable[[int, State], object]
"""Takes the state after so many tokens of the sequence; it must copy what it keeps."""

_LARGEST_CHUNK = 64


class GatedDelta(nn.Module):
    """One layer: projections, a short convolution over time, the gated delta rule, a gated norm, a projection back.

    Of each value head the rule keeps a matrix S (K, V): S decays, forgets what it holds at the token's key, and takes
    up the token's value there; the output is read at the query.

    Source: Yang et al. 2024, arXiv:2412.06464; transformers' Qwen3_5GatedDeltaNet, for the same numbers.
    """

    def __init__(self, config: RecurrentConfig, hidden: int, eps: float, weight: Callable[..., nn.Parameter]):
        super().__init__()
        self.config, self._eps = config, eps

        values = config.num_value_heads * config.value_dim
        self.widths = [config.num_channels, values, config.num_value_heads, config.num_value_heads]
        self.inputs = weight(sum(self.widths), hidden)  # what is convolved, the gate, write strength, decay
        self.convolution = weight(config.num_channels, 1, config.kernel)
        self.decay_bias, self.decay_log = weight(config.num_value_heads), weight(config.num_value_heads)
        self.scale = weight(config.value_dim)
        self.output = weight(hidden, values)

    def forward(self, x: Tensor, recur: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """(T, E) to (T, E). `recur`: (T, C) inputs, (T, N) log decay, (T, N) write strength -> (T, N, V)."""
        mixed, gate, strength, decay = self._split(F.linear(x, self.inputs))
        wide = self._wide
        rate = -self.decay_log.to(wide).exp() * F.softplus(decay.to(wide) + self.decay_bias)
        out = recur(mixed, rate, strength.sigmoid())
        out = F.rms_norm(out.to(wide), out.shape[-1:], None, self._eps).to(x.dtype) * self.scale
        out = (out * F.silu(gate.view_as(out).to(wide))).to(x.dtype)
        return F.linear(out.flatten(1), self.output)

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        """What was projected, of `widths`: what is convolved, the gate, write strength, decay."""
        config, heads = self.config, self.config.num_key_heads
        if not config.by_key_head:
            return torch.split(x, self.widths, -1)
        each = config.num_value_heads // heads
        wide, narrow = torch.split(x, [sum(self.widths[:2]), sum(self.widths[2:])], -1)
        widths = [config.key_dim, config.key_dim, each * config.value_dim, each * config.value_dim]
        q, k, v, gate = (part.flatten(1) for part in torch.split(wide.reshape(len(x), heads, -1), widths, -1))
        strength, decay = (part.flatten(1) for part in torch.split(narrow.reshape(len(x), heads, -1), each, -1))
        return torch.cat((q, k, v), -1), gate, strength, decay

    @property
    def _wide(self) -> torch.dtype:
        """In which memories and what goes into them are computed."""
        return torch.promote_types(self.convolution.dtype, torch.float32)

    def zero_state(self, device: torch.device) -> State:
        """Before the first token."""
        config = self.config
        convolved = torch.zeros(config.num_channels, config.kernel - 1, dtype=self.convolution.dtype, device=device)
        return convolved, torch.zeros(
            config.num_value_heads, config.key_dim, config.value_dim, dtype=self._wide, device=device
        )

    def _heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Heads of (T, C): queries and keys (T, N, K) of length 1, queries scaled; values (T, N, V)."""
        config = self.config
        width = config.num_key_heads * config.key_dim
        widths = [width, width, config.num_value_heads * config.value_dim]
        q, k, v = torch.split(F.silu(convolved).to(self._wide), widths, -1)
        q, k = (x.reshape(len(x), -1, config.key_dim) for x in (q, k))
        v = v.reshape(len(v), -1, config.value_dim)
        shared = config.num_value_heads // config.num_key_heads
        q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
        return (q * config.key_dim**-0.5).repeat_interleave(shared, 1), k.repeat_interleave(shared, 1), v

    def step(self, x: Tensor, decay: Tensor, strength: Tensor, state: State) -> tuple[Tensor, State]:
        """One token of each of B rows: (B, C), (B, N), (B, N) and states (B, ...) -> (B, N, V) and the states after."""
        before, memory = state
        window = torch.cat((before, x.unsqueeze(-1)), -1)  # (B, C, W)
        q, k, v = self._heads((window * self.convolution[:, 0]).sum(-1))
        memory = memory * decay.exp()[..., None, None]
        found = (memory * k.unsqueeze(-1)).sum(-2)
        memory = memory + k.unsqueeze(-1) * ((v - found) * strength.unsqueeze(-1)).unsqueeze(-2)
        return (memory * q.unsqueeze(-1)).sum(-2).to(x.dtype), (window[..., 1:], memory)

    def sequence(
        self, x: Tensor, decay: Tensor, strength: Tensor, state: State, start: int, block: int, save: Save
    ) -> Tensor:
        """T further tokens of one sequence, of which `start` came before: (T, C), (T, N), (T, N) -> (T, N, V).

        `save` gets the state at each end of a block of `block` tokens that is reached, and at the end.
        """
        before, memory = state
        inputs, last = torch.cat((before, x.T), -1), before.shape[-1]  # (C, W - 1 + T)
        count, chunk = len(x), _chunk(block)
        q, k, v = self._heads(F.conv1d(inputs, self.convolution, groups=len(inputs)).T)
        lead = start % chunk
        tail = -(lead + count) % chunk

        def chunks(a: Tensor) -> Tensor:
            """(T, N, ...) to (N, chunks, chunk, ...), which end where blocks do; padding changes nothing."""
            padded = F.pad(a.to(self._wide), (0, 0) * (a.dim() - 1) + (lead, tail))
            return padded.reshape(-1, chunk, *a.shape[1:]).movedim(2, 0)

        q, k, v, decay, strength = map(chunks, (q, k, v, decay, strength))
        total = decay.cumsum(2)  # log decay from the chunk's begin through each token
        apart = total.unsqueeze(3) - total.unsqueeze(2)
        between = apart.masked_fill(torch.ones_like(apart, dtype=torch.bool).triu(1), -torch.inf).exp()
        # What tokens of a chunk write depends on what the ones before wrote: a triangular system.
        written = k * strength.unsqueeze(-1)
        system = written @ k.transpose(2, 3) * between
        right = torch.cat((v * strength.unsqueeze(-1), written * total.exp().unsqueeze(-1)), -1)
        solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        fresh, known = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]
        inside = q @ k.transpose(2, 3) * between
        q = q * total.exp().unsqueeze(-1)
        k = k * (total[..., -1:] - total).exp().unsqueeze(-1)
        out = torch.empty_like(v)
        for index in range(out.shape[1]):
            new = fresh[:, index] - known[:, index] @ memory
            out[:, index] = q[:, index] @ memory + inside[:, index] @ new
            memory = memory * total[:, index, -1].exp()[:, None, None] + k[:, index].transpose(1, 2) @ new
            end = min((index + 1) * chunk - lead, count)
            if end == count or not (start + end) % block:
                save(start + end, (inputs[:, end : end + last], memory))
        return out.movedim(0, 2).flatten(0, 1)[lead : lead + count].to(x.dtype)


def _chunk(block: int) -> int:
    """The largest divisor of a block that is no larger than what is worth computing at once."""
    return max(size for size in range(1, min(block, _LARGEST_CHUNK) + 1) if not block % size)


class SequenceStates:
    """The states of one sequence that is computed call by call, without blocks."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, State]] = {}

    def recur(self, layer: int, delta: GatedDelta, x: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
        """That layer's `sequence` over the next tokens."""
        start, state = self._held.get(layer) or (0, delta.zero_state(x.device))

        def save(count: int, after: State) -> None:
            self._held[layer] = count, after

        return delta.sequence(x, decay, strength, state, start, _LARGEST_CHUNK, save)
