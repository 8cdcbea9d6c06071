"""The layers of Qwen3-Next and 3.5: the gated delta rule, in plain torch, and attention behind a gate."""

# Shapes: T packed tokens  B rows  E hidden  G key heads  N value heads  K key dim  V value dim  C convolved  W kernel

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from framework.model.config import ModelConfig
from framework.model.layers import NewWeight, Recurrence, Rope, Save, SelfAttention, State, Targets
from framework_models.recurrent import RecurrentConfig

_LARGEST_CHUNK = 64


class GatedDelta(Recurrence):
    """One layer: projections, a short convolution over time, the gated delta rule, a gated norm, a projection back.

    Of each value head the rule keeps a matrix S (K, V): S decays, forgets what it holds at the token's key, and takes
    up the token's value there; the output is read at the query. A state is the last W - 1 inputs of the convolution
    (C, W - 1), and that memory (N, K, V) in float32 at least; inputs are what is convolved (T, C), log decay (T, N) and
    write strength (T, N).

    Source: Yang et al. 2024, arXiv:2412.06464; transformers' Qwen3_5GatedDeltaNet, for the same numbers.
    """

    def __init__(self, config: RecurrentConfig, hidden: int, eps: float, weight: NewWeight):
        super().__init__()
        self.config, self._eps = config, eps

        values = config.num_value_heads * config.value_dim
        self.widths = [config.num_channels, values, config.num_value_heads, config.num_value_heads]
        self.inputs = weight(sum(self.widths), hidden)  # what is convolved, the gate, write strength, decay
        self.convolution = weight(config.num_channels, 1, config.kernel)
        self.decay_bias, self.decay_log = weight(config.num_value_heads), weight(config.num_value_heads)
        self.scale = weight(config.value_dim)
        self.output = weight(hidden, values)

    def forward(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        mixed, gate, strength, decay = self._split(F.linear(x, self.inputs))
        wide = self._wide
        rate = -self.decay_log.to(wide).exp() * F.softplus(decay.to(wide) + self.decay_bias)
        out = attend(mixed, rate, strength.sigmoid())
        out = F.rms_norm(out.to(wide), out.shape[-1:], None, self._eps).to(x.dtype) * self.scale
        out = (out * F.silu(gate.view_as(out).to(wide))).to(x.dtype)
        out = F.linear(out.flatten(1), self.output)
        return out if rows is None else out[rows]

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

    def step(self, *inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """See Recurrence."""
        (x, decay, strength), (before, memory) = inputs, state
        window = torch.cat((before, x.unsqueeze(-1)), -1)  # (B, C, W)
        q, k, v = self._heads((window * self.convolution[:, 0]).sum(-1))
        memory = memory * decay.exp()[..., None, None]
        found = (memory * k.unsqueeze(-1)).sum(-2)
        memory = memory + k.unsqueeze(-1) * ((v - found) * strength.unsqueeze(-1)).unsqueeze(-2)
        return (memory * q.unsqueeze(-1)).sum(-2).to(x.dtype), (window[..., 1:], memory)

    def sequence(self, *inputs: Tensor, state: State, start: int, block: int, save: Save) -> Tensor:
        """See Recurrence."""
        (x, decay, strength), (before, memory) = inputs, state
        convolved, last = torch.cat((before, x.T), -1), before.shape[-1]  # (C, W - 1 + T)
        count, chunk = len(x), _chunk(block)
        q, k, v = self._heads(F.conv1d(convolved, self.convolution, groups=len(convolved)).T)
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
                save(start + end, (convolved[:, end : end + last], memory))
        return out.movedim(0, 2).flatten(0, 1)[lead : lead + count].to(x.dtype)

    def targets(self) -> Targets:
        widths = dict(zip(("qkv", "z", "b", "a"), self.widths, strict=True))
        if self.config.by_key_head:
            widths = {"qkvz": widths["qkv"] + widths["z"], "ba": widths["b"] + widths["a"]}
        parts = zip(widths, torch.split(self.inputs, [*widths.values()]), strict=True)
        return {f"linear_attn.in_proj_{name}.weight": part for name, part in parts} | {
            "linear_attn.conv1d.weight": self.convolution,
            "linear_attn.dt_bias": self.decay_bias,
            "linear_attn.A_log": self.decay_log,
            "linear_attn.norm.weight": self.scale,
            "linear_attn.out_proj.weight": self.output,
        }


def _chunk(block: int) -> int:
    """The largest divisor of a block that is no larger than what is worth computing at once."""
    return max(size for size in range(1, min(block, _LARGEST_CHUNK) + 1) if not block % size)


class GatedAttention(SelfAttention):
    """What attention gives is multiplied by the sigmoid of a gate: each query head has two in `qkv`, itself and it."""

    def __init__(self, config: ModelConfig, weight: NewWeight):
        super().__init__(config, weight, 2 * config.num_heads)

    def forward(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        heads, kv = self.num_heads, self.num_kv_heads
        queries, k, v = torch.split(self.heads(x), [2 * heads, kv, kv], 1)
        qk = self.rotated(torch.cat((queries[:, ::2], k), 1), rope)
        return self.end(attend(qk[:, :heads], qk[:, heads:], v) * queries[:, 1::2].sigmoid(), rows)
