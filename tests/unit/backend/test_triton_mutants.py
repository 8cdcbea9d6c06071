"""Planted bugs in our Triton kernels: each must be caught by a small battery of ragged, split, NaN-filled batches."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from framework.interfaces import _torch_ops
from framework.interfaces.backend import AttentionSpec, LayerKV, Rope
from framework.testing.attention_cases import Case, Problem, build_problem, torch_dtype
from framework.testing.attention_runs import run_attention
from framework.testing.oracles.attention import attend_dense
from framework_builtin.backend.triton import TritonBackend

pytest.importorskip("triton", reason="triton is not installed")


def within(file: str, text: str, old: str, new: str) -> tuple[str, str, str]:
    """The mutant of `file` in which `old`, within this text of it, is `new`."""
    assert text.count(old) == 1, f"{old!r} is not once in {text!r}"
    return file, text, text.replace(old, new)


MUTANTS: dict[str, tuple[str, str, str]] = {
    "decode reads one token too many": ("decode", "(position < stop_n)", "(position < stop_n + 1)"),
    "decode forgets the last token": ("decode", "(position < stop_n)", "(position < stop_n - 1)"),
    "page offset off by one": ("tiles", "slot = position % PAGE", "slot = (position + 1) % PAGE"),
    "every page of a tile is its first": ("tiles", "tile // PAGE + tl.arange", "tile // PAGE + 0 * tl.arange"),
    "the output is not rescaled": ("decode", "acc = acc * shrink + tl.dot", "acc = acc + tl.dot"),
    "the denominator is not rescaled": ("decode", "total = total * shrink + tl.expand", "total = total + tl.expand"),
    "splits weigh the same": ("decode", "weight = tl.exp2(part_top - finite)", "weight = 1.0"),
    "splits forget their sums": ("decode", "total * shrink + part_total * weight", "total * shrink + weight"),
    "the other head's KV": ("decode", "head_x * GROUP + g_x", "(NUM_KV_HEADS - 1 - head_x) * GROUP + g_x"),
    "decode's window is one short": within(
        "decode", "origin = tl.maximum(context - window, 0)", "window", "window + 1"
    ),
    "masked values are loaded": within(
        "decode", "tl.load(v_slot + d_x, mask=v_mask, other=0)", ", mask=v_mask, other=0", ""
    ),
    "infinity minus infinity": within(
        "decode",
        """finite = tl.where(new_top == float("-inf"), 0.0, new_top)
        shrink = tl.exp2(top - finite)
        weight = tl.exp2(score""",
        'tl.where(new_top == float("-inf"), 0.0, new_top)',
        "new_top",
    ),
    "a sink in every split": ("decode", "tl.where(start <= origin, own_heads, 0)", "own_heads"),
    "splits overlap": within("decode", "tl.minimum(start + chunk * N, context)", "N", "N + 1"),
    "ALiBi from the next position": ("decode", "position - context_n + 1", "position - context_n"),
    "lse in base 2": within(
        "decode",
        '(top + tl.log2(safe_total)) * 0.6931471805599453, float("-inf"))\n        tl.store(LSE + row_x',
        "(top + tl.log2(safe_total)) * 0.6931471805599453",
        "top + tl.log2(safe_total)",
    ),
    "an int8 score takes its neighbour's scale": ("decode", "slot * scale_stride_s", "slot * 0"),
    "an int8 head takes another head's scale": ("decode", "head_n * scale_stride_h", "head_n * 0"),
    "int8's sign is lost": ("tiles", "(stored.to(tl.int8, bitcast=True).to(tl.float32)", "(stored.to(tl.float32)"),
    "the sign of int8's K is lost": within(
        "tiles", "stored = stored.to(tl.int8, bitcast=True).to(q.dtype)", ".to(tl.int8, bitcast=True)", ""
    ),
    "the soft cap's series is cut short": ("tiles", "0.13333333333333333 + square * series", "0.13333333333333333"),
    "int8's K has V's scales": ("decode", "tl.load(K_SCALE + scale_offset", "tl.load(V_SCALE + scale_offset"),
    "int8's V has K's scales": ("decode", "tl.load(V_SCALE + scale_offset", "tl.load(K_SCALE + scale_offset"),
    "masked scales are loaded": within(
        "decode", "V_SCALE + scale_offset, mask=inside, other=0.0", ", mask=inside, other=0.0", ""
    ),
    "a chunk's int8 head takes another's scale": ("prefill", "kv_head * scale_stride_h", "kv_head * 0"),
    "a chunk's int8 block takes another's scale": ("prefill", "page * scale_stride_b", "page * 0"),
    "a chunk's int8 V has K's scales": within("prefill", "tl.load(V_SCALE + scale_offset", "V", "K"),
    "a chunk's splits forget their sums": within("prefill", "PART_SUMS + part * 2 + 1, total", "total", "top"),
    "an empty row has a sink": ("decode", "total = tl.where(context_x > 0, total, 0.0)", "total = total + 0.0"),
    "the merge takes the neighbour's splits": within(
        "decode", "first = tl.load(ROWS + row * 2).to(tl.int64)", "tl.int64)", "tl.int64) + 1"
    ),
    "a query does not see itself": within("prefill", "position[None, :] <= query_position[:, None]", "<=", "<"),
    "a query sees its successors": within(
        "prefill", "position[None, :] <= query_position[:, None]", "_position[:, None]", "_position[:, None] + 1"
    ),
    "the diagonal tile counts as plain": within(
        "prefill",
        "plain_stop = tl.maximum(first_position + 1, 0) // N * N",
        "tl.maximum(first_position + 1, 0",
        "(tl.maximum(first_position + 1, 0) + N - 1",
    ),
    "prefill's window is one short": within("prefill", "query_position[:, None] - window)", "window", "window + 1"),
    "prefill's window starts a tile late": ("prefill", "// N * N\n    plain_stop", "// N * N + N\n    plain_stop"),
    "tiles go to the wrong row": ("prefill", "begins <= tile, middle, low", "begins < tile, middle, low"),
    "the cached context is ignored": within(
        "prefill", "query_position = context - num_queries + token", "context - num_queries + ", ""
    ),
    "chunks share a head": ("prefill", "head = kv_head * GROUP + first_head + m % HEADS", "head = kv_head * GROUP"),
    "a chunk's splits overlap": ("prefill", "tl.maximum(start, tl.program_id(2) * split_len)", "start"),
    "a chunk's splits reach the end": ("prefill", "tl.minimum(stop, (tl.program_id(2) + 1) * split_len)", "stop"),
    "a sink in every split of a chunk": ("prefill", "tl.where(tl.program_id(2) == 0, M, 0)", "M"),
    "a chunk's splits are one token's": ("prefill", "query - base) * (NUM", "query * 0) * (NUM"),
    "blocks of heads are the first": ("decode", "first_head = item % HEAD_BLOCKS * M", "first_head = item * 0"),
    "blocks of heads in chunks are the first": ("prefill", "% HEAD_BLOCKS * HEADS", "* 0"),
    "the chunk's output is not rescaled": ("prefill", "acc = acc * shrink[:, None] + tl.dot", "acc = acc + tl.dot"),
    "the pair's other half has the wrong sign": ("store", "half == 0, -other, other", "half == 1, -other, other"),
    "a pair is turned with itself": ("store", "head_x * source_stride + partner", "head_x * source_stride + d"),
    "angles are the tokens' own": ("store", "angle = tl.load(POSITIONS + token, mask=live, other=0)", "angle = token"),
    "v is rotated": ("store", "COS is not None and piece < 2", "COS is not None"),
    "k is not rotated": ("store", "COS is not None and piece < 2", "COS is not None and piece < 1"),
    "heads of a second program": ("store", "part * HEADS + row // 2", "part * 0 + row // 2"),
    "e4m3 is cut, not rounded": ("store", "0x7FFFF + ((bits >> 20) & 1)", "0"),
    "e4m3 ties go up": ("store", "0x7FFFF + ((bits >> 20) & 1)", "0x80000"),
    "small e4m3 values have an exponent": ("store", "size < 0.015625", "size < 0.0078125"),
    "e4m3 overflows": ("store", "tl.minimum(tl.abs(x), 448.0)", "tl.abs(x)"),
    "k's scale for v": ("store", "K_SCALE if piece == 1 else V_SCALE", "K_SCALE"),
    "int8 is cut, not rounded": ("store", "127.0) + 12582912.0)", "127.0) - 0.49 + 12582912.0)"),
    "an int8 scale is of half a head": within(
        "store", "tl.reduce(tl.reshape(size, (TOKENS * HEADS, 2)), 1,", "ze", "ze * (row % 2)"
    ),
    "int8's scales are K's alone": ("store", "tl.store(SCALE + scale_offset", "tl.store(K_SCALE + scale_offset"),
    "int8's scales go to the block's start": ("store", "slot % PAGE * scale_stride_s", "0"),
    "an int8 token of zeros is not a number": within(
        "store",
        "tl.maximum(scale, 1.1754943508222875e-38)[:, None]",
        "tl.maximum(scale, 1.1754943508222875e-38)",
        "scale",
    ),
    "bfloat16 is cut": ("store", "0x7FFF + ((bits >> 16) & 1)", "0"),
    "a token is written to its block's start": ("store", "offset = (slot % PAGE)", "offset = (slot % PAGE * 0)"),
    "copies leave V behind": ("store", "tl.store(V + destination * v_stride_b", "tl.store(V + source * v_stride_b"),
    "copies are all the first": ("store", "tl.load(COPIES + copy * 2)", "tl.load(COPIES + copy * 0)"),
}


def spec_of(**changes: Any) -> AttentionSpec:
    base: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "dtype": "float32", "block_size": 16}
    return AttentionSpec(**(base | changes))


RAGGED = (1, 100, 31, 0, 33, 65)


def attention(
    spec: AttentionSpec, queries: tuple[int, ...], within: float = 1e-5, **arguments: Any
) -> Callable[[], bool]:
    """Runs one batch, every unused slot NaN; True when output and lse are the oracle's."""

    @functools.cache
    def known() -> tuple[Problem, Tensor, Tensor]:
        problem = build_problem(Case(spec, RAGGED, queries))
        return problem, *attend_dense(problem.q, problem.pool, problem.batch, spec)

    def holds() -> bool:
        problem, want, want_lse = known()
        backend = TritonBackend(**arguments)
        backend.setup(spec, "cpu")
        out, lse = run_attention(backend, problem, lse=True)
        assert lse is not None
        near = float((out.double() - want).abs().max()) <= within  # False for NaN
        return near and torch.allclose(lse.double(), want_lse, atol=within)

    return holds


def memory() -> bool:
    """Writes four tokens and copies a chain of blocks; True when exactly those changed."""
    spec = spec_of()
    generator = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, 6, 16, 2, 16, generator=generator)
    pool, want = LayerKV(k.clone(), v.clone()), LayerKV(k.clone(), v.clone())
    new_k, new_v = torch.randn(2, 4, 2, 16, generator=generator)
    backend = TritonBackend()
    backend.setup(spec, "cpu")
    slots = torch.tensor([17, 35, -1, 95])
    backend.write(pool, new_k, new_v, slots)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            want.k[slot // 16, slot % 16], want.v[slot // 16, slot % 16] = new_k[token], new_v[token]
    backend.copy_blocks(pool, torch.tensor([[1, 2], [2, 3], [5, 4]]))
    for source, destination in ((1, 2), (2, 3), (5, 4)):
        want.k[destination], want.v[destination] = want.k[source].clone(), want.v[source].clone()
    return torch.equal(pool.k, want.k) and torch.equal(pool.v, want.v)


def rotation(spec: AttentionSpec, interleaved: bool, **arguments: Any) -> Callable[[], bool]:
    """Rotates and stores five tokens, one of them padding; True when torch would have done the same, bit for bit."""

    def holds() -> bool:
        generator = torch.Generator().manual_seed(0)
        dtype = torch_dtype(spec.dtype)
        size = spec.num_heads + 2 * spec.num_kv_heads
        spread = 10 ** torch.linspace(-4, 2, spec.head_dim)  # from below e4m3's smallest to above its largest
        packed = torch.randn(5, size, spec.head_dim, generator=generator) * spread
        q, k, v = packed.to(dtype).split([spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        angles = torch.rand(40, spec.head_dim // 2, generator=generator) * 100
        rope = Rope(angles.cos(), angles.sin(), torch.tensor([3, 0, 39, 7, 8]), interleaved)
        got, want = (build_problem(Case(spec, (100,), (1,)), fill=0.0).pool for _ in range(2))
        if spec.kv_dtype == "int8":
            v = v.clone()
            v[2, 0] = 0.0
        elif spec.kv_dtype:
            v = v.bfloat16().to(dtype)  # short numbers over a power of 2: ties
            for pool in (got, want):
                pool.k_scale, pool.v_scale = torch.tensor([0.02, 0.05]), torch.tensor([0.0625, 0.03125])
        slots = torch.tensor([17, -1, 40, 41, 90])
        backend = TritonBackend(**arguments)
        backend.setup(spec, "cpu")
        torch.use_deterministic_algorithms(True)  # fills fresh memory with NaN: what nobody writes shows
        try:
            rotated = backend.rotate_and_write(got, q, k, v, rope, slots)
        finally:
            torch.use_deterministic_algorithms(False)
        stored = _torch_ops.rotate(k, rope)
        if spec.kv_dtype == "float8_e4m3fn":
            assert want.k_scale is not None
            assert want.v_scale is not None
            stored, v = (
                x.float().clamp(-448 * scale[:, None], 448 * scale[:, None])
                for x, scale in ((stored, want.k_scale), (v, want.v_scale))
            )
        _torch_ops.write(want, stored, v, slots)
        pairs = [(rotated, _torch_ops.rotate(q, rope)), (got.k, want.k), (got.v, want.v)]
        pairs += [(a, b) for a, b in ((got.k_scale, want.k_scale), (got.v_scale, want.v_scale)) if a is not None]
        return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)

    return holds


DECODE, CHUNKS, SHORT_CHUNKS = (1,) * 6, (1, 1, 17, 1, 33, 20), (1, 1, 17, 1, 3, 2)
SINKS = {"sinks": True, "sliding_window": 40}
# Cheap parts first: a mutant runs those up to the first that notices it.
BATTERY = {
    "decode": [
        attention(spec_of(alibi=True, **SINKS), DECODE, split_tokens=32),
        attention(spec_of(kv_dtype="int8", block_size=3, layout="HND"), DECODE, within=2e-5, split_tokens=32),
        attention(spec_of(block_size=3, sliding_window=32), DECODE, arch="sm_90"),
        attention(spec_of(num_heads=160, head_dim=64), DECODE, arch="sm_90"),
        attention(spec_of(sinks=True), DECODE, arch="sm_90", split_tokens=32),
        attention(spec_of(), DECODE, arch="sm_90", split_tokens=32),
        attention(spec_of(kv_dtype="int8"), DECODE, within=2e-5, arch="sm_90", split_tokens=32),
    ],
    "prefill": [
        attention(spec_of(layout="HND", **SINKS), CHUNKS),
        attention(spec_of(), CHUNKS),
        attention(spec_of(dtype="float16", head_dim=64, block_size=128), CHUNKS, within=2e-3, arch="sm_90"),
        attention(spec_of(block_size=3, sliding_window=32), CHUNKS, arch="sm_90"),
        attention(spec_of(kv_dtype="int8", block_size=32, layout="HND"), CHUNKS, within=2e-5, arch="sm_90"),
        attention(spec_of(sinks=True), SHORT_CHUNKS, arch="sm_90", split_tokens=32),
        attention(spec_of(), SHORT_CHUNKS, arch="sm_90", split_tokens=32),
        attention(spec_of(num_heads=80, head_dim=64), SHORT_CHUNKS, arch="sm_90"),
    ],
    "tiles": [
        attention(spec_of(), DECODE),
        attention(spec_of(block_size=3, sliding_window=32), DECODE, arch="sm_90"),
        attention(spec_of(soft_cap=20.0), DECODE, arch="sm_90"),
        attention(spec_of(kv_dtype="int8"), DECODE, within=2e-5, arch="sm_90", split_tokens=32),
    ],
    "store": [
        memory,
        rotation(spec_of(dtype="bfloat16", num_heads=8, head_dim=256), interleaved=False, arch="sm_90"),
        rotation(spec_of(kv_dtype="float8_e4m3fn", layout="HND"), interleaved=True),
        rotation(spec_of(kv_dtype="int8", num_kv_heads=4, head_dim=64), interleaved=False, arch="sm_90"),
        rotation(spec_of(kv_dtype="int8", layout="HND"), interleaved=True),
    ],
}


def survives(file: str) -> bool:
    """Whether no part of the file's battery notices. A crash is noticed."""
    try:
        return all(part() for part in BATTERY[file])
    except Exception:
        return False


def mutated(file: str, old: str, new: str, folder: Path) -> Any:
    """The kernel file with one replacement, imported from a folder: the interpreter reads the source of a function."""
    from framework_builtin.backend.triton_kernels import decode

    source = Path(decode.__file__).with_name(f"{file}.py").read_text()
    assert old in source, f"{file}.py has no {old!r} any more: bring the mutant up to date"
    path = folder / f"mutant_{file}.py"
    path.write_text(source.replace(old, new))
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from framework_builtin.backend.triton_kernels import decode, prefill, store

    file, old, new = MUTANTS[name]
    module = mutated(file, old, new, tmp_path)
    targets = {"decode": [decode], "prefill": [prefill], "store": [store], "tiles": [decode, prefill]}[file]
    kernels = ("plan_splits", "decode", "merge_splits", "prefill", "write_kv", "copy_blocks")
    for function in ("page_and_slot", "as_queries", "int8_values", "soft_capped") if file == "tiles" else kernels:
        for target in targets:
            if hasattr(target, function):
                monkeypatch.setattr(target, function, getattr(module, function))
    assert not survives(file), f"{name}: {old!r} -> {new!r} in {file}.py goes unnoticed"


def test_the_unchanged_kernels_pass_the_battery() -> None:
    failed = [(file, at) for file, parts in BATTERY.items() for at, part in enumerate(parts) if not part()]
    assert not failed, f"parts {failed} of the battery fail without a mutant"
