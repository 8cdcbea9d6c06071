"""Checks that an attention backend writes, rotates and copies exactly the K and V that it should."""

from __future__ import annotations

import unittest
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import torch

from framework.errors import FrameworkError
from framework.interfaces.backend import LAYOUTS, AttentionBackend, AttentionSpec, LayerKV, Rope
from framework.testing.attention_cases import Case, build_problem, place, torch_dtype
from framework.testing.attention_runs import Make, pool_bytes, prepared, refusal, same_bytes, supported
from framework.testing.oracles.attention import gather_tokens

if TYPE_CHECKING:
    from torch import Tensor


def check_written_tokens_are_stored_exactly(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """`write` puts each token's K and V into its slot, bit for bit, and nothing elsewhere; negative slots are skipped.

    70000 stays 70000, and the null block keeps its bytes.
    """
    for spec in _layouts(make, device):
        backend = prepared(make, spec, device)
        for tokens, padding in product((1, 7) if cases == "small" else (0, 1, 7, 33), (False, True)):
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
            want = written(pool, k, v, slots)
            backend.write(pool, k.to(device), v.to(device), slots.to(device))
            wrong = first_difference(pool, want)
            assert not wrong, f"{spec}: writing slots {slots.tolist()[:9]}...: {wrong}"


def written(pool: LayerKV, k: Tensor, v: Tensor, slots: Tensor) -> LayerKV:
    """What `write` owes, token by token, on the CPU."""
    want = LayerKV(pool.k.cpu().clone(), pool.v.cpu().clone(), pool.layout)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, pool.block_size)
            index = (block, offset) if pool.layout == "NHD" else (block, slice(None), offset)
            want.k[index], want.v[index] = k[token], v[token]
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
    want = written(pool, k, v, slots)
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
    wrong = first_difference(pool, written(want, stored, v[kept], slots[kept]))
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
    index = tuple(int(i) for i in torch.nonzero(~(off <= allowed))[0])
    return (
        f"at {index} is {float(got[index]):.6g}, rotated it is {float(want[index]):.6g}, "
        f"allowed {float(allowed[index]):.2g}"
    )


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
            wrong = first_difference(pool, want)
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


def first_difference(pool: LayerKV, want: LayerKV) -> str:
    for name, got, right in (("K", pool.k.cpu(), want.k), ("V", pool.v.cpu(), want.v)):
        unequal = torch.nonzero(got.view(torch.uint8) != right.view(torch.uint8))
        if len(unequal):
            index = tuple(unequal[0].tolist())
            return f"{name} differs in {len(unequal)} bytes, first in block {index[0]} at {index[1:]}"
    return ""


def check_narrow_writes_round_to_nearest(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Into a pool of fewer bits each value goes as the nearest one it can hold, scaled by its head, and is copied so.

    In int8 a token's head has a scale of its own, no wider than its largest magnitude asks.
    """
    specs = [replace(supported(make, device), kv_dtype=name) for name in sorted(make().capabilities.kv_dtypes or ())]
    specs = [spec for spec in specs if torch_dtype(spec.kv_dtype or "").itemsize == 1 and spec.kv_dtype != spec.dtype]
    specs = [spec for spec in specs if not make().check(spec, device)]
    if not specs:
        raise unittest.SkipTest("no narrower KV dtype is declared")
    for spec in specs:
        backend, size, tokens = prepared(make, spec, device), spec.block_size, 2 * spec.block_size
        pool, nearest = (build_problem(Case(spec, (3 * size,), (1,)), on).pool for on in (device, "cpu"))
        shape = (tokens, spec.num_kv_heads, spec.head_dim)
        k, v = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in (3, 4))
        k, v = k.to(torch_dtype(spec.dtype)), v.to(torch_dtype(spec.dtype))
        slots = torch.arange(tokens) + size
        for stored, values, scale in ((nearest.k, k, nearest.k_scale), (nearest.v, v, nearest.v_scale)):
            place(stored, values, slots, scale, spec.layout, size)
        backend.write(pool, k.to(device), v.to(device), slots.to(device))
        found, best = gather_tokens(pool, [1, 2], tokens), gather_tokens(nearest, [1, 2], tokens)
        for name, values, got, near in zip("KV", (k, v), found, best, strict=True):
            exact = values.double()
            off, least = (got.cpu() - exact).abs(), (near - exact).abs()
            if spec.kv_dtype == "int8":  # half a step of the scale
                least = exact.abs().amax(-1, keepdim=True) / 254
            allowed = least * (1 + 1e-3) + 1e-6 * exact.abs()
            worst = float((off - least).max())
            assert bool((off <= allowed).all()), f"{name} in {spec.kv_dtype}: {worst:.3g} further off than the nearest"
        backend.copy_blocks(pool, torch.tensor([[1, 3]], dtype=torch.int64, device=device))
        pairs = zip(gather_tokens(pool, [1], size), gather_tokens(pool, [3], size), strict=True)
        same = all(torch.equal(source, copy) for source, copy in pairs)
        assert same, f"{spec.kv_dtype}: after copying block 1 to 3 its values or its scales are not those of 1"
