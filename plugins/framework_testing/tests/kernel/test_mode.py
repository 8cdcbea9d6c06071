"""mode=kernel called from Python: what is timed, what never is, and what the rows say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from framework.api import run
from framework.errors import ConfigError, TimedOut
from framework.interfaces.backend import AttentionSpec
from framework.results.reading import read_result
from framework_report.figures.style import WIDTH_IN, as_svg
from framework_testing.kernel import bench as benches
from framework_testing.kernel import grid as grids
from framework_testing.kernel import roofline_figure
from framework_testing.kernel.bench import build, judge_timed, num_pools, time_on_cpu
from framework_testing.kernel.cells import Cell, cells, floor_s, for_device, work_of
from framework_testing.kernel.grid import Ceilings
from framework_testing.kernel.plugin import KernelOptions
from framework_torch.backend import TorchBackend
from framework_workloads.lines import read_jsonl

SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, dtype="float32", block_size=4)
SMALL = {"batch": [1, 3], "context": [24], "prefill": [16], "heads": ["4/2/16"], "budget_s": 0.01}


class Wrong(TorchBackend):
    """Forgets the scale."""

    def attend(self, q: Any, pool: Any, batch: Any, out: Any, *, lse: Any = None) -> None:
        super().attend(q * 2, pool, batch, out, lse=lse)


class WrongWhenLong(TorchBackend):
    """Right at the gate's lengths, and wrong beyond."""

    def attend(self, q: Any, pool: Any, batch: Any, out: Any, *, lse: Any = None) -> None:
        super().attend(q, pool, batch, out, lse=lse)
        if batch.max_context_len > 100:
            out.mul_(1.001)


