"""The Triton kernels, run by Triton's interpreter: the GPU's tile shapes and the interpreter's own."""

from __future__ import annotations

import functools
import subprocess
import sys
import unittest
from typing import Any

import numpy as np
import pytest
import torch

from framework.errors import InvalidArgument
from framework.interfaces.backend import AttentionSpec, Batch
from framework_testing.attention_cases import Case, Problem, build_problem, pairwise
from framework_testing.attention_runs import judge, run_attention, wrong_lse
from framework_testing.backend import (
    backend_checks,
    check_blocks_beyond_2_31_elements_are_addressed,
)
from framework_triton import launch, plan
from framework_triton.backend import TritonBackend
from framework_triton.configs import ARCHS
from framework_triton.kernels import interpreted
from framework_triton.launch import Launcher

pytest.importorskip("triton", reason="triton is not installed")

MAKES = {
    "interpreter's shapes": TritonBackend,
    "sm_90's shapes": functools.partial(TritonBackend, arch="sm_90"),
    "sm_90's shapes, split": functools.partial(TritonBackend, arch="sm_90", split_tokens=16),
    "interpreter's shapes, split": functools.partial(TritonBackend, split_tokens=16),
}
LENGTHS = (1, 16, 83, 0, 15, 33, 17)
CHUNKS = (1, 1, 1, 1, 15, 18, 17)


def make_spec(**changes: Any) -> AttentionSpec:
    base: dict[str, Any] = {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "dtype": "float32",
        "block_size": 16,
    }
    return AttentionSpec(**(base | changes))


def ready(spec: AttentionSpec, **arguments: Any) -> TritonBackend:
    backend = TritonBackend(**arguments)
    backend.setup(spec, "cpu")
    return backend


def judged(make: Any, problem: Problem) -> None:
    """Output and log-sum-exps are those of float64, up to rounding."""
    backend = make()
    backend.setup(problem.spec, "cpu")
    out, lse = run_attention(backend, problem, lse=True)
    verdict = judge(out, problem)
    assert verdict.ok, f"{make}: {verdict}"
    assert lse is not None
    assert not wrong_lse(lse, problem, verdict), make


@pytest.mark.parametrize(  # unsplit: tests/conformance
    "name", [pytest.param("sm_90's shapes, split", marks=pytest.mark.slow), "interpreter's shapes, split"]
)
@pytest.mark.parametrize(
    "check",
    [check for check in backend_checks if check is not check_blocks_beyond_2_31_elements_are_addressed],
    ids=lambda check: check.__name__,
)
def test_the_kernels_keep_the_backends_contract(check: Any, name: str) -> None:
    try:
        check(MAKES[name], cases="small")
    except unittest.SkipTest as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(
    "changes",
    [
        {"sinks": True, "sliding_window": 17, "alibi": True, "soft_cap": 2.0},
        {"attention_chunk": 17},
        {"sinks": True},
        {"head_dim": 46, "block_size": 3, "layout": "HND"},
        {"dtype": "float16", "block_size": 32},
        {"dtype": "bfloat16", "kv_dtype": "float8_e4m3fn", "num_heads": 10},
        {"dtype": "float16", "kv_dtype": "int8", "num_heads": 6, "sinks": True, "sliding_window": 17},
        {"kv_dtype": "int8", "head_dim": 46, "block_size": 3, "layout": "HND", "soft_cap": 2.0},
        {"num_heads": 5, "num_kv_heads": 1, "head_dim": 80, "block_size": 256},
        {"sliding_window": 1},
        {"soft_cap": 50.0, "scale": 3.0},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            make, id=name, marks=[pytest.mark.slow] if name in ("sm_90's shapes", "interpreter's shapes") else []
        )
        for name, make in MAKES.items()
    ],
)
def test_features_together_match_fp64_in_decode_and_mixed_batches(make: Any, changes: dict[str, Any]) -> None:
    for queries in ((1,) * len(LENGTHS), CHUNKS):
        judged(make, build_problem(Case(make_spec(**changes), LENGTHS, queries)))


MEETING = pairwise(
    {
        "block_size": (1, 2, 8, 16, 64, 128, 256),
        "head_dim": (64, 96, 128, 192, 256),
        "kv_dtype": (None, "float8_e4m3fn", "int8"),
        "layout": ("NHD", "HND"),
        "make": tuple(MAKES),
        "feature": ("none", "sinks", "alibi", "soft_cap", "sliding_window"),
        "dtype": ("float32", "float16", "bfloat16"),
    },
    lambda row: True,
)
"""Every two of these values meet in one case, with and without its first row being decoded."""


