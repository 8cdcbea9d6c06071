"""Curves over capacity equal a replay at each of them, and capacities are written with their unit."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import command
from replay_helpers import random_requests, workload

from framework.interfaces.workload import WorkloadRequest
from framework_builtin.eviction.arc import Arc
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.optimum import Optimum
from framework_cache_only.curves import hit_curves
from framework_cache_only.reference import replay
from framework_report.figures import curve as figures
from framework_traces.writing import write_trace

main = command("curve")

CLASSES = {"lru": Lru, "arc": Arc, "optimum": Optimum}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_curve_is_a_replay_at_each_capacity(jobs: int) -> None:
    paths = workload(random_requests(4, count=150, width=3, longest=6))
    paths.input_tokens[:] -= np.arange(150) % 4
    sizes, reported = [1, 5, 17, 60, 500], []
    points = hit_curves(paths, {name: name for name in CLASSES}, sizes, jobs=jobs, progress=reported.append)
    assert [(p.policy, p.num_blocks) for p in points] == [(name, size) for name in CLASSES for size in sizes]
    for point in points:
        made = CLASSES[point.policy]
        alone = replay(paths, made(), point.num_blocks, bypass=made.bypass)
        expected = (alone.hit_blocks, alone.hit_tokens, alone.prompt_blocks, alone.prompt_tokens)
        assert (point.hit_blocks, point.hit_tokens, point.prompt_blocks, point.prompt_tokens) == expected, point
        assert point.evictions == (None if point.policy == "lru" else alone.evictions), point
    assert sum(reported) == paths.num_references * len(sizes) * 3


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    write_trace(
        path,
        (
            WorkloadRequest(
                arrival_s=float(i), input_tokens=16 * len(ids), output_tokens=1, block_tokens=16,
                block_ids=np.cumsum(np.array(ids) + 1) * 7,
            )
            for i, ids in enumerate(random_requests(2, count=80, width=3, longest=5))
        ),
        source="test", source_format="test",
    )  # fmt: skip
    return path


def test_the_command_writes_table_csv_json_and_picture(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = {kind: str(tmp_path / f"curve.{kind}") for kind in ("csv", "json", "svg")}
    assert main([str(trace), "--policies", "lru,fifo", "--capacities", "5,50%,20MiB", "--shape", "llama-3.1-8b",
                 "--csv", out["csv"], "--json", out["json"], "--plot", out["svg"], "--jobs", "1"]) == 0  # fmt: skip
    assert "lru" in capsys.readouterr().out
    data = json.loads(Path(out["json"]).read_text())
    rows = list(csv.DictReader(Path(out["csv"]).read_text().splitlines()))
    assert len(rows) == len(data["points"]) == 2 * len({p["num_blocks"] for p in data["points"]})
    assert all(0 < point["hit_rate"] < 1 for point in data["points"])
    assert Path(out["svg"]).read_bytes().startswith(b"<?xml")


def test_a_part_of_a_trace_is_called_that(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []
    draw = figures.draw
    monkeypatch.setattr(figures, "draw", lambda *lines, title, **words: titles.append(title) or draw(*lines, **words))
    words = [str(trace), "--policies", "lru", "--capacities", "5", "--jobs", "1", "--plot", str(tmp_path / "a.svg")]
    assert main([*words, "--limit", "3", "--json", str(tmp_path / "a.json")]) == 0
    part = f"{trace.name}, first 3 requests"
    assert capsys.readouterr().out.startswith(f"{part}: ")
    assert json.loads((tmp_path / "a.json").read_text())["trace"] == trace.name
    assert main([*words, "--force"]) == 0
    assert titles == [part, trace.name]


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--policies", "nope"), "no eviction named 'nope'"), (("--policies", ","), "names none"),
     (("--limit", "-1"), "--limit must be above 0"),
     (("--capacities", "5GB"), "--shape"), (("--plot", "x.gif"), ".pdf, .svg or .png"),
     (("--capacities", ","), "names none"), (("--capacities", "101%"), "at most 100%"),
     (("--jobs", "-1"), "--jobs must be above 0"), (("--seed", "-1"), "--seed must be at least 0"),
     (("--csv", "q", "--json", "q"), "two outputs go to q")],
)  # fmt: skip
def test_a_wrong_word_ends_with_one_sentence(
    trace: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main([str(trace), "--jobs", "1", *words]) == 2
    assert said in capsys.readouterr().err
