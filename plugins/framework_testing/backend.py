"""Conformance kit of attention backends: plain checks `check_*(make)`, where `make()` gives a fresh backend.

    @pytest.mark.parametrize("check", backend_checks)
    def test_my_backend(check):
        check(MyBackend)

A check raises AssertionError with the failing case and both errors, and `unittest.SkipTest` (pytest skips) when the
rule does not apply to what the backend declares. `cases="small"` is for slow devices such as Triton's interpreter.
"""

from __future__ import annotations

import math
import unittest
from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import torch

from framework.errors import FrameworkError, Unsupported
from framework.interfaces.backend import LAYOUTS, AttentionBackend, AttentionSpec, Batch, LayerKV, Rope
from framework_testing.attention_cases import (
    LENGTHS,
    NULL_FILL,
    Case,
    Problem,
    build_problem,
    place,
    places,
    query_lengths,
    single_row,
    torch_dtype,
)
from framework_testing.attention_runs import (
    Make,
    ReplayRecorder,
    empty_output,
    grid,
    judge,
    pool_bytes,
    prepared,
    refusal,
    run_attention,
    same_bytes,
    supported,
    truth_of,
    wrong_lse,
)
from framework_testing.oracles.attention import gather_tokens
from framework_testing.rules import checks_of, elsewhere, large_checks_of

if TYPE_CHECKING:
    from torch import Tensor


def _nearest(make: Make, device: str, wanted: dict[str, Any]) -> AttentionSpec:
    """What is wanted, where the backend serves it; else what it serves."""
    try:
        return supported(make, device, **wanted)
    except unittest.SkipTest:
        return supported(make, device)


def _wrong(backend: AttentionBackend, problem: Problem, *, lse: bool) -> list[str]:
    """Where the output is further from the oracle than it may be, a sentence each; with `lse` and without, if both."""
    found, truth = [], truth_of(problem)
    for asked in (False, True) if lse and "lse" in backend.capabilities.features else (False,):
        out, sums = run_attention(backend, problem, lse=asked)
        verdict = judge(out, problem, backend.capabilities.lossy, truth)
        found += [] if verdict.ok else [f"{verdict}{' (with lse)' if asked else ''}"]
        found += [] if sums is None else wrong_lse(sums, problem, verdict, truth)
    return found


def _judged(
    make: Make, problem: Problem, *, lse: bool = False, backend: AttentionBackend | None = None, what: str = ""
) -> None:
    wrong = _wrong(backend or prepared(make, problem.spec, str(problem.q.device)), problem, lse=lse)
    assert not wrong, f"{what}{wrong[0]}"


def _ready(make: Make, case: Case, device: str, **how: Any) -> tuple[AttentionBackend, Problem]:
    """A fresh backend, set up, and the problem of a case, as `build_problem` makes it."""
    return prepared(make, case.spec, device), build_problem(case, device, **how)


def _samples(make: Make, device: str, cases: str) -> list[Case]:
    """A few shapes for the rules that need several runs each: decode, chunk and mixed, edges in all of them."""
    wanted = [{"block_size": 16}] if cases == "small" else [{"block_size": 3}, {"block_size": 16}, {"head_dim": 128}]
    found = []
    for seed, choice in enumerate(wanted):
        spec = _nearest(make, device, choice)
        size = spec.block_size
        for kind in ("mixed",) if cases == "small" else ("1", "5", "mixed"):
            lengths = LENGTHS["edges" if cases == "small" else "ragged"](size)
            found.append(Case(spec, *query_lengths(kind, lengths, size), seed=seed))
    return found


_LATENT: dict[str, Any] = {"num_kv_heads": 1, "head_dim": 80, "latent_dim": 64}
_FEATURES: dict[str, Any] = {"sliding_window": 5, "attention_chunk": 2, "soft_cap": 2.0, "sinks": True, "alibi": True}
"""A value of each field of a spec that a feature is for."""