@pytest.fixture(autouse=True)
def _small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ceilings are stated, and few of these tiny pools overflow its cache."""
    monkeypatch.setattr(grids, "measure", lambda *_: Ceilings(1e10, "stated", 1e11, "stated"))
    monkeypatch.setattr(benches, "last_level_cache_bytes", lambda device: 1 << 18)


def kernel(tmp_path: Any, backend: type, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    monkeypatch.setattr("framework_testing.kernel.mode.build_component", lambda *_: backend())
    config = {"device": "cpu", "run": {"dir": str(tmp_path / "run")}, "cache": {"block_size": 4}}
    return run({**config, "backend": "gather", "mode": {"name": "kernel", **SMALL, **options}})


def test_every_cell_of_a_right_backend_is_timed_and_written_whole(tmp_path: Any, monkeypatch: Any) -> None:
    result = kernel(tmp_path, TorchBackend, monkeypatch)
    assert result["status"] == "ok", result
    assert [row["cell"].split(",")[0] for row in result["rows"]] == [
        "decode 1 x 24", "decode 3 x 24", "decode 3 x 24 ragged", "prefill 1 x 16",
    ]  # fmt: skip
    for row in result["rows"]:
        assert row["kind"] == "measured", row
        assert row["time_s"] > 0 < row["gb_per_s"], row
        assert row["share_of_ceiling"] == pytest.approx(row["floor_s"] / row["time_s"])
        missing = [key for key in ("device", "device_model", "torch", "date") if not row.get(key)]
        assert not missing, f"{missing} missing from {row}"
        said = "none" if row["cell"].startswith("prefill") else "eager"
        assert row["backend_decode"] == said, f"what the backend settled on is missing or wrong: {row}"
    assert read_jsonl(tmp_path / "run" / "kernel.jsonl") == result["rows"]
    assert {"roofline.png", "roofline.svg", "provenance.json"} <= {path.name for path in (tmp_path / "run").iterdir()}
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (stored["status"], "rows" in stored) == ("ok", False), stored


@pytest.mark.parametrize("backend", [Wrong, WrongWhenLong])
def test_a_wrong_backend_is_never_timed(tmp_path: Any, monkeypatch: Any, backend: type) -> None:
    monkeypatch.setattr(grids, "time_on_cpu", lambda *_: pytest.fail("a wrong backend was timed"))
    result = kernel(tmp_path, backend, monkeypatch, context=[130], prefill=[])
    assert result["status"] == "failed", result
    assert {row["status"] for row in result["rows"]} == {"failed"}, result["rows"]
    assert all("max error" in reason for reason in result["reasons"]), result["reasons"]
    assert not any("time_s" in row for row in result["rows"]), result["rows"]


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), SystemExit(0)])
def test_a_backend_that_raises_has_failed_the_gate(tmp_path: Any, monkeypatch: Any, error: BaseException) -> None:
    class Raises(TorchBackend):
        def plan(self, batch: Any) -> None:
            raise error

    result = kernel(tmp_path, Raises, monkeypatch)
    assert result["status"] == "failed", result
    assert f"raised {error!r}" in result["reasons"][0], result["reasons"]


@pytest.mark.parametrize("hook", ["facts", "check", "setup"])
def test_a_backend_that_fails_outside_the_gate_fails_its_cells_and_is_named(
    tmp_path: Any, monkeypatch: Any, hook: str
) -> None:
    def fail(self: Any, *args: Any) -> Any:
        raise SystemExit(0)

    result = kernel(tmp_path, type("Leaves", (TorchBackend,), {hook: fail}), monkeypatch)
    assert result["status"] == "failed", result
    assert "SystemExit(0)" in result["reasons"][0], result["reasons"]


def test_cells_too_large_for_the_budget_are_reported_and_not_run(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("framework_testing.kernel.bench.most_bytes", lambda device: 1000)
    result = kernel(tmp_path, TorchBackend, monkeypatch)
    assert {row["status"] for row in result["rows"]} == {"skipped"}, result["rows"]
    assert result["status"] == "ok", result


def test_the_work_of_a_cell_counted_by_hand() -> None:
    decode = work_of(Cell(SPEC, "decode", "ragged", (5, 9), (1, 1)))
    assert decode.kv_bytes == 14 * 2 * (2 * 16) * 4
    assert decode.bytes == decode.kv_bytes + 2 * 2 * 4 * 16 * 4 + 4 * (2 + 3)
    assert decode.flop == 2 * 2 * 16 * 4 * 14
    prefill = work_of(Cell(SPEC, "prefill", "uniform", (6,), (4,)))
    assert prefill.flop == 2 * 2 * 16 * 4 * (3 + 4 + 5 + 6)
    assert prefill.exponentials == 4 * (3 + 4 + 5 + 6)


@pytest.mark.parametrize("stored", [None, "float8_e4m3fn", "int8"])
def test_a_cell_of_a_latent_cache_reads_each_row_once_and_is_judged(stored: str | None) -> None:
    options = KernelOptions(batch=(3,), context=(40,), prefill=(24,), heads=("4/48+16",), kv_dtype=(stored,))
    decode, _, prefill = cells(for_device(options, "cpu", 16), "NHD")
    work, size = work_of(decode), 4 if stored is None else 1
    assert work.kv_bytes == 3 * 40 * (64 * size + (4 if stored == "int8" else 0))
    assert work.bytes == work.kv_bytes + 3 * 4 * (64 + 48) * 4 + 4 * 3 * 3
    assert work.flop == 2 * (64 + 48) * 4 * 3 * 40
    for cell in (decode, prefill):
        bench, backend = build(cell, "cpu", 0), TorchBackend()
        assert bench.out.shape == (len(bench.q), 4, 48)
        backend.setup(cell.spec, "cpu")
        backend.plan(bench.batch)
        verdict = judge_timed(backend, bench)
        assert verdict.ok, str(verdict)


@pytest.mark.parametrize("text", ["32/8", "32+8/128", "32/8/0", "128/512+", "128/512+64+2", "9/512-64", "٣/1/64"])
def test_heads_that_are_neither_form_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="query/latent\\+rope"):
        list(cells(for_device(KernelOptions(heads=(text,)), "cpu", 16), "NHD"))


def test_the_floors_of_the_note_on_kernels_come_out() -> None:
    spec = AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, dtype="bfloat16", block_size=16)
    decode = floor_s(work_of(Cell(spec, "decode", "uniform", (8192,) * 32, (1,) * 32)), "h200")
    assert decode == pytest.approx(250e-6, rel=0.01)
    prefill = floor_s(work_of(Cell(spec, "prefill", "uniform", (8192,), (8192,))), "h200")
    assert prefill == pytest.approx(0.70e-3, rel=0.01)
    long = floor_s(work_of(Cell(spec, "prefill", "uniform", (32768,), (32768,))), "h200")
    assert long == pytest.approx(11.1e-3, rel=0.01)


def test_ragged_contexts_span_ten_to_one_and_are_mixed() -> None:
    options = for_device(KernelOptions(batch=(8,), context=(1000,), prefill=()), "cpu", 16)
    uniform, ragged = cells(options, "NHD")
    assert uniform.contexts == (1000,) * 8
    assert (min(ragged.contexts), max(ragged.contexts), len(ragged.contexts)) == (100, 1000, 8)
    assert list(ragged.contexts) != sorted(ragged.contexts), "neighbours must differ, as arrivals do"


def test_pools_rotate_over_four_times_the_cache() -> None:
    cell = Cell(SPEC, "decode", "uniform", (100,), (1,))
    kv = work_of(cell).kv_bytes
    assert [num_pools(cell, size) for size in (0, kv // 4, kv, 10 * kv)] == [1, 1, 4, 40]
    bench = build(cell, "cpu", 2 * kv)
    assert len(bench.pools) == 8
    assert len({pool.k.data_ptr() for pool in bench.pools}) == 8


def test_calls_are_interleaved_and_buffers_take_turns() -> None:
    seen: list[tuple[str, int]] = []
    times = time_on_cpu({name: lambda turn, name=name: seen.append((name, turn)) for name in "ab"}, 0.001)  # type: ignore[misc]
    assert seen[:4] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert len(times["a"].samples) == len(times["b"].samples) == len(seen) // 2 - 2 >= 5, "two rounds warm up"


def test_the_dense_yardstick_reads_as_many_numbers_as_the_backend(monkeypatch: Any) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        grids, "scaled_dot_product_attention", lambda *tensors, **_: seen.append(tuple(t.shape for t in tensors))
    )
    for cell in (
        Cell(SPEC, "decode", "uniform", (24, 24, 24), (1, 1, 1)),
        Cell(SPEC, "prefill", "uniform", (16,), (16,)),
    ):
        call = grids.dense_sdpa(build(cell, "cpu", 0))
        assert call is not None
        call(0)
    assert seen == [((3, 2, 2, 16), (3, 2, 24, 16), (3, 2, 24, 16)), ((1, 4, 16, 16),) * 3]
    assert grids.dense_sdpa(build(Cell(SPEC, "decode", "ragged", (5, 50), (1, 1)), "cpu", 0)) is None


def test_the_gate_tries_edges_empty_rows_and_chunks() -> None:
    cases = list(grids.gate_cases(SPEC))
    contexts = {context for case in cases for context in case.contexts}
    assert {0, 1, 4, 5} <= contexts, contexts
    assert any(count > SPEC.block_size for case in cases for count in case.queries)
    assert grids.gate(TorchBackend, SPEC, "cpu").wrong == ()
    assert grids.gate(Wrong, SPEC, "cpu").wrong


def test_weights_and_biases_get_the_rows_and_the_roofline(tmp_path: Any, monkeypatch: Any) -> None:
    from wandb_offline import read_offline_run

    monkeypatch.setattr("framework_testing.kernel.mode.build_component", lambda *_: TorchBackend())
    config = {"device": "cpu", "run": {"dir": str(tmp_path / "run")}, "cache": {"block_size": 4}}
    mode = {"name": "kernel", **SMALL}
    result = run({**config, "backend": "gather", "mode": mode, "tracker": {"name": "wandb"}})
    stored = read_offline_run(tmp_path / "run")
    assert stored.job_type == "kernel-gather", stored.job_type
    assert stored.exit_code == 0
    assert [step["time_s"] for step in stored.history if "time_s" in step], stored.history
    assert stored.summary["status"] == result["status"] == "ok"
    assert any("kernel" in name and name.endswith(".table.json") for name in stored.files), stored.files
    assert any("roofline" in name and name.endswith(".png") for name in stored.files), stored.files


def test_the_last_level_cache_is_the_largest_that_the_machine_names(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(benches, "Path", lambda folder: tmp_path)
    assert benches.last_level_cache_bytes("cpu") == 32 * 2**20, "it names none"
    for index, size in enumerate(("32K", "16M", "1024")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert benches.last_level_cache_bytes("cpu") == 16 * 2**20


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (KeyboardInterrupt(), "interrupted", "interrupted by"),
        (TimedOut("the run was ended after run.timeout_s=5 seconds"), "failed", "TimedOut: the run was ended"),
    ],
)
def test_a_kernel_grid_that_was_ended_is_not_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: str, reason: str
) -> None:
    def ended(grid: Any) -> Any:
        yield from ()
        raise error

    monkeypatch.setattr(grids.Grid, "run", ended)
    mode = {"name": "kernel", "heads": ["2/1/16"], "batch": [1], "context": [16], "prefill": []}
    config = {"backend": "torch", "device": "cpu", "run": {"dir": str(tmp_path), "progress": False}}
    with pytest.raises(type(error)):
        run({**config, "mode": mode})
    result = read_result(tmp_path)
    assert (result["status"], result["num_cells"]) == (status, 0), result
    assert result["reasons"][0].startswith(reason), result


KERNEL = [
    {
        "time_s": 1e-3, "flop": 1e9, "bytes": 1e8, "tflop_per_s": 1.0, "ceiling_gb_per_s": 50.0, "work": "decode",
        "ceiling_tflop_per_s": 0.2, "device_model": "CPU", "dtype": "float32", "lengths": "ragged", "backend": "torch",
        "date": "2026-11-22T00:00:00",
    }
]  # fmt: skip


def test_the_roofline_is_drawn_and_names_the_backend() -> None:
    figure = roofline_figure.draw(KERNEL)
    assert figure is not None
    assert figure.get_figwidth() == WIDTH_IN
    assert "torch" in as_svg(figure, "a roofline")
    assert roofline_figure.draw([{"status": "modelled"}]) is None, "without times there is none"
