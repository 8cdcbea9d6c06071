"""The parts of a decoder layer: what mixes tokens, and what follows on each alone."""

# Shapes: T packed tokens  R rows of them  B rows of a step  E hidden  H query heads  K kv heads  D head dim
#         I intermediate

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from framework.model.functions import linear, rms_norm, rotate
from framework.model.shape import Division, ModelShape
from framework.model.shard import Group

NewWeight = Callable[..., nn.Parameter]
"""(*shape) -> an empty weight of that shape, in the model's dtype on its device."""

Rope: TypeAlias = tuple[Tensor, Tensor, Tensor] | None
"""cos and signed sin (T, 1, R) of what is rotated of a head, and positions (T,); None: whoever attends rotates."""

Target = tuple[Tensor, tuple[int, ...]]
"""A view into a layer's weights, and the shape that the checkpoint's tensor must have."""

Targets = Mapping[str, Tensor | Target]
"""By Hugging Face's name within the layer; a view alone where the tensor has its shape."""

_CACHED_BYTES = 8 * 2**20
"""Bytes of gate and up: prefills of 2,048 rows in float32 took 4 to 12 % longer in one part than in four
(tests/bench/test_bench_serve.py, `-k in_parts`)."""


@dataclass(frozen=True, slots=True)
class Index:
    """What an indexer selects tokens by: queries (T, I, J), their weights (T, I), and the tokens' own keys (T, J)."""

    queries: Tensor
    weights: Tensor
    keys: Tensor


class Part(nn.Module):
    """Part of a layer.

    Attributes:
        group: the ranks that hold the rest of it; None: it is whole.
    """

    group: Group | None = None

    def targets(self) -> Targets:
        """Where a checkpoint's tensors go."""
        raise NotImplementedError

    def divisions(self) -> Mapping[str, Division]:
        """How ranks share its own weights, by name; those left out are whole on each."""
        return {}

    def project(self, x: Tensor, weight: nn.Parameter, bias: Tensor | None) -> Tensor:
        """x times weight plus bias, where each rank holds its columns of both factors; the bias is added once."""
        if self.group is None:
            return linear(x, weight, bias)
        total = self.group.sum(linear(x, weight, None))
        return total if bias is None else total.add_(bias)


class Mixer(Part):
    """What mixes the tokens of a layer.

    Attributes:
        sinks: (H,) one more logit a head in every softmax; None: none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sinks: nn.Parameter | None = None

    def forward(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        """(T, E) to (T, E), or (R, E) of `rows` alone. `attend`: see `framework.model.decoder.Attention`."""
        raise NotImplementedError


State: TypeAlias = tuple[Tensor, ...]
"""What a layer keeps of a sequence after some of its tokens."""

Save: TypeAlias = Callable[[int, State], object]
"""Takes the state after so many tokens of the sequence; it must copy what it keeps."""


class Recurrence(Mixer, ABC):
    """A layer with a recurrent state in place of attention: it hands inputs (T, ...), a row a token, to `attend`."""

    @abstractmethod
    def zero_state(self, device: torch.device) -> State:
        """Before the first token."""

    @abstractmethod
    def step(self, *inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One token of each of B rows: inputs and states (B, ...) -> outputs (B, ...) and the states after."""

    @abstractmethod
    def sequence(self, *inputs: Tensor, state: State, start: int, block: int, save: Save) -> Tensor:
        """T further tokens of one sequence, of which `start` came before -> outputs (T, ...).

        `save` gets the state at each end of a block of `block` tokens that is reached, and at the end.
        """


