"""Checks of a backend on whole batches: unequal rows, many heads, split rows, new values, strided pools, replays."""

from __future__ import annotations

import math
import unittest
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from framework.errors import FrameworkError
from framework.interfaces.backend import AttentionBackend, AttentionSpec, LayerKV
from framework.testing.attention_cases import Case, Problem, build_problem, single_row, torch_dtype
from framework.testing.attention_runs import Make, judge, prepared, run_attention, supported, wrong_lse
from framework.testing.recorder import ReplayRecorder

if TYPE_CHECKING:
    from torch import Tensor


def check_rows_of_unequal_length_decode(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Plain decode of a ragged batch, the commonest of all: no window, cap or sink; then the same rows as chunks."""
    for size in (16,) if cases == "small" else (16, 3, 32):
        try:
            spec = supported(make, device, block_size=size)
        except unittest.SkipTest:
            spec = supported(make, device)
        size = spec.block_size
        contexts = (5 * size + 3, 1, size, size - 1 or 1, 2 * size + 1, size + 1, 3 * size + 2)
        for queries in (1, 2) if cases == "full" else (1,):
            rows = sorted(((context, min(queries, context)) for context in contexts), key=_is_chunk)
            case = Case(spec, tuple(row[0] for row in rows), tuple(row[1] for row in rows), seed=size)
            _judged(make, build_problem(case, device), lse=True)


def _is_chunk(row: tuple[int, int]) -> bool:
    return row[1] != 1


def check_many_query_heads_share_one_kv_head(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """32 and 128 query heads over one KV head: no group is cut to what one tile holds."""
    for heads in (32,) if cases == "small" else (32, 128):
        spec = supported(make, device, num_heads=heads, num_kv_heads=1)
        size = spec.block_size
        _judged(make, build_problem(Case(spec, (size + 1, 2, 2 * size), (1, 1, 3), seed=heads), device), lse=True)


def check_long_rows_beside_short_ones(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Contexts of one block and of dozens in one batch: wherever a row is split, its parts merge right, lse too."""
    spec = supported(make, device)
    size = spec.block_size
    longest = 20 if cases == "small" else 70
    for contexts in ((longest * size + 1, 1), (2, 33 * size // 2, 1, longest * size - 1)):
        _judged(make, build_problem(Case(spec, contexts, (1,) * len(contexts), seed=len(contexts)), device), lse=True)


def check_rows_may_share_blocks(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Decode rows whose tables begin alike, part early, or agree in some blocks only; and each alone if it is the same.

    With every feature that changes what a shared key is worth to one row and not to another.
    """
    length = 20 if cases == "small" else 70
    for changes in ({}, {"sliding_window": 1000}, {"alibi": True}):
        try:
            spec = supported(make, device, **changes)
        except unittest.SkipTest:
            continue
        size = spec.block_size
        contexts = tuple(length * size - rest for rest in (0, 1, 2 * size + 1, size, 0, size - 1))
        problem = build_problem(Case(spec, contexts, (1,) * len(contexts), seed=3), device)
        tables = problem.batch.block_tables
        for row, shared in enumerate((length, length - 1, length - 3, length // 2, 1, 0)):
            tables[row, :shared] = tables[0, :shared].clone()
        tables[5, ::2] = tables[0, ::2].clone()  # the last row has every other block of the first
        _judged(make, problem, lse=True)
        if make().capabilities.batch_invariant:
            backend = prepared(make, spec, device)
            together, _ = run_attention(backend, problem)
            for row in range(len(contexts)):
                alone, _ = run_attention(backend, single_row(problem, row))
                assert torch.equal(alone[0], together[row]), (
                    f"{problem.case}: row {row} depends on who shares its blocks"
                )


def _judged(make: Make, problem: Problem, *, lse: bool = False, backend: AttentionBackend | None = None) -> None:
    backend = backend or prepared(make, problem.spec, str(problem.q.device))
    declared = "lse" in backend.capabilities.features
    for asked in (False, True) if lse and declared else (False,):
        out, sums = run_attention(backend, problem, lse=asked)
        verdict = judge(out, problem, backend.capabilities.lossy)
        assert verdict.ok, f"{verdict}{' (with lse)' if asked else ''}"
        wrong = [] if sums is None else wrong_lse(sums, problem, verdict)
        assert not wrong, wrong[0]


def check_values_decide_and_not_shapes(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """One object, the same shapes, the same tensors even, other values in them: nothing is remembered by shape."""
    spec = supported(make, device)
    size = spec.block_size
    case = Case(spec, (2 * size + 1, size - 1 or 1, size), (1, 1, 1), seed=1)
    backend = prepared(make, spec, device)
    problem = build_problem(case, device)
    _judged(make, problem, backend=backend)
    for seed in (2, 3):
        _judged(make, build_problem(replace(case, seed=seed), device, placement=seed), backend=backend)
        _judged(
            make, _overwrite(problem, build_problem(replace(case, seed=seed), device, placement=seed)), backend=backend
        )
    shorter = build_problem(replace(case, contexts=(size + 1, 1, size), seed=4), device, extra_blocks=4, extra_width=3)
    _judged(make, _overwrite(problem, shorter), backend=backend)


def _overwrite(into: Problem, other: Problem) -> Problem:
    """`other`'s values in the tensors of `into`, which have its shapes; the batch object stays, host copies too."""
    pairs = [(into.q, other.q), (into.pool.k, other.pool.k), (into.pool.v, other.pool.v)]
    batch, new = into.batch, other.batch
    pairs += [(getattr(batch, n), getattr(new, n)) for n in ("context_lens", "query_starts", "slot_mapping")]
    for mine, theirs in pairs:
        mine.copy_(theirs)
    width = min(batch.block_tables.shape[1], new.block_tables.shape[1])
    batch.block_tables.zero_()
    batch.block_tables[:, :width] = new.block_tables[:, :width]
    batch.host_context_lens[:], batch.host_query_starts[:] = new.host_context_lens, new.host_query_starts
    batch.max_context_len, batch.max_query_len = new.max_context_len, new.max_query_len
    return Problem(other.case, into.q, into.pool, batch)


def check_interleaved_pools_are_read_and_written(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """K and V of a block side by side in one tensor, so that blocks are not contiguous: right, or refused."""
    spec = supported(make, device)
    size = spec.block_size
    backend = prepared(make, spec, device)
    problem = build_problem(Case(spec, (3 * size + 1, size, 2), (1, 1, 1)), device)
    plain = problem.pool
    both = torch.stack((plain.k, plain.v), dim=1)
    problem.pool = LayerKV(both[:, 0], both[:, 1], plain.layout, plain.k_scale, plain.v_scale)
    try:
        out, _ = run_attention(backend, problem)
    except FrameworkError:
        return
    verdict = judge(out, problem, backend.capabilities.lossy)
    assert verdict.ok, f"K and V interleaved: {verdict}"
    _check_interleaved_writes(backend, problem.pool, device)


def _check_interleaved_writes(backend: AttentionBackend, pool: LayerKV, device: str) -> None:
    spec, size = backend.spec, pool.block_size
    want_k, want_v = pool.k.cpu().clone(), pool.v.cpu().clone()
    shape = (3, spec.num_kv_heads, spec.head_dim)
    k, v = (torch.randn(shape, generator=torch.Generator().manual_seed(s)).to(pool.k.dtype) for s in (1, 2))
    slots = [size, 2 * size + size // 2, 3 * size - 1]
    for token, slot in enumerate(slots):
        at: Any = (slot // size, slot % size) if spec.layout == "NHD" else (slot // size, slice(None), slot % size)
        want_k[at], want_v[at] = k[token], v[token]
    want_k[1], want_v[1] = want_k[2].clone(), want_v[2].clone()
    backend.write(pool, k.to(device), v.to(device), torch.tensor(slots, dtype=torch.int64, device=device))
    backend.copy_blocks(pool, torch.tensor([[2, 1]], dtype=torch.int64, device=device))
    for name, got, want in (("K", pool.k, want_k), ("V", pool.v, want_v)):
        same = torch.equal(got.cpu().contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))
        assert same, f"K and V interleaved: after writing slots {slots} and copying block 2 to 1, {name} is wrong"


def check_narrow_writes_round_to_nearest(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Into a pool of fewer bits each value goes as the nearest one it can hold, scaled by its head: never cut off."""
    specs = list(_narrow_specs(make, device))
    if not specs:
        raise unittest.SkipTest("no narrower KV dtype is declared")
    for spec in specs:
        backend = prepared(make, spec, device)
        pool = build_problem(Case(spec, (3 * spec.block_size,), (1,)), device).pool
        tokens = 2 * spec.block_size
        shape = (tokens, spec.num_kv_heads, spec.head_dim)
        k, v = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in (3, 4))
        k, v = k.to(torch_dtype(spec.dtype)), v.to(torch_dtype(spec.dtype))
        slots = torch.arange(tokens) + spec.block_size
        backend.write(pool, k.to(device), v.to(device), slots.to(device))
        for name, stored, values, scale in (("K", pool.k, k, pool.k_scale), ("V", pool.v, v, pool.v_scale)):
            assert scale is not None
            if scale.dim() == 3:
                _check_int8(name, stored, scale, values, slots, spec)
                backend.copy_blocks(pool, torch.tensor([[1, 3]], dtype=torch.int64, device=device))
                same = torch.equal(scale[3], scale[1]) and torch.equal(stored[3], stored[1])
                assert same, f"{name} in int8: after copying block 1 to 3 its values or its scales are not those of 1"
                continue
            wanted = values.double() / scale.cpu().double()[None, :, None]
            nearest = wanted.to(stored.dtype).double()
            got = _stored(stored, slots, spec).float().double()
            off, least = (got - wanted).abs(), (nearest - wanted).abs()
            allowed = least * (1 + 1e-3) + 1e-6 * wanted.abs()
            worst = float((off - least).max())
            assert bool((off <= allowed).all()), (
                f"{name} in {spec.kv_dtype}: stored {worst:.3g} further off than nearest"
            )


def _check_int8(name: str, stored: Tensor, scale: Tensor, values: Tensor, slots: Tensor, spec: AttentionSpec) -> None:
    """Each token and head within half a step of its own scale, which is not wider than its largest magnitude asks."""
    block, offset = slots // spec.block_size, slots % spec.block_size
    own = scale.cpu()[block, offset] if spec.layout == "NHD" else scale.cpu()[block, :, offset]
    step = values.double().abs().amax(-1, keepdim=True) / 127
    off = (_stored(stored, slots, spec).double() * own.double()[..., None] - values.double()).abs()
    assert bool((off <= 0.5 * step * (1 + 1e-3) + 1e-6 * values.double().abs()).all()), (
        f"{name} in int8: off by up to {float((off / step).max()):.3g} steps of the token's largest magnitude / 127, "
        "nearest is at most 0.5"
    )


def _narrow_specs(make: Make, device: str) -> Iterator[AttentionSpec]:
    base = supported(make, device)
    for name in sorted(make().capabilities.kv_dtypes or ()):
        spec = replace(base, kv_dtype=name)
        if torch_dtype(name).itemsize == 1 and name != spec.dtype and not make().check(spec, device):
            yield spec


def _stored(stored: Tensor, slots: Tensor, spec: AttentionSpec) -> Tensor:
    block, offset = slots // spec.block_size, slots % spec.block_size
    raw = stored.cpu().view(torch.uint8)  # indexing knows no fp8
    picked = raw[block, offset] if spec.layout == "NHD" else raw[block, :, offset]
    return picked.contiguous().view(stored.dtype)


def check_a_recorded_step_serves_other_lengths(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Graph-safe backends: a step recorded once is right for other lengths, tables and values; nothing waits.

    The host's copies of the lengths stay those of the recording: what reads them is out of date.
    """
    can = make().capabilities
    if not can.graph_safe:
        raise unittest.SkipTest("graph_safe is not declared")
    spec = supported(make, device)
    size = spec.block_size
    case = Case(spec, (3 * size + 1, size, 2, 0), (1, 1, 1, 1), seed=1)
    problem = build_problem(case, device)
    problem.batch.max_context_len = problem.batch.block_tables.shape[1] * size
    host = problem.batch.host_context_lens.copy()
    backend = prepared(make, spec, device)
    out = torch.full(problem.q.shape, math.nan, dtype=problem.q.dtype, device=device)

    def step() -> None:
        backend.plan(problem.batch)
        backend.attend(problem.q, problem.pool, problem.batch, out)

    replay = ReplayRecorder(check=device.split(":")[0] not in can.simulated_devices).capture(step)
    for seed, contexts in ((2, (size - 1 or 1, 3 * size + 1, 1, size + 1)), (3, (1, 0, 2 * size, 2))):
        other = replace(case, contexts=contexts, seed=seed)
        extra = problem.pool.num_blocks - 1 - sum(-(-context // size) for context in contexts)
        _overwrite(problem, build_problem(other, device, placement=seed, extra_blocks=extra))
        problem.batch.host_context_lens[:] = host
        problem.batch.max_context_len = problem.batch.block_tables.shape[1] * size
        out.fill_(math.nan)
        replay()
        verdict = judge(out, Problem(other, problem.q, problem.pool, problem.batch), can.lossy)
        assert verdict.ok, f"recorded for {case.contexts}, replayed for {contexts}: {verdict}"


def check_a_block_outside_the_pool_is_refused(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """On a CPU a table that names a block behind the last one raises: memory that is not the pool's is not read."""
    if device.split(":")[0] != "cpu" or "cpu" in make().capabilities.simulated_devices:
        raise unittest.SkipTest("only where the tables are on the host")
    spec = supported(make, device)
    backend = prepared(make, spec, device)
    problem = build_problem(Case(spec, (2 * spec.block_size, 3), (1, 1)), device, extra_blocks=1)
    outside = problem.pool.num_blocks - 1
    problem.pool.k, problem.pool.v = (
        problem.pool.k[:outside],
        problem.pool.v[:outside],
    )  # the memory is there all the same
    problem.batch.block_tables[0, 0] = outside
    try:
        run_attention(backend, problem)
    except Exception:  # a backend may say it in its own words: the engine names it
        return
    raise AssertionError(f"a table names block {outside} of a pool of {outside} (0 to {outside - 1}), and it was read")


batch_checks = (
    check_rows_of_unequal_length_decode,
    check_many_query_heads_share_one_kv_head,
    check_long_rows_beside_short_ones,
    check_rows_may_share_blocks,
    check_values_decide_and_not_shapes,
    check_interleaved_pools_are_read_and_written,
    check_narrow_writes_round_to_nearest,
    check_a_recorded_step_serves_other_lengths,
    check_a_block_outside_the_pool_is_refused,
)
"""Part of `backend_checks`."""