def check_what_is_declared_is_served(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Every dtype, head dim, layout and feature the capabilities name on this device passes `check` and is right."""
    base = supported(make, device)
    can = make().capabilities
    asked: list[dict[str, Any]] = [{"dtype": dtype} for dtype in sorted(can.dtypes)]
    asked += [{"layout": layout} for layout in sorted(can.layouts)]
    asked += [{"head_dim": dim} for dim in sorted(can.head_dims or ())]
    asked += [{"kv_dtype": dtype} for dtype in sorted(can.kv_dtypes or ())]
    asked += [{name: _FEATURES[name]} for name in sorted(can.features & set(_FEATURES))]
    asked += [_LATENT] * ("latent" in can.features)
    for change in asked if cases == "full" else asked[:: max(1, len(asked) // 6)]:
        spec = replace(base, **change)
        reasons = make().check(spec, device)
        assert not reasons, f"capabilities name {change}, and check refuses it: {reasons}"
        problem = build_problem(Case(spec, (spec.block_size + 2, 3), (1, 2)), device)
        _judged(make, problem, what=f"{change} is declared and wrong: ")


def check_what_is_not_declared_is_refused(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Outside the capabilities: `check` gives reasons, and using it all the same raises Unsupported."""
    base = supported(make, device)
    can = make().capabilities
    outside: list[dict[str, Any]] = [{"dtype": name} for name in ("float64", "float16") if name not in can.dtypes]
    outside += [{"head_dim": dim} for dim in (40, 72, 512) if can.head_dims is not None and dim not in can.head_dims]
    outside += [{"layout": layout} for layout in LAYOUTS if layout not in can.layouts]
    stored = can.kv_dtypes or frozenset()
    outside += [{"kv_dtype": name} for name in ("float8_e5m2", "float8_e4m3fn", "int8") if name not in stored]
    outside += [{name: value} for name, value in _FEATURES.items() if name not in can.features]
    outside.append(_LATENT | {"num_kv_heads": 2} if "latent" in can.features else _LATENT)
    if can.block_size_multiple_of > 1:
        outside.append({"block_size": can.block_size_multiple_of + 1})
    if can.max_block_size is not None:
        outside.append({"block_size": can.max_block_size + can.block_size_multiple_of})
    outside.append({"num_heads": 2 * base.num_kv_heads + 1, "num_kv_heads": 2})
    for change in outside:
        spec = replace(base, **change)
        reasons = make().check(spec, device)
        assert isinstance(reasons, list), f"check returned {reasons!r}, not a list of sentences"
        assert reasons, f"{change} is not declared and check gives no reason against it"
        assert all(isinstance(reason, str) and reason for reason in reasons), f"reasons must be sentences: {reasons}"
        with refusal(f"setup with {change}", Unsupported):
            make().setup(spec, device)
    assert make().check(base, "abacus"), "an unknown device is not refused"
    backend, problem = _ready(make, Case(base, (3,), (1,)), device)
    if "lse" not in can.features:
        with refusal("lse, which is not declared", Unsupported):
            run_attention(backend, problem, lse=True)
    problem = build_problem(Case(replace(base, head_dim=2 * base.head_dim), (3,), (1,)), device)
    out = torch.full_like(problem.q, 7.0)
    with refusal("attend with twice the head dim it was set up for", Unsupported):
        backend.attend(problem.q, problem.pool, problem.batch, out)
    assert bool((out == 7.0).all()), "attend refused, and wrote to out"


def check_written_tokens_are_stored_exactly(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """`write` puts each token's K and V into its slot, bit for bit, and nothing elsewhere; negative slots are skipped.

    70000 stays 70000, and the null block keeps its bytes.
    """
    for spec in _layouts(make, device, latent=True):
        backend = prepared(make, spec, device)
        for tokens, padding in product((1, 7) if cases == "small" else (0, 1, 7, 33), (False, True)):
            pool, generator = _random_pool(spec, 8, device), torch.Generator().manual_seed(tokens)
            shape = (tokens, 3 * spec.num_kv_heads, spec.head_dim)
            packed = torch.randn(shape, generator=generator).to(torch_dtype(spec.dtype))
            if tokens and spec.dtype != "float16":
                packed[0, 0, 0] = packed[0, -1, -1] = 70000.0
            k, v = packed[:, : spec.num_kv_heads], packed[:, 2 * spec.num_kv_heads :]  # slices: not contiguous in T
            v = v if spec.latent_dim is None else k[..., : spec.latent_dim]
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
    """What `write` owes, on the CPU."""
    want, kept = _on_cpu(pool), slots >= 0
    index = places(slots[kept], pool.block_size, pool.layout)
    want.k[index], want.v[index] = k[kept], v[kept]
    return want


def _on_cpu(pool: LayerKV) -> LayerKV:
    """A copy of all that its blocks have."""
    index = None if pool.index is None else pool.index.cpu().clone()
    if pool.is_latent:
        return LayerKV.of_rows(pool.k.cpu().clone(), pool.v.shape[-1], pool.layout, index=index)
    return LayerKV(pool.k.cpu().clone(), pool.v.cpu().clone(), pool.layout)


def check_tokens_are_rotated_on_their_way(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """`rotate_and_write` is the fp64 rotation of q and k, rounded once, and `write`; its arguments stay as they are."""
    for spec in _layouts(make, device):
        backend = prepared(make, spec, device)
        for tokens, interleaved, table in ((7, False, True), (7, True, False), (1, False, False), (0, False, False)):
            generator = torch.Generator().manual_seed(tokens)
            rows, dtype = 40 if table else tokens, torch_dtype(spec.dtype)
            angles = torch.rand(rows, spec.head_dim // 2, generator=generator) * 1e4  # of far positions
            positions = torch.randperm(rows, generator=generator)[:tokens] if table else None
            rope = Rope(angles.cos().to(dtype), angles.sin().to(dtype), positions, interleaved)
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
    moved = replace(rope, cos=rope.cos.to(device), sin=rope.sin.to(device),
                    positions=None if rope.positions is None else rope.positions.to(device))  # fmt: skip
    got = backend.rotate_and_write(pool, *_parts(given, spec), moved, slots.to(device))

    assert torch.equal(given.cpu(), packed), f"{what}: q, k or v was changed"
    assert (got.shape, got.dtype) == (q.shape, q.dtype), f"{what}: q is {tuple(q.shape)} {q.dtype}, returned {got}"
    wrong = _rotation_error(got.cpu(), q, rope)
    assert not wrong, f"{what}: q {wrong}"
    stored = pool.k.cpu()[places(slots[kept], pool.block_size, pool.layout)]
    positions = kept if rope.positions is None else rope.positions[kept]
    wrong = _rotation_error(stored, k[kept], replace(rope, positions=positions))
    assert not wrong, f"{what}: k {wrong}"
    wrong = first_difference(pool, written(want, stored, v[kept], slots[kept]))
    assert not wrong, f"{what}: {wrong}"


def _parts(packed: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of (T, H + 2K, D): views, not contiguous in T."""
    heads, both = spec.num_heads, spec.num_heads + spec.num_kv_heads
    return packed[:, :heads], packed[:, heads:both], packed[:, both:]


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


def check_block_copies_are_exact_and_in_order(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """`copy_blocks` copies whole blocks in order (chains, swaps); a destination named twice is refused, unchanged."""
    for spec in _layouts(make, device, latent=True):
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
            want = _on_cpu(pool)
            for source, destination in pairs:
                for stored in want.tensors.values():
                    stored[destination] = stored[source].clone()
            backend.copy_blocks(pool, torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).to(device))
            wrong = first_difference(pool, want)
            assert not wrong, f"{spec}: copies {pairs}: {wrong}"
        pool = _random_pool(spec, 8, device)
        before = pool_bytes(pool)
        with refusal("copying two blocks into block 4", FrameworkError):
            backend.copy_blocks(pool, torch.tensor([(1, 4), (2, 4)], dtype=torch.int64).to(device))
        assert same_bytes(before, pool_bytes(pool)), "a refused copy changed the pool"


def _layouts(make: Make, device: str, *, latent: bool = False) -> list[AttentionSpec]:
    """A spec of each layout; with `latent` also caches of rows, with an indexer's keys, where those are served."""
    base = supported(make, device)
    specs = [replace(base, layout=layout) for layout in LAYOUTS]
    if latent and "latent" in make().capabilities.features:
        specs += [replace(spec, **_LATENT, index_dim=24) for spec in specs]
    return [spec for spec in specs if not make().check(spec, device)]


def _random_pool(spec: AttentionSpec, num_blocks: int, device: str) -> LayerKV:
    problem = build_problem(Case(spec, (spec.block_size * (num_blocks - 1),), (1,)), device, extra_blocks=0)
    for stored in problem.pool.tensors.values():
        stored[0] = 0.0
    return problem.pool


def first_difference(pool: LayerKV, want: LayerKV) -> str:
    for name, right in want.tensors.items():
        got = pool.tensors[name].cpu()
        unequal = torch.nonzero(got.view(torch.uint8) != right.view(torch.uint8))
        if len(unequal):
            index = tuple(unequal[0].tolist())
            return f"{name} differs in {len(unequal)} bytes, first in block {index[0]} at {index[1:]}"
    return ""


def check_rows_of_context_zero_give_zeros(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Padding rows (context 0, table of zeros) give zeros and -inf, alone and between live rows."""
    spec = supported(make, device)
    size = spec.block_size
    for contexts in ((0,), (0, 0, 0), (size + 1, 0, 2, 0)):
        backend, problem = _ready(make, Case(spec, contexts, (1,) * len(contexts)), device)
        before = pool_bytes(problem.pool)
        out, sums = run_attention(backend, problem, lse="lse" in backend.capabilities.features)
        empty = torch.tensor([context == 0 for context in contexts])
        rows = out.cpu()[empty]
        assert bool((rows == 0).all()), f"contexts {contexts}: a row of context 0 gives {rows.flatten()[:4].tolist()}"
        assert sums is None or bool((sums.cpu()[empty] == -math.inf).all()), f"contexts {contexts}: lse is not -inf"
        assert same_bytes(before, pool_bytes(problem.pool)), f"contexts {contexts}: attend wrote to the pool"
        _judged(make, problem, backend=backend)


def check_a_context_beyond_its_table_is_refused(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """max_context_len larger than the table holds: an error before anything is read or written."""
    spec = supported(make, device)
    backend, problem = _ready(make, Case(spec, (spec.block_size,), (1,)), device, extra_width=0)
    beyond = spec.block_size + 1
    problem.batch.context_lens.fill_(beyond)
    problem.batch.host_context_lens[:] = beyond
    problem.batch.max_context_len = beyond
    with refusal(f"a context of {beyond} with room for {spec.block_size}", FrameworkError):
        run_attention(backend, problem)


def check_what_is_no_input_changes_no_bit(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Unused slots that hold NaN, 1e4 or infinity, other block ids, another batch in between: the same output."""
    changes: list[dict[str, Any]] = [{"fill": fill} for fill in (0.0, math.nan, NULL_FILL, math.inf)]
    changes += [{"fill": 0.0, "placement": placement, "extra_blocks": 9} for placement in (1, 2)]
    for case in _samples(make, device, cases):
        backend, problem = _ready(make, case, device, fill=0.0)
        want, _ = run_attention(backend, problem)
        other = build_problem(replace(case, contexts=case.contexts[:1], queries=case.queries[:1]), device)
        for change in changes:
            run_attention(backend, other)
            got, _ = run_attention(backend, build_problem(case, device, **change))
            assert _equal(got, want), f"{case}: called again with {change} the output changes by {_gap(got, want)}"


def check_a_row_does_not_depend_on_its_batch(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Each row alone gives the bits it has in the batch. Only when `batch_invariant` is declared."""
    if not make().capabilities.batch_invariant:
        raise unittest.SkipTest("batch_invariant is not declared")
    for case in _samples(make, device, cases):
        _alone(*_ready(make, case, device), "alone differs from itself in the batch")


def _alone(backend: AttentionBackend, problem: Problem, rule: str) -> None:
    """Each row of the problem alone gives the bits that it has in the batch."""
    together, _ = run_attention(backend, problem)
    for row, (first, last) in enumerate(pairwise(problem.batch.host_query_starts.tolist())):
        got, _ = run_attention(backend, single_row(problem, row))
        want = together[first:last]
        assert _equal(got, want), f"{problem.case}: row {row} {rule}, by {_gap(got, want)}"


def check_extreme_logits_stay_finite(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Logits of -524288, equal logits and logits of hundreds: still the oracle's numbers.

    Also of rows whose last block has 3, 5 or 7 tokens: a backend that joins parts of a row by their log-sum-exps,
    rounded at such logits, is right by luck where each part has a power of two.
    """
    samples = _samples(make, device, "small")
    size = samples[0].spec.block_size
    odd = tuple(count * size + min(rest, size) for count, rest in ((5, 3), (1, 5), (2, 7)))
    for case in (*samples, replace(samples[0], contexts=odd, queries=(1, 1, min(3, odd[2])))):
        backend = prepared(make, case.spec, device)
        for name, query, key, scale in (
            ("q 64, k -64", 64.0, -64.0, 1.0),
            ("all keys equal", None, 0.5, 1.0),
            ("logits of hundreds", None, None, 100.0),
        ):
            problem = build_problem(case, device, scale_q=scale)
            if query is not None:
                problem.q.fill_(query)
            if key is not None:
                problem.pool.k[problem.batch.block_tables[problem.batch.block_tables > 0].long()] = key
            if backend.capabilities.lossy is None or scale == 1.0:
                _judged(make, problem, backend=backend, what=f"{name}: ")
            else:  # a small loss of a logit is a large one of the output
                out, _ = run_attention(backend, problem)
                assert bool(out.isfinite().all()), f"{name}: the output is not finite"


def check_rows_of_unequal_length(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Plain rows of one token to dozens of blocks in one batch, then as short chunks; and up to 128 heads a KV head.

    Wherever a row is split its parts merge right, lse too, and no group of heads is cut to what one tile holds.
    """
    wanted: list[dict[str, int]] = [{"block_size": 16}, {"num_heads": 32, "num_kv_heads": 1}]
    if "latent" in make().capabilities.features:
        wanted.append({"num_heads": 128, "num_kv_heads": 1, "head_dim": 576, "latent_dim": 512})
    if cases == "full":
        wanted += [{"block_size": 3}, {"block_size": 32}, {"num_heads": 128, "num_kv_heads": 1}]
    for choice in wanted:
        spec = _nearest(make, device, choice)
        size, longest = spec.block_size, 3 if "num_heads" in choice else 20 if cases == "small" else 70
        contexts = (longest * size + 1, 1, size, size - 1 or 1, 2 * size + 1, size + 1, 3 * size + 2)
        for queries in (1, 2) if cases == "full" else (1,):
            rows = sorted(((context, min(queries, context)) for context in contexts), key=lambda row: row[1] != 1)
            case = Case(spec, tuple(row[0] for row in rows), tuple(row[1] for row in rows), seed=size)
            _judged(make, build_problem(case, device), lse=True)


def check_contexts_beyond_8192(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """A decode row and a chunk of 3 over 8,500 keys beside a short row: the first keys and the last count, lse too."""
    _judge_long(make, device, 8500, {"block_size": 16}, (1, 3) if cases == "full" else (1,))


def _judge_long(make: Make, device: str, longest: int, wanted: dict[str, Any], queries: tuple[int, ...]) -> None:
    """Rows of that many keys, of which the first, the last and one between have a third of the weight each."""
    spec = _nearest(make, device, wanted | {"num_heads": 2, "num_kv_heads": 1})
    for query in queries:
        case = Case(spec, (3, longest) if query > 1 else (longest, 3), (1, query), seed=longest)
        problem = build_problem(case, device)
        row = case.contexts.index(longest)
        last = problem.q[sum(case.queries[: row + 1]) - 1, 0].float()
        strong = last * (math.log(4 * longest) / (spec.softmax_scale * float(last @ last)))
        for position in (0, longest // 2 + 1, longest - query):
            block = int(problem.batch.block_tables[row, position // spec.block_size])
            slot = torch.tensor([block * spec.block_size + position % spec.block_size])
            problem.pool.k[places(slot, spec.block_size, spec.layout)] = strong.to(problem.pool.k.dtype)
        _judged(make, problem, lse=True)


def check_many_rows(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """140 decode rows, 70 rows of 2, and a chunk of 150 tokens: every row is written, with its log-sum-exp."""
    spec = _nearest(make, device, {"num_heads": 2, "num_kv_heads": 1})
    size = spec.block_size
    many = tuple(1 + (7 * row) % (2 * size + 1) for row in range(140 if cases == "full" else 70))
    found = [Case(spec, many, (1,) * len(many), seed=5)]
    if cases == "full":
        found.append(Case(spec, tuple(context + 1 for context in many[:70]), (2,) * 70, seed=6))
        found.append(Case(spec, (size, 150 + size), (1, 150), seed=7))
    for case in found:
        _judged(make, build_problem(case, device), lse=True)


def check_large_contexts(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Contexts of 33,000 and 131,100 keys, blocks of 128 and 256, 520 decode rows, and a chunk of 600 tokens."""
    for longest, size in ((33_000, 128), (131_100, 16), (20_000, 256)):
        _judge_long(make, device, longest, {"block_size": size}, (1,) if cases == "small" else (1, 5))
    spec = _nearest(make, device, {"num_heads": 2, "num_kv_heads": 1, "block_size": 128})
    rows = tuple(1 + (37 * row) % (3 * spec.block_size) for row in range(520))
    _judged(make, build_problem(Case(spec, rows, (1,) * len(rows), seed=8), device), lse=True)
    _judged(make, build_problem(Case(spec, (5, 9000), (1, 600), seed=9), device), lse=True)


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
            _alone(prepared(make, spec, device), problem, "depends on who shares its blocks")


def check_values_decide_and_not_shapes(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """One object, the same shapes, the same tensors even, other values in them: nothing is remembered by shape."""
    spec = supported(make, device)
    size = spec.block_size
    case = Case(spec, (2 * size + 1, size - 1 or 1, size), (1, 1, 1), seed=1)
    backend, problem = _ready(make, case, device)
    _judged(make, problem, backend=backend)
    for seed in (2, 3):
        other = build_problem(replace(case, seed=seed), device, placement=seed)
        _judged(make, _overwrite(problem, other), backend=backend)
    shorter = build_problem(replace(case, contexts=(size + 1, 1, size), seed=4), device, extra_blocks=4, extra_width=3)
    _judged(make, _overwrite(problem, shorter), backend=backend)


def check_an_index_selects_the_highest_scores(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """`write_index` stores the keys, and `select` gives each query the slots of the tokens that score highest.

    Of decode rows and chunks, of contexts below and above what is selected, each by its own table, causally; with NaN
    in the keys that no row has. What is selected is a block table: `attend` over it is attention to those tokens alone.
    """
    if "latent" not in make().capabilities.features:
        raise unittest.SkipTest("latent caches are not declared")
    for spec in _layouts(make, device, latent=True)[-1:]:
        size = spec.block_size
        contexts, queries = (size + 3, 3 * size, 1, 0, 2 * size + 1, 5), (1, 1, 1, 1, size + 2, 5)
        problem = build_problem(Case(spec, contexts, queries, seed=4), device)
        backend, pool, batch = prepared(make, spec, device), problem.pool, problem.batch
        generator, tokens = torch.Generator().manual_seed(5), sum(queries)
        assert pool.index is not None
        keys = torch.randn(tokens, pool.index.shape[-1], generator=generator).to(pool.index.dtype)
        want = _on_cpu(pool)
        assert want.index is not None
        kept = batch.slot_mapping.cpu() >= 0
        slots = batch.slot_mapping.cpu()[kept]
        want.index[slots // size, slots % size] = keys[kept]
        backend.write_index(pool, keys.to(device), batch.slot_mapping)
        wrong = first_difference(pool, want)
        assert not wrong, f"{spec}: an indexer's keys at slots {slots.tolist()[:9]}...: {wrong}"
        q = torch.randn(tokens, 3, pool.index.shape[-1], generator=generator).to(pool.index.dtype)
        weights = torch.randn(tokens, 3, generator=generator).to(pool.index.dtype)
        for count in (1, size, 4 * size):
            found = backend.select(q.to(device), weights.to(device), pool, batch, count)
            _check_selection(found.cpu(), _index_scores(q, weights, want, problem), count, batch.max_context_len)
        _check_sparse(make, problem, backend.select(q.to(device), weights.to(device), pool, batch, size))


def _index_scores(q: Tensor, weights: Tensor, pool: LayerKV, problem: Problem) -> list[dict[int, float]]:
    """The score of each slot that a query sees, in fp64, for each query."""
    assert pool.index is not None
    size, scores = pool.block_size, list[dict[int, float]]()
    tables = problem.batch.block_tables.cpu().long()
    for table, context, count in zip(tables, problem.case.contexts, problem.case.queries, strict=True):
        blocks, offsets = table[torch.arange(context) // size], torch.arange(context) % size
        slots, keys = (blocks * size + offsets).tolist(), pool.index[blocks, offsets].double()
        for position in range(context - count, context):
            token = len(scores)
            worth = torch.relu(keys[: position + 1] @ q[token].double().T) @ weights[token].double()
            scores.append(dict(zip(slots[: position + 1], worth.tolist(), strict=True)))
    return scores


def _check_selection(slots: Tensor, scores: list[dict[int, float]], count: int, longest: int) -> None:
    assert slots.shape == (len(scores), min(count, longest)), f"select {count}: slots are {tuple(slots.shape)}"
    assert slots.dtype == torch.int32, f"select {count}: slots are {slots.dtype}"
    for token, (row, seen) in enumerate(zip(slots.tolist(), scores, strict=True)):
        chosen, rest = row[: min(count, len(seen))], row[min(count, len(seen)) :]
        assert not any(rest), f"select {count}, query {token}: {rest} follow the slots of {len(seen)} tokens, must be 0"
        assert len(set(chosen)) == len(chosen), f"select {count}, query {token}: a slot is named twice: {chosen}"
        assert set(chosen) <= seen.keys(), f"select {count}, query {token}: {chosen} are not all slots that it sees"
        left = [score for slot, score in seen.items() if slot not in chosen]
        least = min((seen[slot] for slot in chosen), default=0.0)
        assert least >= max(left, default=least) - 1e-3, (
            f"select {count}, query {token}: {least} chosen, {max(left)} not"
        )


def _check_sparse(make: Make, problem: Problem, slots: Tensor) -> None:
    """`attend` over selected slots, each a block of one token, is attention to these tokens."""
    spec, pool, device = replace(problem.spec, block_size=1, index_dim=None), problem.pool, str(slots.device)
    if make().check(spec, device):
        return
    rows = pool.k.reshape(-1, 1, 1, spec.head_dim)
    counts = [min(len(slots[0]), position + 1)
              for context, count in zip(problem.case.contexts, problem.case.queries, strict=True)
              for position in range(context - count, context)]  # fmt: skip
    case = Case(spec, tuple(counts), (1,) * len(counts))
    batch = Batch.of(slots, problem.batch.slot_mapping, counts, case.queries)
    sparse = Problem(case, problem.q, LayerKV.of_rows(rows, pool.v.shape[-1], spec.layout), batch)
    _judged(make, sparse, what="over selected tokens: ")


def _overwrite(into: Problem, other: Problem) -> Problem:
    """`other`'s values in the tensors of `into`, which have its shapes; the batch object stays, host copies too."""
    stored = into.pool.tensors
    pairs = [(into.q, other.q), *((stored[name], theirs) for name, theirs in other.pool.tensors.items())]
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
    backend, problem = _ready(make, Case(spec, (3 * size + 1, size, 2), (1, 1, 1)), device)
    plain = problem.pool
    both = torch.stack((plain.k, plain.v), dim=1)
    pool = problem.pool = LayerKV(both[:, 0], both[:, 1], plain.layout, plain.k_scale, plain.v_scale)
    try:
        _judged(make, problem, backend=backend, what="K and V interleaved: ")
    except FrameworkError:
        return
    shape = (3, spec.num_kv_heads, spec.head_dim)
    k, v = (torch.randn(shape, generator=torch.Generator().manual_seed(s)).to(plain.k.dtype).cpu() for s in (1, 2))
    slots = torch.tensor([size, 2 * size + size // 2, 3 * size - 1])
    want = written(pool, k, v, slots)
    want.k[1], want.v[1] = want.k[2].clone(), want.v[2].clone()
    backend.write(pool, k.to(device), v.to(device), slots.to(device))
    backend.copy_blocks(pool, torch.tensor([[2, 1]], dtype=torch.int64, device=device))
    wrong = first_difference(pool, want)
    assert not wrong, f"K and V interleaved: after writing slots {slots.tolist()} and copying block 2 to 1: {wrong}"


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
    backend, problem = _ready(make, case, device)
    problem.batch.max_context_len = problem.batch.block_tables.shape[1] * size
    host = problem.batch.host_context_lens.copy()
    out = empty_output(problem)

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
    backend, problem = _ready(make, Case(spec, (2 * spec.block_size, 3), (1, 1)), device, extra_blocks=1)
    pool, outside = problem.pool, problem.pool.num_blocks - 1
    pool.k, pool.v = pool.k[:outside], pool.v[:outside]  # the memory is there all the same
    problem.batch.block_tables[0, 0] = outside
    try:
        run_attention(backend, problem)
    except Exception:  # a backend may say it in its own words: the engine names it
        return
    raise AssertionError(f"a table names block {outside} of a pool of {outside} (0 to {outside - 1}), and it was read")


def check_numbers_match_fp64_over_the_grid(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Every case near the oracle with all unused slots NaN; lse too when declared; the pool not touched."""
    wrong: list[str] = []
    chosen = grid(make, device, cases)
    if not chosen:
        supported(make, device)  # skips with the backend's reasons
        raise AssertionError(f"no case of the {cases} grid is supported on {device}")
    for case in chosen:
        backend, problem = _ready(make, case, device)
        before = pool_bytes(problem.pool)
        wrong += _wrong(backend, problem, lse=cases == "full" or case.seed % 3 == 0)
        if not same_bytes(before, pool_bytes(problem.pool)):
            wrong.append(f"{case}: attend wrote to the pool")
    more = f"\nand {len(wrong) - 3} more" if len(wrong) > 3 else ""
    assert not wrong, f"{len(wrong)} of {len(chosen)} cases are wrong:\n" + "\n".join(wrong[:3]) + more


def check_blocks_beyond_2_31_elements_are_addressed(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Blocks whose first element is past 2**31 are read, written and copied right: int32 offsets overflow there.

    The pool is allocated and never touched but in a few blocks, so on the CPU it costs address space only. Runs in a
    process of its own, because an overflow is a segmentation fault.
    """
    supported(make, device)
    elsewhere(far_blocks, make, device)


def far_blocks(make: Make, device: str) -> str:
    """That check, in the process of its own."""
    base = supported(make, device)
    dtypes = sorted(make().capabilities.dtypes, key=lambda name: (torch_dtype(name).itemsize, name))
    spec = next(spec for name in dtypes if not make().check(spec := replace(base, dtype=name), device))
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
    _judged(make, problem, backend=backend, what=f"blocks {batch.block_tables.tolist()} of {num_blocks}: ")
    _check_far_writes(backend, far, num_blocks - 1, device)
    return ""


def _check_far_writes(backend: AttentionBackend, far: LayerKV, last: int, device: str) -> None:
    spec = backend.spec
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


def _untouched(like: Tensor, num_blocks: int) -> Tensor:
    need = num_blocks * math.prod(like.shape[1:]) * like.element_size()
    if like.device.type == "cuda" and torch.cuda.mem_get_info(like.device)[0] < need + 2**30:
        raise unittest.SkipTest(f"needs {need / 2**30:.1f} GiB of free device memory a tensor")
    try:
        return torch.empty((num_blocks, *like.shape[1:]), dtype=like.dtype, device=like.device)
    except RuntimeError as error:
        raise unittest.SkipTest(f"no address space for {need / 2**30:.1f} GiB: {error}") from error


def _equal(a: Tensor, b: Tensor) -> bool:
    """Bitwise; NaN is never equal."""
    return bool((a == b).all())


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


backend_checks, backend_large_checks = checks_of(globals()), large_checks_of(globals())
"""All checks, cheap first, and the large part; each is called as check(make, device="cpu", cases="full" | "small")."""