@pytest.mark.parametrize("at", range(len(MEETING)))
def test_head_dims_pages_stored_dtypes_layouts_and_features_meet(at: int) -> None:
    row = dict(MEETING[at])
    make, feature, size = row.pop("make"), row.pop("feature"), row["block_size"]
    values = {"sinks": True, "alibi": True, "soft_cap": 2.0, "sliding_window": size + 1}
    spec = make_spec(**row, **({} if feature == "none" else {feature: values[feature]}))
    context = max(size + 3, 21)
    problem = build_problem(Case(spec, (context, 2, context - 1), (1, 1, 4), seed=at))
    judged(MAKES[make], problem)


def _batch(lengths: np.ndarray, block_size: int, width: int) -> Batch:
    rows = len(lengths)
    return Batch(
        block_tables=torch.zeros(rows, width, dtype=torch.int32),
        context_lens=torch.from_numpy(lengths.astype(np.int32)),
        query_starts=torch.arange(rows + 1, dtype=torch.int32),
        slot_mapping=torch.full((rows,), -1),
        max_query_len=1,
        max_context_len=width * block_size,
        num_decodes=rows,
    )


@pytest.mark.parametrize("window", [None, 1, 100, 1000])
@pytest.mark.parametrize("num_sms", [2, 16, 264])
def test_splits_cover_every_visible_token_once_and_fill_the_device(num_sms: int, window: int | None) -> None:
    spec = make_spec(sliding_window=window)
    generator = np.random.default_rng(0)
    for rows in (1, 3, 32):
        lengths = generator.integers(0, 5000, rows)
        lengths[0] = 5000
        launcher = Launcher(spec, "cpu", arch=ARCHS["sm_90"], num_sms=num_sms, split_tokens=None)
        step = launcher.plan(_batch(lengths, 16, 320))
        if step.work is None:
            assert step.num_work == rows
            continue
        work = step.work[: step.num_work * 4].reshape(-1, 4)
        live = work[work[:, 0] >= 0]
        share = 2 * num_sms
        assert len(live) <= step.num_work == (-(-rows // share) + 3) * share
        assert bool((work[len(live) :, 0] == -1).all()), f"spare items must be marked: {work.tolist()}"
        for row, length in enumerate(lengths.tolist()):
            mine = live[live[:, 0] == row]
            seen = [token for _, start, end, _ in mine.tolist() for token in range(start, end)]
            visible = range(max(0, length - window) if window else 0, length)
            assert len(seen) == len(set(seen)), f"row {row}: a token in two splits, {mine.tolist()}"
            assert set(visible) <= set(seen) <= set(range(length)), f"row {row} of {length}: {mine.tolist()}"
            assert bool((mine[:, 3] == len(mine)).all()), f"row {row}: {mine.tolist()}"
        if rows == 1 and window is None:
            assert len(live) >= min(5000 // 128, share) // 2, f"one long row is not split: {work.tolist()}"


def test_rows_split_by_work_match_fp64() -> None:
    spec = make_spec(dtype="float16")
    problem = build_problem(Case(spec, (1500, 5, 700), (1, 1, 1)))
    launcher = Launcher(spec, "cpu", arch=ARCHS["sm_90"], num_sms=4, split_tokens=None)
    step = launcher.plan(problem.batch)
    assert step.rows is not None
    splits = step.rows[:6].reshape(3, 2)[:, 1].tolist()
    assert splits == [4, 1, 2], f"12, 1 and 6 tiles in at most 8 items: 3 tiles a split, found {splits}"
    out = torch.full_like(problem.q, float("nan"))
    launcher.attend(problem.q, problem.pool, step, out, None)
    assert judge(out, problem).ok, str(judge(out, problem))


CHUNK_FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window": 300},
    "sinks": {"sinks": True},
    "cap_alibi": {"soft_cap": 20.0, "alibi": True},
    "fp8": {"kv_dtype": "float8_e4m3fn", "dtype": "bfloat16"},
    "int8": {"kv_dtype": "int8", "dtype": "bfloat16"},
}


@pytest.mark.parametrize("features", list(CHUNK_FEATURES))
def test_a_short_chunk_behind_a_long_prefix_is_split_over_its_context(
    features: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = _record_launches(monkeypatch)
    spec = make_spec(**({"dtype": "float16"} | CHUNK_FEATURES[features]))
    problem = build_problem(Case(spec, (1500, 700, 9), (20, 3, 9)))
    launcher = Launcher(spec, "cpu", arch=ARCHS["sm_90"], num_sms=132, split_tokens=None)
    out = torch.full_like(problem.q, float("nan"))
    lse = torch.full(problem.q.shape[:2], float("nan"))
    launcher.attend(problem.q, problem.pool, launcher.plan(problem.batch), out, lse)
    names = [name for name, *_ in launched]
    assert names == ["prefill", "merge_splits"], names
    assert judge(out, problem).ok, str(judge(out, problem))
    assert not bool(torch.isnan(lse).any()), lse


@pytest.mark.parametrize("num_heads", [128, 80])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_groups_of_more_heads_than_a_tile_holds_are_cut_into_blocks(num_heads: int, dtype: str) -> None:
    spec = make_spec(num_heads=num_heads, num_kv_heads=1, head_dim=64, dtype=dtype)
    for lengths, queries in (((40, 3, 17), (1, 1, 1)), ((33, 20), (7, 20))):
        judged(MAKES["sm_90's shapes"], build_problem(Case(spec, lengths, queries)))


def test_block_copies_run_side_by_side_unless_one_reads_what_another_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = _record_launches(monkeypatch)
    spec = make_spec()
    problem = build_problem(Case(spec, (100,), (1,)))
    backend = ready(spec)
    for pairs, grid in (([(1, 2), (3, 4), (1, 5)], 3), ([(1, 2), (2, 3)], 1), ([(2, 1), (1, 2)], 1)):
        pool = problem.pool
        expected = pool.k.clone()
        for source, destination in pairs:
            expected[destination] = expected[source]
        launched.clear()
        backend.copy_blocks(pool, torch.tensor(pairs))
        assert [call[1][1] for call in launched] == [grid], launched
        assert torch.equal(torch.nan_to_num(pool.k), torch.nan_to_num(expected)), pairs


def test_one_split_a_row_needs_neither_plan_nor_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = _record_launches(monkeypatch)
    spec = make_spec()
    run_attention(ready(spec), build_problem(Case(spec, LENGTHS, (1,) * len(LENGTHS))))
    assert [name for name, *_ in launched] == ["decode"], launched
    launched.clear()
    run_attention(ready(spec, split_tokens=16), build_problem(Case(spec, LENGTHS, (1,) * len(LENGTHS))))
    assert [name for name, *_ in launched] == ["plan_splits", "decode", "merge_splits"], launched


def test_launches_depend_on_shapes_and_host_bounds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = _record_launches(monkeypatch)
    spec = make_spec()
    for arguments in ({}, {"arch": "sm_90", "split_tokens": 16}):
        seen = []
        for lengths in ((83, 1, 40, 20), (83, 83, 80, 81), (83, 0, 7, 18)):
            problem = build_problem(Case(spec, lengths, (1, 1, 7, 18)), extra_width=9)
            tables = torch.zeros(4, 16, dtype=torch.int32)
            tables[:, : problem.batch.block_tables.shape[1]] = problem.batch.block_tables[:, :16]
            problem.batch.block_tables = tables
            launched.clear()
            run_attention(ready(spec, **arguments), problem)
            seen.append(list(launched))
        assert seen[0] == seen[1] == seen[2], seen


def test_the_same_process_interprets_whatever_imported_triton_before() -> None:
    """Also with TRITON_INTERPRET unset and triton already imported, as torch.compile does."""
    code = (
        "import triton, triton.language, torch\n"
        "from framework_testing.attention_cases import Case, build_problem\n"
        "from framework_testing.attention_runs import judge, run_attention\n"
        "from framework.interfaces.backend import AttentionSpec\n"
        "from framework_triton.backend import TritonBackend\n"
        "spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, dtype='float32', block_size=4)\n"
        "for _ in range(2):\n"
        "    backend = TritonBackend(split_tokens=4); backend.setup(spec, 'cpu')\n"
        "    problem = build_problem(Case(spec, (9, 30), (1, 5)))\n"
        "    out, _ = run_attention(backend, problem)\n"
        "    assert judge(out, problem).ok, judge(out, problem)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Triton's interpreter") == 1, f"must be said once: {done.stderr!r}"


def test_choosing_the_class_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys, framework_triton.backend as module\n"
        "module.TritonBackend()\n"
        "assert not {'torch', 'triton'} & set(sys.modules), sorted(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_missing_triton_is_a_reason_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    reasons = TritonBackend().check(make_spec(), "cpu")
    assert any("triton is not installed" in reason for reason in reasons), reasons


def test_unknown_architectures_and_splits_below_one_token_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="sm_80, sm_90"):
        TritonBackend(arch="sm_70")
    with pytest.raises(InvalidArgument, match="split_tokens"):
        TritonBackend(split_tokens=0)


def test_kernels_are_launched_on_the_device_of_their_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[int] = []
    launched: list[tuple[str, tuple[int, ...]]] = []

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            current.append(self.index)

        def __exit__(self, *error: object) -> None:
            current.pop()

    class Recorded:
        def __init__(self, function: Any) -> None:
            self._name = function.__name__

        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **constants: launched.append((self._name, tuple(current)))

    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(launch, "compiled", Recorded)
    spec = make_spec()
    problem = build_problem(Case(spec, (900, 30), (1, 12)))
    launcher = Launcher(spec, "cuda:1", arch=ARCHS["sm_90"], num_sms=0, split_tokens=None)
    new = torch.zeros(2, spec.num_kv_heads, spec.head_dim)
    launcher.attend(problem.q, problem.pool, launcher.plan(problem.batch), torch.empty_like(problem.q), None)
    launcher.write(problem.pool, new, new, torch.tensor([16, 17]))
    launcher.copy_blocks(problem.pool, torch.tensor([[1, 2]]), ordered=False)
    assert launched == [(name, (1,)) for name in ("decode", "prefill", "write_kv", "copy_blocks")], launched


def _record_launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Every launch as (kernel, grid, its constants), in order."""
    launched: list[tuple[Any, ...]] = []

    class Recorded:
        def __init__(self, function: Any) -> None:
            self._function = function

        def __getitem__(self, grid: Any) -> Any:
            def start(*args: Any, **constants: Any) -> None:
                launched.append((self._function.__name__, grid, tuple(sorted(constants.items()))))
                interpreted(self._function)[grid](*args, **constants)

            return start

    monkeypatch.setattr(launch, "interpreted", Recorded)
    return launched


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [("float32", "bfloat16"), ("bfloat16", "float16"), ("bfloat16", "float8_e5m2")]
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_pool_of_another_float_than_the_queries_is_refused_in_one_sentence(
    dtype: str, kv_dtype: str, device: str
) -> None:
    reasons = TritonBackend().check(make_spec(dtype=dtype, kv_dtype=kv_dtype), device)
    supported = ", ".join(sorted({dtype, "float8_e4m3fn", "int8"}))
    assert reasons[0] == f"KV dtype {kv_dtype} is not supported; supported: {supported}"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", [None, "float8_e4m3fn", "int8"])
def test_every_dtype_and_head_dim_has_tiles_on_every_chip(dtype: str, kv_dtype: str | None) -> None:
    """Also e4m3 on chips that have no conversion of it: there the kernels decode its bits."""
    for head_dim in (8, 16, 46, 64, 96, 100, 128, 192, 256):
        spec = make_spec(dtype=dtype, kv_dtype=kv_dtype, head_dim=head_dim)
        for name, arch in ARCHS.items():
            assert plan.decode_shape(spec, arch, 4, 100).n >= 16, name
            assert plan.prefill_shape(spec, arch, 4, 100).n >= 16, name
            e4m3 = plan.E4M3_BY_CHIP if name == "sm_90" else plan.E4M3_BY_BITS
            wanted = {None: plan.AS_QUERIES, "int8": plan.INT8, "float8_e4m3fn": e4m3}[kv_dtype]
            assert plan.feature_constants(spec, arch)["STORED"] == wanted, name


def test_the_interpreter_spends_nothing_on_overflows_that_it_would_not_tell() -> None:
    from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

    ready(make_spec())
    assert not interpreter_builder.options.sanitize_overflow
    debugging = InterpreterOptions(debug=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter_builder, "options", debugging)
        ready(make_spec())
        assert interpreter_builder.options is debugging, "a debugger wants the check"
