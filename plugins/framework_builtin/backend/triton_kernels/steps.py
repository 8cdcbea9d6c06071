"""Steps that launch every kernel of a spec, over tensors that lie as an engine's do and stand for them.

What Triton compiles for a launch follows from its arguments: types, alignment, integers equal to 1, constants. So it is
taken from launches, here made without a device: the launcher's own code chooses tiles, splits and arguments.
"""

# Shapes: T query tokens (packed)  B rows  N blocks  S tokens a block  H query heads  K kv heads  D head dim

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from framework.interfaces.backend import AttentionSpec, Batch, LayerKV, Rope
from framework_builtin.backend.triton_kernels import plan as plans
from framework_builtin.backend.triton_kernels.configs import ArchConfig
from framework_builtin.backend.triton_kernels.launch import Launcher

LONG, SHORT = 8192, 100
"""Contexts, tokens: of one that is split where few rows have it, and of one that never is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step's launches.

    Attributes:
        rows, queries: rows, and new tokens of each.
        context: tokens of each row.
        lse: the log-sum-exp is asked for.
        rope: None: nothing is rotated; else which elements of a head are a pair, "halves" or "neighbours".
        attends: without, only `rows * queries` tokens are written.
        copies: blocks to copy, (source, destination) each; `ordered`: one after another.
    """

    rows: int = 2
    queries: int = 1
    context: int = LONG
    lse: bool = False
    rope: str | None = None
    attends: bool = True
    copies: int = 0
    ordered: bool = True


def run(step: Step, launcher: Launcher, spec: AttentionSpec) -> None:
    """Have `launcher` make the step's launches over stand-ins. They may be launched into nothing only."""
    pool = _pool(spec)
    if step.copies:
        launcher.copy_blocks(pool, torch.zeros(step.copies, 2, dtype=torch.int64), ordered=step.ordered)
        return
    dtype = getattr(torch, spec.dtype)
    tokens, heads = step.rows * step.queries, (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    packed = torch.zeros(tokens, sum(heads), spec.head_dim, dtype=dtype)  # one projection's
    q, k, v = torch.split(packed, list(heads), dim=1)
    if not step.attends:
        slots = torch.zeros(tokens, dtype=torch.int64)
        if step.rope is None:
            launcher.write(pool, k, v, slots)
        else:
            angles = torch.zeros(2, tokens, spec.head_dim // 2, dtype=dtype)
            rope = Rope(angles[0].clone(), angles[1].clone(), interleaved=step.rope == "neighbours")
            launcher.rotate_and_write(pool, q, k, v, rope, slots)
        return
    q = q.contiguous()  # rotated
    out, lse = torch.empty_like(q), torch.empty(tokens, spec.num_heads) if step.lse else None
    launcher.attend(q, pool, launcher.plan(_batch(step, spec)), out, lse)


def all_of(
    spec: AttentionSpec, arch: ArchConfig, *, num_sms: int, max_rows: int, ropes: tuple[str | None, ...]
) -> Iterator[Step]:
    """Steps that launch, between them, every kernel that serving this spec does.

    Args:
        num_sms: multiprocessors of the device, which decide how many splits are planned for.
        max_rows: decode rows of a step, at most.
        ropes: ways in which new tokens are rotated; None: not.
    """
    planned: dict[tuple[int, int], int] = {}
    for rows in range(1, max_rows + 1):
        shape = plans.decode_shape(spec, arch, rows, LONG)
        share = num_sms * arch.items_per_sm // spec.num_kv_heads
        work = plans.split_of(rows, LONG, shape.n, share, arch.min_split_tokens, None).num_work
        planned.setdefault((plans.next_size(rows), plans.next_size(work)), rows)
    yield Step(context=SHORT)
    yield from (Step(rows=rows) for rows in planned.values())
    yield Step(queries=SHORT, context=SHORT)
    yield Step(rows=1, queries=20)
    yield from (Step(attends=False, rope=rope) for rope in ropes)
    yield Step(copies=2)
    yield Step(copies=2, ordered=False)


def launcher_for(
    spec: AttentionSpec,
    arch: ArchConfig,
    wrap: Callable[[Callable[..., None]], Any],
    *,
    num_sms: int = 132,
    tma: bool = False,
    shared_tokens: int | None = None,
) -> Launcher:
    """A launcher of `arch`'s kernels on tensors of the CPU, by `wrap`, which must not run them."""
    return Launcher(
        spec,
        "cpu",
        arch=arch,
        num_sms=num_sms,
        split_tokens=None,
        tma=tma,
        shared_tokens=shared_tokens,
        wrap=wrap,
    )


def _batch(step: Step, spec: AttentionSpec) -> Batch:
    rows, tokens = step.rows, step.rows * step.queries
    return Batch(
        block_tables=torch.zeros(rows, -(-step.context // spec.block_size), dtype=torch.int32),
        context_lens=torch.full((rows,), step.context, dtype=torch.int32),
        query_starts=torch.arange(rows + 1, dtype=torch.int32) * step.queries,
        slot_mapping=torch.zeros(tokens, dtype=torch.int64),
        max_query_len=step.queries,
        max_context_len=step.context,
        num_decodes=rows if step.queries == 1 else 0,
    )


def _pool(spec: AttentionSpec) -> LayerKV:
    """Two blocks."""
    inner = (spec.block_size, spec.num_kv_heads) if spec.layout == "NHD" else (spec.num_kv_heads, spec.block_size)
    dtype = getattr(torch, spec.kv_dtype or spec.dtype)
    shape = (2, *inner) if spec.kv_dtype == "int8" else (spec.num_kv_heads,)

    def stored() -> tuple[Tensor, Tensor | None]:
        scaled = spec.kv_dtype not in (None, spec.dtype)
        scale = torch.empty(shape) if scaled else None
        return torch.empty((2, *inner, spec.head_dim), dtype=dtype), scale

    (k, k_scale), (v, v_scale) = stored(), stored()
    sinks = torch.zeros(spec.num_heads) if spec.sinks else None
    slopes = torch.zeros(spec.num_heads) if spec.alibi else None
    return LayerKV(k, v, spec.layout, k_scale, v_scale, sinks, slopes)
