"""Checks of a backend on whole batches, and that it writes and copies exactly the KV that it should."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import unittest
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from framework.errors import FrameworkError
from framework.interfaces.backend import LAYOUTS, AttentionBackend, AttentionSpec, LayerKV, Rope
from framework.testing.attention_cases import Case, Problem, build_problem, single_row, torch_dtype
from framework.testing.attention_runs import (
    Make,
    ReplayRecorder,
    judge,
    pool_bytes,
    prepared,
    refusal,
    run_attention,
    same_bytes,
    supported,
    wrong_lse,
)

if TYPE_CHECKING:
    from torch import Tensor


def check_written_tokens_are_stored_exactly(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """`write` puts each token's K and V into its slot, bit for bit, and nothing elsewhere; 70000 stays 70000."""
    _check_write(make, device, cases, padding=False)


def check_padding_slots_write_nothing(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Negative slots are skipped: the rest of the pool, the null block too, keeps its bytes."""
    _check_write(make, device, cases, padding=True)


def _check_write(make: Make, device: str, cases: str, *, padding: bool) -> None:
    for spec in _layouts(make, device):
        backend = prepared(make, spec, device)
        for tokens in (1, 7) if cases == "small" else (0, 1, 7, 33):
            pool, generator = _random_pool(spec, 8, device), torch.Generator().manual_seed(tokens)
            shape = (tokens, 3 * spec.num_kv_heads, spec.head_dim)
            packed = torch.randn(shape, generator=generator).to(torch_dtype(spec.dtype))
            if tokens and spec.dtype != "float16":
                packed[0, 0, 0] = packed[0, -1, -1] = 70000.0
            k, v = packed[:, : spec.num_kv_heads], packed[:, 2 * spec.num_kv_heads :]  # slices: not contiguous in T
            slots = torch.randperm(7 * spec.block_size, generator=generator)[:tokens] + spec.block_size
            if len(slots) < tokens:
                continue
            if padding:
                slots[::2] = -1
            want = _written(pool, k, v, slots)
            backend.write(pool, k.to(device), v.to(device), slots.to(device))
            wrong = _first_difference(pool, want)
            assert not wrong, f"{spec}: writing slots {slots.tolist()[:9]}...: {wrong}"


def _written(pool: LayerKV, k: Tensor, v: Tensor, slots: Tensor) -> LayerKV:
    """What `write` owes, token by token, on the CPU."""
    want = LayerKV(pool.k.cpu().clone(), pool.v.cpu().clone(), pool.layout)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, pool.block_size)
            at = (block, offset) if pool.layout == "NHD" else (block, slice(None), offset)
            want.k[at], want.v[at] = k[token], v[token]
    return want


def check_tokens_are_rotated_on_their_way(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """`rotate_and_write` is the fp64 rotation of q and k, rounded once, and `write`; its arguments stay as they are."""
    for spec in _layouts(make, device):
        backend = prepared(make, spec, device)
        for tokens, interleaved, table in ((7, False, True), (7, True, False), (1, False, False), (0, False, False)):
            generator = torch.Generator().manual_seed(tokens)
            rope = _random_rope(spec, tokens, interleaved, table, generator)
            _check_rotation(backend, tokens, rope, device, generator)


def _check_rotation(
    backend: AttentionBackend, tokens: int, rope: Rope, device: str, generator: torch.Generator
) -> None:
    spec = backend.spec
    shape = (tokens, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
    packed = torch.randn(shape, generator=generator).to(torch_dtype(spec.dtype))
    q, k, v = _parts(packed, spec)
    pool = _random_pool(spec, 8, device)
    slots = torch.randperm(7 * spec.block_size, generator=generator)[:tokens] + spec.block_size
    slots[1::3] = -1
    kept = torch.nonzero(slots >= 0).flatten()
    want = _written(pool, k, v, slots)
    what = f"{spec}: {tokens} tokens, {'neighbours' if rope.interleaved else 'halves'}, slots {slots.tolist()}"

    given = packed.to(device)
    got = backend.rotate_and_write(pool, *_parts(given, spec), _rope_to(rope, device), slots.to(device))

    assert torch.equal(given.cpu(), packed), f"{what}: q, k or v was changed"
    assert (got.shape, got.dtype) == (q.shape, q.dtype), f"{what}: q is {tuple(q.shape)} {q.dtype}, returned {got}"
    wrong = _rotation_error(got.cpu(), q, rope)
    assert not wrong, f"{what}: q {wrong}"
    stored = _stored_keys(pool, slots[kept])
    positions = kept if rope.positions is None else rope.positions[kept]
    wrong = _rotation_error(stored, k[kept], Rope(rope.cos, rope.sin, positions, rope.interleaved))
    assert not wrong, f"{what}: k {wrong}"
    wrong = _first_difference(pool, _written(want, stored, v[kept], slots[kept]))
    assert not wrong, f"{what}: {wrong}"


def _parts(packed: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of (T, H + 2K, D): views, not contiguous in T."""
    heads, both = spec.num_heads, spec.num_heads + spec.num_kv_heads
    return packed[:, :heads], packed[:, heads:both], packed[:, both:]


def _random_rope(spec: AttentionSpec, tokens: int, interleaved: bool, table: bool, generator: torch.Generator) -> Rope:
    """Angles of far positions, in the model's dtype; with `table` rows in another order than the tokens'."""
    rows = 40 if table else tokens
    angles = torch.rand(rows, spec.head_dim // 2, generator=generator) * 1e4
    positions = torch.randperm(rows, generator=generator)[:tokens] if table else None
    dtype = torch_dtype(spec.dtype)
    return Rope(angles.cos().to(dtype), angles.sin().to(dtype), positions, interleaved)


def _rope_to(rope: Rope, device: str) -> Rope:
    positions = None if rope.positions is None else rope.positions.to(device)
    return Rope(rope.cos.to(device), rope.sin.to(device), positions, rope.interleaved)


def _rotation_error(got: Tensor, x: Tensor, rope: Rope) -> str:
    """Where `got` (T, N, D) is further from x rotated than rounding once, and float32's own error, explain."""
    rows = slice(None) if rope.positions is None else rope.positions
    cos, sin = rope.cos[rows].double()[:, None], rope.sin[rows].double()[:, None]
    half = x.shape[-1] // 2
    a_at = slice(0, None, 2) if rope.interleaved else slice(0, half)
    b_at = slice(1, None, 2) if rope.interleaved else slice(half, None)
    a, b = x[..., a_at].double(), x[..., b_at].double()
    want, size = torch.empty(x.shape, dtype=torch.float64), torch.empty(x.shape, dtype=torch.float64)
    want[..., a_at], want[..., b_at] = a * cos - b * sin, b * cos + a * sin
    size[..., a_at], size[..., b_at] = (a * cos).abs() + (b * sin).abs(), (b * cos).abs() + (a * sin).abs()
    allowed = 0.51 * torch.finfo(x.dtype).eps * want.abs() + 2 * torch.finfo(torch.float32).eps * size
    off = (got.double() - want).abs()
    if bool((off <= allowed).all()):  # False for NaN
        return ""
    at = tuple(int(i) for i in torch.nonzero(~(off <= allowed))[0])
    return f"at {at} is {float(got[at]):.6g}, rotated it is {float(want[at]):.6g}, allowed {float(allowed[at]):.2g}"


def _stored_keys(pool: LayerKV, slots: Tensor) -> Tensor:
    block, offset = slots // pool.block_size, slots % pool.block_size
    k = pool.k.cpu()
    return k[block, offset] if pool.layout == "NHD" else k[block, :, offset]


def check_block_copies_are_exact_and_in_order(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """`copy_blocks` copies whole blocks in order (chains, swaps); a destination named twice is refused, unchanged."""
    for spec in _layouts(make, device):
        backend = prepared(make, spec, device)
        for pairs in (
            [],
            [(1, 2)],
            [(1, 2), (3, 4)],
            [(1, 2), (2, 3), (3, 4)],
            [(1, 2), (2, 1)],
            [(5, 5)],
            [(1, 3), (1, 4)],
        ):
            pool = _random_pool(spec, 8, device)
            want = LayerKV(pool.k.cpu().clone(), pool.v.cpu().clone(), pool.layout)
            for source, destination in pairs:
                want.k[destination], want.v[destination] = want.k[source].clone(), want.v[source].clone()
            backend.copy_blocks(pool, torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).to(device))
            wrong = _first_difference(pool, want)
            assert not wrong, f"{spec}: copies {pairs}: {wrong}"
        pool = _random_pool(spec, 8, device)
        before = pool_bytes(pool)
        with refusal("copying two blocks into block 4", FrameworkError):
            backend.copy_blocks(pool, torch.tensor([(1, 4), (2, 4)], dtype=torch.int64).to(device))
        assert same_bytes(before, pool_bytes(pool)), "a refused copy changed the pool"


def _layouts(make: Make, device: str) -> list[AttentionSpec]:
    base = supported(make, device)
    specs = [replace(base, layout=layout) for layout in LAYOUTS]
    return [spec for spec in specs if not make().check(spec, device)]


def _random_pool(spec: AttentionSpec, num_blocks: int, device: str) -> LayerKV:
    problem = build_problem(Case(spec, (spec.block_size * (num_blocks - 1),), (1,)), device, extra_blocks=0)
    problem.pool.k[0] = problem.pool.v[0] = 0.0
    return problem.pool


def _first_difference(pool: LayerKV, want: LayerKV) -> str:
    for name, got, right in (("K", pool.k.cpu(), want.k), ("V", pool.v.cpu(), want.v)):
        unequal = torch.nonzero(got.view(torch.uint8) != right.view(torch.uint8))
        if len(unequal):
            at = tuple(unequal[0].tolist())
            return f"{name} differs in {len(unequal)} bytes, first in block {at[0]} at {at[1:]}"
    return ""


def check_blocks_beyond_2_31_elements_are_addressed(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Blocks whose first element is past 2**31 are read, written and copied right: int32 offsets overflow there.

    The pool is allocated and never touched but in a few blocks, so on the CPU it costs address space only. Runs in a
    process of its own, because an overflow is a segmentation fault.
    """
    supported(make, device)
    try:
        job = pickle.dumps((sys.path, pickle.dumps((make, device))))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise AssertionError(f"make must be picklable (a class, or a functools.partial of one): {error}") from error
    code = "from framework.testing.backend_batches import far_blocks_main; far_blocks_main()"
    done = subprocess.run([sys.executable, "-c", code], input=job, capture_output=True, timeout=280, check=False)
    if done.returncode == _SKIPPED:
        raise unittest.SkipTest(done.stderr.decode().strip().splitlines()[-1])
    tail = done.stderr.decode(errors="replace")[-1500:]
    assert done.returncode == 0, f"blocks beyond 2**31 elements: exit status {done.returncode} (-11 is a crash)\n{tail}"


_SKIPPED = 77


def far_blocks_main() -> None:
    """Entry of the subprocess: reads the pickled sys.path, make and device from standard input."""
    path, job = pickle.loads(sys.stdin.buffer.read())
    sys.path[:] = path  # where `make` was importable
    make, device = pickle.loads(job)
    try:
        _check_far_blocks(make, device)
    except unittest.SkipTest as reason:
        sys.stderr.write(f"{reason}\n")
        sys.exit(_SKIPPED)


def _check_far_blocks(make: Make, device: str) -> None:
    spec = min((supported(make, device, dtype=name) for name in _narrow_dtypes(make, device)), key=_element_bytes)
    backend = prepared(make, spec, device)
    lengths, queries = (2 * spec.block_size + 1, spec.block_size + 2), (1, 2)  # a decode row and a chunk
    near = build_problem(Case(spec, lengths, queries), device, fill=0.0, placement=3)
    per_block = spec.block_size * spec.num_kv_heads * spec.head_dim
    num_blocks = 2**31 // per_block + 16
    far = LayerKV(_untouched(near.pool.k, num_blocks), _untouched(near.pool.v, num_blocks), spec.layout)
    moved = {old: num_blocks - old if old % 2 else old for old in range(near.pool.num_blocks)}
    for old, new in moved.items():
        far.k[new], far.v[new] = near.pool.k[old], near.pool.v[old]
    names = torch.tensor([moved[old] for old in range(near.pool.num_blocks)], dtype=torch.int32, device=device)
    batch = replace(near.batch, block_tables=names[near.batch.block_tables.long()])
    problem = Problem(near.case, near.q, far, batch)
    out, _ = run_attention(backend, problem)
    verdict = judge(out, problem, backend.capabilities.lossy)
    assert verdict.ok, f"blocks {batch.block_tables.tolist()} of {num_blocks}: {verdict}"
    _check_far_writes(backend, spec, far, num_blocks - 1, device)


def _check_far_writes(backend: AttentionBackend, spec: AttentionSpec, far: LayerKV, last: int, device: str) -> None:
    token = torch.full((1, spec.num_kv_heads, spec.head_dim), 3.0, dtype=torch_dtype(spec.dtype), device=device)
    backend.write(far, token, token, torch.tensor([last * spec.block_size], dtype=torch.int64, device=device))
    stored = far.k[last, 0] if spec.layout == "NHD" else far.k[last, :, 0]
    assert bool((stored == 3.0).all()), f"a token written to block {last} is not there"
    q = torch.full((1, spec.num_heads, spec.head_dim), 3.0, dtype=token.dtype, device=device)
    half = torch.ones(1, spec.head_dim // 2, device=device)
    slots = torch.tensor([(last - 3) * spec.block_size], dtype=torch.int64, device=device)
    backend.rotate_and_write(far, q, token, token, Rope(half, 0 * half), slots)
    stored = far.k[last - 3, 0] if spec.layout == "NHD" else far.k[last - 3, :, 0]
    assert bool((stored == 3.0).all()), f"a token rotated by 0 and written to block {last - 3} is not there"
    backend.copy_blocks(far, torch.tensor([[last, last - 9]], dtype=torch.int64, device=device))
    assert torch.equal(far.k[last - 9], far.k[last]), f"block {last} copied to {last - 9} is not there"


def _narrow_dtypes(make: Make, device: str) -> list[str]:
    base = supported(make, device)
    return [name for name in make().capabilities.dtypes if not make().check(replace(base, dtype=name), device)]


def _element_bytes(spec: AttentionSpec) -> tuple[int, str]:
    return torch_dtype(spec.dtype).itemsize, spec.dtype


def _untouched(like: Tensor, num_blocks: int) -> Tensor:
    need = num_blocks * math.prod(like.shape[1:]) * like.element_size()
    if like.device.type == "cuda" and torch.cuda.mem_get_info(like.device)[0] < need + 2**30:
        raise unittest.SkipTest(f"needs {need / 2**30:.1f} GiB of free device memory a tensor")
    try:
        return torch.empty((num_blocks, *like.shape[1:]), dtype=like.dtype, device=like.device)
    except RuntimeError as error:
        raise unittest.SkipTest(f"no address space for {need / 2**30:.1f} GiB: {error}") from error


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