class SelfAttention(Mixer):
    """Attention to K kv heads, by H query heads.

    Args:
        num_query_rows: of `head_dim` rows each in the projection of queries, where they are not the query heads alone.
    """

    def __init__(self, config: ModelShape, weight: NewWeight, num_query_rows: int | None = None):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.eps, self.plus_one = config.rms_norm_eps, config.norms_plus_one
        hidden, width, rotated = config.hidden_size, config.head_dim, config.num_heads + config.num_kv_heads
        rows = (num_query_rows or config.num_heads) + 2 * config.num_kv_heads
        self.qkv = weight(rows * width, hidden)
        self.qkv_bias = weight(rows * width) if config.attention_bias else None
        # One weight row a head, so that queries and keys are normalised by one call.
        self.qk_norm = weight(rotated, width) if config.qk_norm else None
        self.output = weight(hidden, config.num_heads * width)
        self.output_bias = weight(hidden) if config.output_bias else None
        self.sinks = weight(config.num_heads) if config.sinks else None

    def forward(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        qkv = self.heads(x)
        qk, v = self.rotated(qkv[:, : -self.num_kv_heads], rope), qkv[:, -self.num_kv_heads :]
        return self.end(attend(qk[:, : self.num_heads], qk[:, self.num_heads :], v), rows)

    def heads(self, x: Tensor) -> Tensor:
        """Queries, keys and values (T, H + 2K, D) of x (T, E)."""
        return linear(x, self.qkv, self.qkv_bias).view(len(x), -1, self.head_dim)

    def rotated(self, qk: Tensor, rope: Rope) -> Tensor:
        """Queries and keys (T, H + K, D), normalised where they are, and rotated."""
        if self.qk_norm is not None and self.plus_one:
            qk = (rms_norm(qk.float(), None, self.eps) * (1 + self.qk_norm.float())).to(qk.dtype)
        elif self.qk_norm is not None:
            qk = rms_norm(qk, None, self.eps) * self.qk_norm
        return qk if rope is None else rotate(qk, rope)

    def end(self, mixed: Tensor, rows: Tensor | None) -> Tensor:
        """What attention gave (T, H, D), projected to (T, E), or (R, E)."""
        mixed = mixed if rows is None else mixed[rows]
        return self.project(mixed.flatten(1), self.output, self.output_bias)

    def targets(self) -> Targets:
        targets: dict[str, Tensor | Target] = {} if self.sinks is None else {"self_attn.sinks": self.sinks}
        for kind, qkv, output in (("weight", self.qkv, self.output), ("bias", self.qkv_bias, self.output_bias)):
            if qkv is not None:
                targets |= {f"self_attn.{name}.{kind}": part for name, part in self.projections(qkv).items()}
            if output is not None:
                targets[f"self_attn.o_proj.{kind}"] = output
        if self.qk_norm is not None:  # one row of the checkpoint fills the rows of all heads
            targets["self_attn.q_norm.weight"] = self.qk_norm[: self.num_heads], (self.head_dim,)
            targets["self_attn.k_norm.weight"] = self.qk_norm[self.num_heads :], (self.head_dim,)
        return targets

    def divisions(self) -> Mapping[str, Division]:
        heads, kv, width = self.num_heads, self.num_kv_heads, self.head_dim
        qkv = (heads, (len(self.qkv) - 2 * kv * width) // heads), (kv, width), (kv, width)
        return {
            "qkv": (0, qkv), "qkv_bias": (0, qkv), "qk_norm": (0, ((heads, 1), (kv, 1))),
            "output": (1, ((heads, width),)), "sinks": (0, ((heads, 1),)),
        }  # fmt: skip

    def projections(self, qkv: Tensor) -> dict[str, Tensor]:
        """The parts of `qkv` or its bias that a checkpoint has, by name."""
        kv = self.num_kv_heads * self.head_dim
        parts = torch.split(qkv, [len(qkv) - 2 * kv, kv, kv])
        return dict(zip(("q_proj", "k_proj", "v_proj"), parts, strict=True))


class Mlp(Part):
    """What follows in a layer, on each token alone."""

    def forward(self, x: Tensor) -> Tensor:
        """(T, E) to (T, E)."""
        raise NotImplementedError

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (T, E), in parts that are best computed one after another."""
        return (x,)


class GatedMlp(Mlp):
    """Down of activated gate times up.

    Args:
        width: I; None: the config's. room: begins its weights' names.
    """

    def __init__(self, config: ModelShape, weight: NewWeight, width: int | None = None, room: str = "mlp"):
        super().__init__()
        hidden, width, self.room = config.hidden_size, width or config.intermediate_size, room
        self.gate_up = weight(2 * width, hidden)
        self.gate_up_bias = weight(2 * width) if config.mlp_bias else None
        self.down = weight(hidden, width)
        self.down_bias = weight(hidden) if config.mlp_bias else None

    def forward(self, x: Tensor) -> Tensor:
        gate, up = linear(x, self.gate_up, self.gate_up_bias).chunk(2, -1)
        return self.project(self.activate(gate).mul_(up), self.down, self.down_bias)

    def activate(self, gate: Tensor) -> Tensor:
        """(T, I) to a tensor of its own."""
        return F.silu(gate)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """On a CPU in parts of so many rows that the activations of one stay in the cache."""
        if self.group is not None or getattr(self.gate_up, "packed", None) is None:
            return (x,)
        return torch.split(x, max(1, _CACHED_BYTES // (len(self.gate_up) * x.element_size())))

    def targets(self) -> Targets:
        targets: dict[str, Tensor | Target] = {}
        for kind, gate_up, down in (("weight", self.gate_up, self.down), ("bias", self.gate_up_bias, self.down_bias)):
            if gate_up is not None:
                targets |= {f"{self.room}.{name}.{kind}": part for name, part in self.projections(gate_up).items()}
            if down is not None:
                targets[f"{self.room}.down_proj.{kind}"] = down
        return targets

    def divisions(self) -> Mapping[str, Division]:
        columns = self.down.shape[1], 1
        return {"gate_up": (0, (columns, columns)), "gate_up_bias": (0, (columns, columns)), "down": (1, (columns,))}

    def projections(self, gate_up: Tensor) -> dict[str, Tensor]:
        """The parts of `gate_up` or its bias that a checkpoint has, by name."""
        return dict(zip(("gate_proj", "up_proj"), gate_up.chunk(2), strict=True))


class DecoderLayer(nn.Module):
    """Attention and MLP, or one of them, each behind an RMS norm and added to the residual stream."""

    def __init__(self, config: ModelShape, index: int, weight: NewWeight, attention: Mixer | None, mlp: Mlp | None):
        super().__init__()
        self.index, self.slides = index, config.slides(index)
        self.eps, self.plus_one = config.rms_norm_eps, config.norms_plus_one
        self.input_norm = None if attention is None else weight(config.hidden_size)
        self.attention = attention
        self.post_norm = None if mlp is None else weight(config.hidden_size)
        self.mlp = mlp

    def forward(self, x: Tensor, rope: Rope, attention: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        """(T, E) to (T, E), or (R, E) of `rows` alone; without `rope` attention gets q and k unrotated."""
        mixed = None if self.attention is None else self.mix(x, rope, partial(attention, self.index), rows)
        x = x if rows is None else x[rows]
        x = x if mixed is None else mixed + x
        for part in () if self.mlp is None else self.mlp.parts(x):
            part.add_(self.think(part))
        return x

    def mix(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None) -> Tensor:
        """What attention adds to x (T, E), or to `rows` of it."""
        assert self.attention is not None
        mixed: Tensor = self.attention(self.norm(x, self.input_norm), rope, attend, rows)
        return mixed

    def think(self, x: Tensor) -> Tensor:
        """What the MLP adds to x (T, E)."""
        assert self.mlp is not None
        added: Tensor = self.mlp(self.norm(x, self.post_norm))
        return added

    def norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """x (T, E) normalised."""
        return rms_norm(x, weight, self.eps, self.plus_one)

    def targets(self) -> Targets:
        """Where a checkpoint's tensors go, by Hugging Face's names within the layer."""
        parts = (("input", self.input_norm, self.attention), ("post_attention", self.post_norm, self.mlp))
        return {
            name: target for of, norm, part in parts if part is not None and norm is not None
            for name, target in {f"{of}_layernorm.weight": norm, **part.targets()}.items()
        }  # fmt: skip
