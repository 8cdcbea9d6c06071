"""The Triton kernel that writes new tokens, run by Triton's interpreter."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch

from framework.errors import InvalidArgument
from framework.interfaces import torch_ops
from framework.interfaces.backend import AttentionSpec, Rope
from framework_testing.attention_cases import Case, build_problem
from framework_testing.attention_runs import pool_bytes, same_bytes
from framework_triton.backend import TritonBackend

pytest.importorskip("triton", reason="triton is not installed")


def make_spec(**changes: Any) -> AttentionSpec:
    base: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "dtype": "float32", "block_size": 16}
    return AttentionSpec(**(base | changes))


def ready(spec: AttentionSpec) -> TritonBackend:
    backend = TritonBackend()
    backend.setup(spec, "cpu")
    return backend


def test_fp8_tokens_are_quantised_with_their_heads_scales() -> None:
    spec = make_spec(dtype="bfloat16", kv_dtype="float8_e4m3fn")
    for layout in ("NHD", "HND"):
        problem = build_problem(Case(make_spec(dtype="bfloat16", kv_dtype="float8_e4m3fn", layout=layout), (33,), (1,)))
        pool = problem.pool
        tokens = torch.randn(5, 2, 32, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
        tokens[0, 0, 0] = 1000.0  # beyond 448 * scale: clipped, not NaN
        slots = torch.tensor([17, -1, 18, 35, 40])
        ready(spec).write(pool, tokens, tokens, slots)
        for token, slot in enumerate(slots.tolist()):
            if slot < 0:
                continue
            at = (slot // 16, slot % 16) if layout == "NHD" else (slot // 16, slice(None), slot % 16)
            assert pool.k_scale is not None
            scaled = (tokens[token].float() / pool.k_scale[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
            assert torch.equal(pool.k[at].float(), scaled.float()), f"{layout} slot {slot}"


def test_every_e4m3_value_and_every_tie_between_two_is_rounded_as_torch_does() -> None:
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    near = torch.cat((codes, ties, torch.nextafter(ties, ties + 1), torch.nextafter(ties, ties - 1)))
    values = torch.cat((near, -near, torch.tensor([449.0, 464.0, 1e30, torch.inf, -torch.inf, torch.nan, 1e-30, -0.0])))
    values = torch.nn.functional.pad(values, (0, -len(values) % 64)).reshape(-1, 2, 32)
    spec = make_spec(kv_dtype="float8_e4m3fn")
    pool = build_problem(Case(spec, (48,), (1,))).pool
    pool.k_scale = pool.v_scale = torch.ones(2)
    slots = torch.arange(len(values)) + 16
    ready(spec).write(pool, values, values, slots)
    got = pool.k.view(torch.uint8).flatten(0, 1)[slots]
    want = values.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    wrong = torch.nonzero((got != want) & ~values.isnan())
    assert not len(wrong), [(float(values[tuple(i)]), int(got[tuple(i)]), int(want[tuple(i)])) for i in wrong[:9]]
    nans = got[values.isnan()] & 0x7F
    assert bool((nans == 0x7F).all()), nans


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("arch", [None, "sm_90"])
def test_int8_tokens_and_their_scales_are_stored_and_copied_as_torch_does(layout: str, arch: str | None) -> None:
    spec = make_spec(num_heads=8, num_kv_heads=8, head_dim=80, kv_dtype="int8", layout=layout)
    tokens = (
        torch.randn(2, 7, 8, 80, generator=torch.Generator().manual_seed(0)) * 10 ** torch.linspace(-6, 6, 8)[:, None]
    )
    tokens[0, 1, 2] = 0.0
    tokens[0, 2, 3, 5] = torch.inf
    tokens[1, 3, 4, 6] = torch.nan
    tokens[1, 4] = torch.arange(80) / 2 + 0.25  # the largest is no 127: ties between two codes
    tokens[1, 5] = torch.arange(80).clamp(max=63.5) - 0.5
    tokens[1, 5, :, 0] = 127.0
    tokens[1, 6] *= 1e-38  # a scale below the smallest normal number
    got, want = (build_problem(Case(spec, (60,), (1,)), fill=0.0).pool for _ in range(2))
    slots, copies = torch.tensor([17, -1, 18, 35, 40, 41, 63]), torch.tensor([[1, 4], [4, 5], [2, 3]])
    backend = TritonBackend(arch=arch)
    backend.setup(spec, "cpu")
    backend.write(got, *tokens, slots)
    backend.copy_blocks(got, copies)
    torch_ops.write(want, *tokens, slots)
    torch_ops.copy_blocks(want, copies)
    for name in ("k", "v", "k_scale", "v_scale"):
        a, b = getattr(got, name), getattr(want, name)
        both = (a == b) | ~(torch.isfinite(a) | torch.isfinite(b))
        assert bool(both.all()), f"{name}: {a[~both][:8].tolist()}, torch stores {b[~both][:8].tolist()}"


def test_rotated_bfloat16_tokens_of_many_heads_are_those_of_torch_to_the_bit() -> None:
    spec, generator = make_spec(dtype="bfloat16", num_heads=8, head_dim=256), torch.Generator().manual_seed(0)
    q, k, v = torch.randn(5, 12, 256, generator=generator).bfloat16().split([8, 2, 2], dim=1)
    angles = torch.rand(40, 128, generator=generator) * 100
    rope = Rope(angles.cos(), angles.sin(), torch.tensor([3, 0, 39, 7, 8]), interleaved=False)
    got, want = (build_problem(Case(spec, (100,), (1,)), fill=0.0).pool for _ in range(2))
    slots, backend = torch.tensor([17, -1, 40, 41, 90]), TritonBackend(arch="sm_90")
    backend.setup(spec, "cpu")
    torch.use_deterministic_algorithms(True)  # fills fresh memory with NaN: what nobody writes shows
    try:
        rotated = backend.rotate_and_write(got, q, k, v, rope, slots)
    finally:
        torch.use_deterministic_algorithms(False)
    torch_ops.write(want, torch_ops.rotate(k, rope), v, slots)
    assert torch.equal(rotated, torch_ops.rotate(q, rope))
    assert torch.equal(got.k, want.k)
    assert torch.equal(got.v, want.v)


def test_an_int8_pool_without_a_scale_of_each_token_and_head_is_refused() -> None:
    spec = make_spec(kv_dtype="int8")
    problem = build_problem(Case(spec, (33,), (1,)), fill=0.0)
    pool, k = problem.pool, torch.randn(1, 2, 32)
    backend = ready(spec)
    assert pool.k_scale is not None
    for scale, words in ((None, "needs a scale of each token"), (torch.ones(2), "needs a scale of each token"),
                         (pool.k_scale.transpose(1, 2).contiguous().transpose(1, 2), "must lie alike")):  # fmt: skip
        wrong = replace(pool, k_scale=scale)
        before = pool_bytes(wrong)
        for call in (
            functools.partial(backend.write, wrong, k, k, torch.tensor([17])),
            functools.partial(backend.attend, problem.q, wrong, problem.batch, torch.empty_like(problem.q)),
            functools.partial(backend.copy_blocks, wrong, torch.tensor([[1, 2]])),
        ):
            with pytest.raises(InvalidArgument, match=words):
                call()
        assert same_bytes(before, pool_bytes(wrong)), "a refused call wrote to the pool"


def test_tokens_of_another_shape_are_refused_before_anything_is_written() -> None:
    spec = make_spec()
    pool = build_problem(Case(spec, (33,), (1,)), fill=0.0).pool
    before, q, k = pool_bytes(pool), torch.randn(3, 4, 32), torch.randn(3, 2, 32)
    half, slots, backend = torch.ones(3, 16), torch.arange(16, 19), ready(spec)
    rope, at = Rope(half, half), torch.arange(3)
    for wrong in (
        lambda: backend.write(pool, q, k, slots),
        lambda: backend.write(pool, k, k[:2], slots),
        lambda: backend.rotate_and_write(pool, k, k, k, rope, slots),
        lambda: backend.rotate_and_write(pool, q, k, k, Rope(half[:2], half), slots),
        lambda: backend.rotate_and_write(pool, q, k, k, Rope(half, half[:, :8]), slots),
        lambda: backend.rotate_and_write(pool, q, k, k, Rope(half, half, at[:2]), slots),
    ):
        with pytest.raises(InvalidArgument, match="should be"):
            wrong()
    assert same_bytes(before, pool_bytes(pool)), "a refused call wrote to the pool"
