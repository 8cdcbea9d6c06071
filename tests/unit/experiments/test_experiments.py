"""Experiments: their quick modes run, their models are right, and what is committed is what they compute."""

from __future__ import annotations

import ast
import csv
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

NAMES = (
    "mooncake", "pagedattention", "precision", "scaling", "tiers", "gap", "hybrid", "latent", "fleet", "scheduling",
    "lossy",
)  # fmt: skip
WITHOUT_TRACES = ("precision", "gap", "hybrid", "latent", "scheduling", "lossy")
GOLDEN_UTILISATION = {
    "Azure conv, p + o <= 2048": (".5335", ".7948", ".8626", ".9968", ".9932", ".9860", ".9450", ".8986", ".8225"),
    "Azure conv, all": (".0749", ".8149", ".8790", ".9972", ".9939", ".9875", ".9505", ".9078", ".8361"),
}


@pytest.fixture
def experiment(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a module of an experiment, as `python -m` from the top of the checkout does."""
    monkeypatch.syspath_prepend(str(repository))
    return lambda name: importlib.import_module(f"experiments.{name}")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "name", [name if name == "mooncake" else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_quick_mode_writes_rows_provenance_and_plots(
    name: str, repository: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name not in WITHOUT_TRACES:
        request.getfixturevalue("traces")
    command = [sys.executable, "-m", f"experiments.{name}", "--quick", "--out", str(tmp_path), "--jobs", "1"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    provenance = json.loads((tmp_path / "provenance.json").read_text())
    assert provenance["command"] == f"python -m experiments.{name} --quick"
    assert provenance["python"] == ".".join(map(str, sys.version_info[:3]))
    tables = list(tmp_path.glob("*.csv"))
    assert tables
    assert all(rows_of(path) for path in tables)
    pictures = list(tmp_path.glob("*.svg"))
    assert pictures
    assert all("<svg" in path.read_text() for path in pictures)
    if name == "mooncake":  # which computes a part of what is committed
        committed = rows_of(repository / "experiments" / name / "results" / "hit_rates.csv")
        assert [row for row in rows_of(tmp_path / "hit_rates.csv") if row not in committed] == []


@pytest.mark.parametrize("name", sorted({*NAMES} - {*WITHOUT_TRACES}))
def test_without_traces_an_experiment_says_what_to_do(
    name: str, experiment: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLAB_TRACES", str(tmp_path))
    with pytest.raises(SystemExit, match="set KVLAB_TRACES"):
        experiment(f"{name}.__main__").main(["--quick", "--out", str(tmp_path / "out"), "--jobs", "1"])


@pytest.mark.parametrize("name", NAMES)
def test_quick_mode_never_overwrites_the_whole_results(
    name: str, experiment: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        experiment(f"{name}.__main__").main(["--quick"])
    assert "give --out" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_says_what_it_claims_and_how_to_run_it(name: str, repository: Path) -> None:
    folder = repository / "experiments" / name
    page = (folder / "README.md").read_text(encoding="utf-8")
    for heading in ("## Claim", "## Command", "## Data", "## Result", "## What differs"):
        assert heading in page, f"{name}: {heading}"
    assert f"python -m experiments.{name}" in page
    provenance = json.loads((folder / "results" / "provenance.json").read_text())
    assert provenance["package"]["git_revision"], "the committed results name a revision"
    assert provenance["command"] == f"python -m experiments.{name}"
    for picture in (folder / "results").glob("*.svg"):
        assert f"results/{picture.name}" in page, f"{picture.name} is not shown"


def slow_utilisation(prompts: list[int], outputs: list[int], limit: int, name: str, size: int) -> float:
    live = reserved = 0
    for p, o in zip(prompts, outputs, strict=True):
        for k in range(1, o + 1):
            live += p + k - 1
            power = 1
            while power < o:
                power *= 2
            whole = {"max": limit, "pow2": min(limit, p + power), "oracle": p + o}
            reserved += size * -(-(p + k - 1) // size) if name == "paged" else whole[name]
    return live / reserved


def test_every_name_that_an_experiment_imports_of_ours_is_there(repository: Path) -> None:
    lacking = []
    for path in sorted((repository / "experiments").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("framework"):
                module = importlib.import_module(str(node.module))
                inside = {one.name for one in node.names if not hasattr(module, one.name)}
                inside -= {found.name for found in pkgutil.iter_modules(getattr(module, "__path__", []))}
                lacking += [f"{path.name}: {node.module}.{name}" for name in inside]
    assert lacking == []


def test_the_closed_form_is_the_sum_over_iterations(experiment: Callable[[str], ModuleType]) -> None:
    module = experiment("pagedattention.utilisation")
    rng = np.random.default_rng(0)
    prompts, outputs = rng.integers(1, 60, 40), rng.integers(1, 40, 40)
    for how in (*module.CONTIGUOUS, module.Reservation("paged", 7), module.Reservation("paged", 16)):
        expected = slow_utilisation(prompts.tolist(), outputs.tolist(), 100, how.name, how.block_size)
        assert module.closed_form(prompts, outputs, 100, how) == pytest.approx(expected, rel=1e-12), how


@pytest.mark.parametrize("name", list(GOLDEN_UTILISATION))
def test_the_closed_form_on_the_azure_lengths(name: str, traces: Path, experiment: Callable[[str], ModuleType]) -> None:
    main, module = experiment("pagedattention.__main__"), experiment("pagedattention.utilisation")
    prompts, outputs, limit = main.lengths(name)
    assert len(prompts) == {"Azure conv, all": 19_366}.get(name, 16_528)
    kinds = (*module.CONTIGUOUS, *module.PAGED)
    found = tuple(f"{module.closed_form(prompts, outputs, limit, how):.4f}".lstrip("0") for how in kinds)
    assert found == GOLDEN_UTILISATION[name]


def test_a_saturated_pool_of_equal_requests_is_what_arithmetic_says(experiment: Callable[[str], ModuleType]) -> None:
    module = experiment("pagedattention.utilisation")
    prompts, outputs = np.full(40, 56), np.full(40, 8)
    oracle = module.saturated(prompts, outputs, 128, module.Reservation("oracle"), 256)
    assert (oracle.peak_rows, oracle.preemptions) == (4, 0), "four runs of 56 + 8 slots fill 256"
    assert oracle.live == pytest.approx((56 + 63) / 2 / 64), "56 to 63 live slots of 64"
    assert oracle.live + oracle.reserved == pytest.approx(1.0)
    most = module.saturated(prompts, outputs, 128, module.Reservation("max"), 256)
    assert most.live == pytest.approx((56 + 63) / 2 / 128)


def test_the_engine_comes_near_the_closed_form_on_the_azure_lengths(
    traces: Path, experiment: Callable[[str], ModuleType]
) -> None:
    main, module = experiment("pagedattention.__main__"), experiment("pagedattention.utilisation")
    prompts, outputs, limit = main.lengths("Azure conv, p + o <= 2048")
    paged = module.saturated(prompts[:150], outputs[:150], limit, module.Reservation("paged", 16), 16_384)
    closed = module.closed_form(prompts[:150], outputs[:150], limit, module.Reservation("paged", 16))
    assert paged.live / (paged.live + paged.internal) == pytest.approx(closed, abs=0.005), paged
    assert paged.live > 0.94, paged


def test_sharing_of_samples_is_what_arithmetic_says(experiment: Callable[[str], ModuleType]) -> None:
    module = experiment("pagedattention.sharing")
    lengths = [(64, 16)]
    naive = module.usage(lengths, 2, beam=False, allocator="naive")
    cow = module.usage(lengths, 2, beam=False, allocator="cow")
    # Counted after each step: after the first the prompt is forked, 4 blocks each or shared; in 14 more each sample
    # has a fifth block of its own; the 16th token is not computed, and after its step all is free.
    assert naive.block_steps == 8 + 14 * (5 + 5), naive
    assert cow.block_steps == 4 + 14 * (4 + 1 + 1), cow
    assert module.saving(naive, cow) == pytest.approx(1 - (4 + 14 * 6) / (8 + 14 * 10))


def test_a_kept_result_is_made_again_when_what_is_asked_or_a_file_changes(
    tmp_path: Path, experiment: Callable[[str], ModuleType]
) -> None:
    module, made = experiment("shared"), []

    def make() -> dict[str, int]:
        made.append(len(made))
        return {"value": len(made)}

    source, folder = tmp_path / "source.py", tmp_path / "cells"

    def kept(*what: Any) -> dict[str, int]:
        return module.kept(folder, what, make, [source])

    source.write_text("1")
    assert kept("a cell", 3) == kept("a cell", 3) == {"value": 1}
    assert kept("a cell", 4) == {"value": 2}
    source.write_text("2")
    os.utime(source, ns=(1, 1))
    assert kept("a cell", 3) == {"value": 3}
    for file in folder.iterdir():
        file.write_text("{ cut sho")
    assert kept("a cell", 3) == {"value": 4}, "a damaged file is made anew"
    assert len([path.name for path in folder.iterdir()]) == 3, "nothing is left beside them"


def test_the_committed_leaderboard_has_every_installed_built_in_policy(repository: Path) -> None:
    from framework import registry

    board = json.loads((repository / "experiments" / "leaderboard" / "results" / "leaderboard.json").read_text())
    built_in = {p.name for p in registry.entries("eviction") if p.distribution == "kvcache-framework"}
    ranked = {row["policy"] for row in board["rows"]}
    assert built_in <= ranked, built_in - ranked
    assert {"lru", "hazard", "lease", "never_hit_first", "hits_per_token", "densest_interior", "tool_ttl"} <= ranked
    assert len(board["rows"][0]["traces"]) == 5


def test_precisions_share_the_bytes_of_one_pool(experiment: Callable[[str], ModuleType]) -> None:
    precision = experiment("precision.__main__")
    found = {dtype: precision.num_blocks(dtype, 99) + 1 for dtype in precision.DTYPES}
    assert found == {"float32": 100, "bfloat16": 200, "float8_e4m3fn": 400, "int8": 320}


def test_a_difference_between_orders_is_shown_only_where_sessions_agree(
    experiment: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hits, times, tails and fairness that differ by chance, or in one session alone, are not shown."""
    scheduling, cells = experiment("scheduling.__main__"), experiment("scheduling.cells")
    requests, draw = cells.requests_of(cells.QUICK), np.random.default_rng(0)
    monkeypatch.setattr("framework_report.statistics._SWAPS", 199)
    count, prompts = len(requests), [one.input_tokens for one in requests]
    own = draw.exponential(10.0, count)
    first, again = (own * draw.lognormal(0.0, 0.4, count) for _ in range(2))
    hits, hits_again = (draw.binomial(50, 0.5, count) for _ in range(2))
    one_session = np.array([one.session == requests[7].session for one in requests])
    tenant = np.array([one.tenant == "tenant 0" for one in requests])

    def result(times: np.ndarray, hits: np.ndarray) -> dict[str, Any]:
        return {"ttft_s": times.tolist(), "hit_tokens": hits.tolist(), "prompt_tokens": prompts}

    found = {
        "chance": result(again, hits_again),
        "one session": result(np.where(one_session, 900.0, first), np.where(one_session, hits + 500, hits)),
        "all": result(3 * first, hits + 5), "one tenant": result(np.where(tenant, 9 * first, first), hits),
    }  # fmt: skip
    rows = []
    for name, challenger in found.items():
        cell = cells.Cell(cells.QUICK, name, "lru", cells.CAPACITIES[cells.QUICK][1], 0.9)
        assert scheduling.is_judged(cell)
        rows.append({"order": name, **scheduling.beside(cell, challenger, result(first, hits))})
    scheduling.adjusted(rows)
    shown = {
        row["order"]: {name for name in scheduling.MEASURES if scheduling.verdict(row, name) == "shown"} for row in rows
    }
    times = {"ttft_s", "ttft_s_p99", "ttft_s_slowest_tenth"}
    assert shown["chance"] == shown["one session"] == set(), (shown, rows)
    assert shown["all"] == {"points", *times}, "all tenants wait three times as long: fairness is the same"
    assert rows[3]["jain_tenants_p"] < 0.05, rows[3]
    assert rows[3]["jain_tenants_high"] < 0


def test_an_interaction_of_order_and_eviction_is_shown_only_where_sessions_agree(
    experiment: Callable[[str], ModuleType],
) -> None:
    scheduling, cells = experiment("scheduling.__main__"), experiment("scheduling.cells")
    requests, draw = cells.requests_of(cells.QUICK), np.random.default_rng(1)
    prompts = np.array([one.input_tokens for one in requests])

    def found(gains: np.ndarray) -> dict[Any, dict[str, Any]]:
        """What an order adds under `hazard` alone; all else is chance."""
        made = {}
        for eviction in ("lru", "hazard"):
            for order in ("fcfs", "other"):
                hits = draw.binomial(60, 0.5, len(prompts)) + (gains if (order, eviction) == ("other", "hazard") else 0)
                place = cells.CAPACITIES[cells.QUICK][1], 0.9
                made[cells.Cell(cells.QUICK, order, eviction, *place)] = {"hit_tokens": hits, "prompt_tokens": prompts}
        return made

    nothing, something = np.zeros(len(prompts)), np.full(len(prompts), 40)
    chances = [scheduling.interaction(found(nothing))[0] for _ in range(20)]
    assert sum(row["p_adjusted"] < 0.05 for row in chances) <= 3, chances
    (effect,) = scheduling.interaction(found(something))
    assert effect["p_adjusted"] < 0.05, effect
    assert 0 < effect["low"] < effect["interaction"] < effect["high"]


def test_the_regret_of_an_order_is_what_the_best_of_each_case_would_have_saved(
    experiment: Callable[[str], ModuleType],
) -> None:
    exact = experiment("scheduling.exact")
    best = {"missed": 100, "mean": 2.0, "p50": 1.0, "slowest": 4.0}
    late = {"missed": 130, "mean": 3.0, "p50": 1.0, "slowest": 8.0}
    found = exact.regret([(best, best), (late, best), (late, best)])
    assert (found["best_in"], found["regret_hit_tokens"], found["regret_ttft_mean"]) == (1, 20.0, pytest.approx(1 / 3))
    assert (found["regret_ttft_p50"], found["regret_ttft_slowest"]) == (0.0, pytest.approx(2 / 3))
    assert (found["regret_ttft_p50_low"], found["regret_ttft_p50_high"]) == (0.0, 0.0), "equal cases have no interval"
    assert 0 < found["regret_ttft_slowest_low"] < 2 / 3 < found["regret_ttft_slowest_high"]
    assert found["regret_ttft_slowest_worst"] == 1.0


def test_no_session_is_in_two_of_the_cases_that_are_searched(experiment: Callable[[str], ModuleType]) -> None:
    exact, cells = experiment("scheduling.exact"), experiment("scheduling.cells")
    cases = exact.cases(cells.QUICK, exact.QUICK_CASES)
    sessions = [{request.session for request in case} for case in cases]
    assert [len(case) for case in cases] == [exact.REQUESTS] * exact.QUICK_CASES
    assert sum(map(len, sessions)) == len(set().union(*sessions)) == 3 * exact.QUICK_CASES
