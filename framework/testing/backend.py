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
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from framework.errors import FrameworkError, Unsupported
from framework.interfaces.backend import LAYOUTS
from framework.testing.attention_cases import (
    LENGTHS,
    NULL_FILL,
    Case,
    Problem,
    build_problem,
    query_lengths,
    single_row,
)
from framework.testing.attention_runs import (
    Make,
    grid,
    judge,
    pool_bytes,
    prepared,
    refusal,
    run_attention,
    same_bytes,
    supported,
    wrong_lse,
)
from framework.testing.backend_batches import (
    batch_checks,
    check_block_copies_are_exact_and_in_order,
    check_blocks_beyond_2_31_elements_are_addressed,
    check_padding_slots_write_nothing,
    check_tokens_are_rotated_on_their_way,
    check_written_tokens_are_stored_exactly,
)

if TYPE_CHECKING:
    from torch import Tensor


def _samples(make: Make, device: str, cases: str) -> list[Case]:
    """A few shapes for the rules that need several runs each: decode, chunk and mixed, edges in all of them."""
    wanted = [{"block_size": 16}] if cases == "small" else [{"block_size": 3}, {"block_size": 16}, {"head_dim": 128}]
    found = []
    for at, choice in enumerate(wanted):
        try:
            spec = supported(make, device, **choice)
        except unittest.SkipTest:
            spec = supported(make, device)
        size = spec.block_size
        for kind in ("mixed",) if cases == "small" else ("1", "5", "mixed"):
            lengths = LENGTHS["edges" if cases == "small" else "ragged"](size)
            found.append(Case(spec, *query_lengths(kind, lengths, size), seed=at))
    return found


