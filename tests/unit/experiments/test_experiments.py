"""Experiments: their quick modes run, their models are right, and what is committed is what they compute."""

from __future__ import annotations

import csv
import functools
import importlib
import json
import os
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


def quick(repository: Path, name: str, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"experiments.{name}", "--quick", "--out", str(out), "--jobs", "1"],
        cwd=repository,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="session")
def quick_results(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an experiment's quick run, run once."""

    @functools.cache
    def folder(name: str) -> Path:
        out = tmp_path_factory.mktemp(name)
        done = quick(repository, name, out)
        assert done.returncode == 0, done.stderr
        return out

    return folder


@pytest.mark.parametrize("name", NAMES)
def test_quick_mode_writes_rows_provenance_and_plots(
    name: str, quick_results: Callable[[str], Path], request: Any
) -> None:
    if name not in WITHOUT_TRACES:
        request.getfixturevalue("traces")
    tmp_path = quick_results(name)
    provenance = json.loads((tmp_path / "provenance.json").read_text())
    assert provenance["command"] == f"python -m experiments.{name} --quick"
    assert provenance["python"] == ".".join(map(str, sys.version_info[:3]))
    tables = list(tmp_path.glob("*.csv"))
    assert tables
    assert all(rows_of(path) for path in tables)
    pictures = list(tmp_path.glob("*.svg"))
    assert pictures
    assert all("<svg" in path.read_text() for path in pictures)


@pytest.mark.parametrize("name", NAMES)
def test_without_traces_an_experiment_says_what_to_do(name: str, repository: Path, tmp_path: Path) -> None:
    if name in WITHOUT_TRACES:
        pytest.skip("its quick mode draws a trace of its own")
    done = quick(repository, name, tmp_path / "out", KVLAB_TRACES=str(tmp_path))
    assert done.returncode == 1
    assert "set KVLAB_TRACES" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_quick_mode_never_overwrites_the_whole_results(name: str, repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"experiments.{name}", "--quick"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "give --out" in done.stderr, done.stderr


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


def test_quick_mode_computes_what_is_committed(
    traces: Path, repository: Path, quick_results: Callable[[str], Path]
) -> None:
    committed = rows_of(repository / "experiments" / "mooncake" / "results" / "hit_rates.csv")
    for row in rows_of(quick_results("mooncake") / "hit_rates.csv"):
        assert row in committed, row


def test_a_kept_result_is_made_again_when_its_key_changes(
    tmp_path: Path, experiment: Callable[[str], ModuleType]
) -> None:
    module, made = experiment("shared"), []

    def make() -> dict[str, int]:
        made.append(len(made))
        return {"value": len(made)}

    source, file = tmp_path / "source.py", tmp_path / "cells" / "one.json"
    source.write_text("1")
    before = module.digest("cell", 3, files=[source])
    assert module.kept(file, before, make) == module.kept(file, before, make) == {"key": before, "value": 1}
    source.write_text("2")
    after = module.digest("cell", 3, files=[source])
    assert after not in (before, module.digest("cell", 4, files=[source]))
    assert module.kept(file, after, make)["value"] == 2
    file.write_text("{ cut sho")
    assert module.kept(file, after, make)["value"] == 3, "a damaged file is made anew"
    assert [path.name for path in file.parent.iterdir()] == ["one.json"]


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
    experiment: Callable[[str], ModuleType],
) -> None:
    """Times to first token that are 3 s later in every session are; those that differ by chance are not."""
    scheduling, cells = experiment("scheduling.__main__"), experiment("scheduling.cells")
    requests, draw = cells.stream(cells.QUICK), np.random.default_rng(0)
    base = {"ttft_s": draw.exponential(10.0, len(requests)).tolist()}
    chance = {
        "ttft_s": [first + noise for first, noise in zip(base["ttft_s"], draw.normal(0, 5, len(requests)), strict=True)]
    }
    later = {"ttft_s": [first + 3.0 for first in chance["ttft_s"]]}
    shared = {"trace": cells.QUICK, "eviction": "lru", "num_blocks": cells.CAPACITIES[cells.QUICK][1], "load": 0.9}
    rows = [
        {**shared, "order": name, "points_p": 1.0, **scheduling._estimate("ttft_s", made, 1.0)}
        for name, made in (
            ("chance", scheduling.times_beside(cells.QUICK, chance, base)),
            ("later", scheduling.times_beside(cells.QUICK, later, base)),
        )
    ]
    scheduling.adjusted(rows)
    assert all(row["ttft_s_tested"] for row in rows), rows
    assert "not shown" in scheduling._beside(rows[0], "ttft_s", "+.0f"), rows[0]
    assert "not shown" not in scheduling._beside(rows[1], "ttft_s", "+.0f"), rows[1]
