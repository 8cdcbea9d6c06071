"""Checks that a backend writes and copies exactly the KV that it should, wherever it lies."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import unittest
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from framework.errors import FrameworkError
from framework.interfaces.backend import LAYOUTS, AttentionBackend, AttentionSpec, LayerKV, Rope
from framework.testing.attention_cases import Case, Problem, build_problem, torch_dtype
from framework.testing.attention_runs import (
    Make,
    judge,
    pool_bytes,
    prepared,
    refusal,
    run_attention,
    same_bytes,
    supported,
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
    code = "from framework.testing.backend_memory import far_blocks_main; far_blocks_main()"
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