def check_numbers_match_fp64_over_the_grid(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Every case near the oracle with all unused slots NaN; lse too when declared; the pool not touched."""
    wrong: list[str] = []
    chosen = grid(make, device, cases)
    if not chosen:
        supported(make, device)  # skips with the backend's reasons
        raise AssertionError(f"no case of the {cases} grid is supported on {device}")
    for case in chosen:
        problem = build_problem(case, device)
        backend = prepared(make, case.spec, device)
        before = pool_bytes(problem.pool)
        both = "lse" in backend.capabilities.features and (cases == "full" or case.seed % 3 == 0)
        for lse in (False, True) if both else (False,):
            out, sums = run_attention(backend, problem, lse=lse)
            verdict = judge(out, problem, backend.capabilities.lossy)
            if not verdict.ok:
                wrong.append(f"{verdict}{' (with lse)' if lse else ''}")
            if sums is not None:
                wrong += wrong_lse(sums, problem, verdict)
        if not same_bytes(before, pool_bytes(problem.pool)):
            wrong.append(f"{case}: attend wrote to the pool")
    assert not wrong, f"{len(wrong)} of {len(chosen)} cases are wrong:\n" + "\n".join(wrong[:20])


def check_unused_slots_are_never_read(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Unused slots and blocks hold NaN, then 1e4, then infinity: the output is the same, bit for bit."""
    for case in _samples(make, device, cases):
        backend = prepared(make, case.spec, device)
        want, _ = run_attention(backend, build_problem(case, device, fill=0.0))
        for fill in (math.nan, NULL_FILL, math.inf):
            got, _ = run_attention(backend, build_problem(case, device, fill=fill))
            assert _equal(got, want), f"{case}: unused slots holding {fill} change the output by {_gap(got, want)}"


def check_physical_block_ids_do_not_matter(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """The same tokens in other blocks: bit-identical."""
    for case in _samples(make, device, cases):
        backend = prepared(make, case.spec, device)
        want, _ = run_attention(backend, build_problem(case, device, placement=0))
        for placement in (1, 2):
            got, _ = run_attention(backend, build_problem(case, device, placement=placement, extra_blocks=9))
            assert _equal(got, want), f"{case}: other block ids change the output by {_gap(got, want)}"


def check_a_second_run_gives_the_same_bits(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """The same call again, three times, and after another batch in between: bit-identical."""
    for case in _samples(make, device, cases):
        backend = prepared(make, case.spec, device)
        problem = build_problem(case, device)
        other = build_problem(replace(case, contexts=case.contexts[:1], queries=case.queries[:1]), device)
        want, _ = run_attention(backend, problem)
        for _ in range(3):
            run_attention(backend, other)
            got, _ = run_attention(backend, problem)
            assert _equal(got, want), f"{case}: a repeated call changes the output by {_gap(got, want)}"


def check_a_row_does_not_depend_on_its_batch(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Each row alone gives the bits it has in the batch. Only when `batch_invariant` is declared."""
    if not make().capabilities.batch_invariant:
        raise unittest.SkipTest("batch_invariant is not declared")
    for case in _samples(make, device, cases):
        backend = prepared(make, case.spec, device)
        problem = build_problem(case, device)
        together, _ = run_attention(backend, problem)
        for row in range(len(case.contexts)):
            alone = single_row(problem, row)
            got, _ = run_attention(backend, alone)
            first, last = problem.batch.host_query_starts[row : row + 2]
            want = together[int(first) : int(last)]
            assert _equal(got, want), f"{case}: row {row} alone differs by {_gap(got, want)} from itself in the batch"


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
        for name, change in _EXTREMES.items():
            problem = build_problem(case, device)
            change(problem)
            out, _ = run_attention(backend, problem)
            loss = backend.capabilities.lossy
            verdict = judge(out, problem, loss)
            if loss is not None and name in _AMPLIFIED:  # a small loss of a logit is a large one of the output
                assert bool(out.isfinite().all()), f"{name}: the output is not finite"
                continue
            assert verdict.ok, f"{name}: {verdict}"


def _opposed(problem: Problem) -> None:
    problem.q.fill_(64.0)
    problem.pool.k[_used(problem)] = -64.0


def _all_equal(problem: Problem) -> None:
    problem.pool.k[_used(problem)] = 0.5


def _sharp(problem: Problem) -> None:
    problem.q.mul_(100.0)


def _used(problem: Problem) -> Tensor:
    tables = problem.batch.block_tables.long().flatten()
    return tables[tables > 0]


_EXTREMES: dict[str, Callable[[Problem], None]] = {
    "q 64, k -64": _opposed,
    "all keys equal": _all_equal,
    "logits of hundreds": _sharp,
}


def check_rows_of_context_zero_give_zeros(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Padding rows (context 0, table of zeros) give zeros and -inf, alone and between live rows."""
    spec = supported(make, device)
    size = spec.block_size
    for contexts in ((0,), (0, 0, 0), (size + 1, 0, 2, 0)):
        backend = prepared(make, spec, device)
        problem = build_problem(Case(spec, contexts, (1,) * len(contexts)), device)
        before = pool_bytes(problem.pool)
        out, sums = run_attention(backend, problem, lse="lse" in backend.capabilities.features)
        empty = torch.tensor([context == 0 for context in contexts])
        rows = out.cpu()[empty]
        assert bool((rows == 0).all()), f"contexts {contexts}: a row of context 0 gives {rows.flatten()[:4].tolist()}"
        assert sums is None or bool((sums.cpu()[empty] == -math.inf).all()), f"contexts {contexts}: lse is not -inf"
        assert same_bytes(before, pool_bytes(problem.pool)), f"contexts {contexts}: attend wrote to the pool"
        verdict = judge(out, problem, backend.capabilities.lossy)
        assert verdict.ok, str(verdict)


def check_a_context_beyond_its_table_is_refused(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """max_context_len larger than the table holds: an error before anything is read or written."""
    spec = supported(make, device)
    backend = prepared(make, spec, device)
    problem = build_problem(Case(spec, (spec.block_size,), (1,)), device, extra_width=0)
    beyond = spec.block_size + 1
    problem.batch.context_lens.fill_(beyond)
    problem.batch.host_context_lens[:] = beyond
    problem.batch.max_context_len = beyond
    with refusal(f"a context of {beyond} with room for {spec.block_size}", FrameworkError):
        run_attention(backend, problem)


def check_what_is_declared_is_served(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Every dtype, head dim, layout and feature the capabilities name on this device passes `check` and is right."""
    base = supported(make, device)
    can = make().capabilities
    asked: list[dict[str, Any]] = [{"dtype": dtype} for dtype in sorted(can.dtypes)]
    asked += [{"layout": layout} for layout in sorted(can.layouts)]
    asked += [{"head_dim": dim} for dim in sorted(can.head_dims or ())]
    asked += [{"kv_dtype": dtype} for dtype in sorted(can.kv_dtypes or ())]
    values: dict[str, Any] = {"sliding_window": 5, "soft_cap": 2.0, "sinks": True, "alibi": True}
    asked += [{name: values[name]} for name in sorted(can.features & set(values))]
    for change in asked if cases == "full" else asked[:: max(1, len(asked) // 6)]:
        spec = replace(base, **change)
        reasons = make().check(spec, device)
        assert not reasons, f"capabilities name {change}, and check refuses it: {reasons}"
        problem = build_problem(Case(spec, (spec.block_size + 2, 3), (1, 2)), device)
        out, _ = run_attention(prepared(make, spec, device), problem)
        verdict = judge(out, problem, can.lossy)
        assert verdict.ok, f"{change} is declared and wrong: {verdict}"


def check_what_is_not_declared_is_refused(make: Make, device: str = "cpu", cases: str = "full") -> None:
    """Outside the capabilities: `check` gives reasons, and using it all the same raises Unsupported."""
    base = supported(make, device)
    can = make().capabilities
    outside: list[dict[str, Any]] = [{"dtype": name} for name in ("float64", "float16") if name not in can.dtypes]
    outside += [{"head_dim": dim} for dim in (40, 72, 512) if can.head_dims is not None and dim not in can.head_dims]
    outside += [{"layout": layout} for layout in LAYOUTS if layout not in can.layouts]
    stored = can.kv_dtypes or frozenset()
    outside += [{"kv_dtype": name} for name in ("float8_e5m2", "float8_e4m3fn", "int8") if name not in stored]
    values: dict[str, Any] = {"sliding_window": 5, "soft_cap": 2.0, "sinks": True, "alibi": True}
    outside += [{name: value} for name, value in values.items() if name not in can.features]
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
    backend = prepared(make, base, device)
    problem = build_problem(Case(replace(base, head_dim=2 * base.head_dim), (3,), (1,)), device)
    out = torch.full_like(problem.q, 7.0)
    with refusal("attend with twice the head dim it was set up for", Unsupported):
        backend.attend(problem.q, problem.pool, problem.batch, out)
    assert bool((out == 7.0).all()), "attend refused, and wrote to out"
    if "lse" not in can.features:
        with refusal("lse, which is not declared", Unsupported):
            run_attention(backend, build_problem(Case(base, (3,), (1,)), device), lse=True)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Bitwise; NaN is never equal."""
    return bool((a == b).all())


def _gap(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


_AMPLIFIED = ("logits of hundreds",)

backend_checks = (
    check_what_is_declared_is_served,
    check_what_is_not_declared_is_refused,
    check_written_tokens_are_stored_exactly,
    check_padding_slots_write_nothing,
    check_tokens_are_rotated_on_their_way,
    check_block_copies_are_exact_and_in_order,
    check_rows_of_context_zero_give_zeros,
    check_a_context_beyond_its_table_is_refused,
    check_unused_slots_are_never_read,
    check_physical_block_ids_do_not_matter,
    check_a_second_run_gives_the_same_bits,
    check_a_row_does_not_depend_on_its_batch,
    check_extreme_logits_stay_finite,
    *batch_checks,
    check_numbers_match_fp64_over_the_grid,
    check_blocks_beyond_2_31_elements_are_addressed,
)
"""All checks, cheap first; each is called as check(make, device="cpu", cases="full" | "small")."""
