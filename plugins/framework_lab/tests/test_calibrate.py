"""Costs fitted to steps whose true costs are known, and to steps that cannot tell them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import command

from framework.engine.executors.base import work_of
from framework_lab.calibrate import COSTS, WORK, Floats, calibrate

main = command("calibrate")

TRUE = np.array([4e-3, 2e-4, 3e-5, 4e-7, 2e-8])


def steps(count: int = 800, *, most_rows: int = 8, prompts: int = 400) -> Floats:
    """(S, K) of mixed prefill and decode steps."""
    draw = np.random.default_rng(3)
    found = []
    for _ in range(count):
        rows = int(draw.integers(1, most_rows + 1))
        new = np.where(draw.random(rows) < 0.3, draw.integers(1, prompts + 1, rows), 1)
        found.append([1, *work_of(new, draw.integers(0, 900, rows)).values()])
    return np.array(found, dtype=np.float64)


def written(path: Path, work: Floats, seconds: Floats) -> str:
    lines = [{**dict(zip(WORK, row[1:].tolist(), strict=True)), "step_s": time}
             for row, time in zip(work, seconds.tolist(), strict=True)]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_costs_that_are_known_are_found() -> None:
    work = steps()
    found = calibrate(work, work @ TRUE)
    np.testing.assert_allclose([getattr(found.costs, name) for name in COSTS], TRUE, rtol=1e-6)
    assert abs(found.total_error) < 1e-6


def test_intervals_hold_the_truth_about_as_often_as_they_say_and_the_error_is_that_of_the_noise() -> None:
    work, held = steps(), np.zeros(len(COSTS))
    for seed in range(10):
        noise = np.random.default_rng(seed).normal(1.0, 0.1, len(work))
        found = calibrate(work, work @ TRUE * noise)
        ends = np.array([found.intervals[name] for name in COSTS])
        held += (ends[:, 0] < TRUE) & (ends[:, 1] > TRUE)
        assert 0.05 < found.step_error_p50 < 0.09  # the median of |N(0, 0.1)| is 0.067
        assert 0.16 < found.step_error_p95 < 0.24  # and its 95th percentile 0.196
        assert abs(found.total_error) < 0.02
    assert held.min() >= 7


def test_each_half_is_timed_by_the_costs_of_the_other_half() -> None:
    """In an engine whose every second step takes half as long again."""
    work = steps(801)
    slow = np.arange(len(work)) % 2 == 1
    seconds, predicted = work @ TRUE * np.where(slow, 1.5, 1.0), work @ TRUE * np.where(slow, 1.0, 1.5)
    found = calibrate(work, seconds)
    assert found.total_error == pytest.approx(predicted.sum() / seconds.sum() - 1)
    assert (found.step_error_p50, found.step_error_p95) == pytest.approx((0.5, 0.5)), "401 steps of 801"
    assert list(found.largest.values()) == work[:, 1:].max(axis=0).tolist()


def test_steps_count_by_their_relative_error() -> None:
    work = steps()
    seconds = work @ TRUE * np.random.default_rng(0).normal(1.0, 0.1, len(work))
    first = work @ np.linalg.lstsq(work, seconds, rcond=None)[0]
    best = np.linalg.lstsq(work / first[:, None], seconds / first, rcond=None)[0]
    assert (best > 0).all()
    found = calibrate(work, seconds).costs
    np.testing.assert_allclose([getattr(found, name) for name in COSTS], best, rtol=1e-6)


def test_what_exists_is_written_over_when_asked_alone_and_an_input_never(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = steps()
    source, out = written(tmp_path / "steps", work, work @ TRUE), tmp_path / "costs.json"
    before = Path(source).read_text()
    (tmp_path / "link").symlink_to(source)
    for target in (source, str(tmp_path / "link")):
        assert main([source, "--out", target, "--force"]) == 2
        assert "is what is read here" in capsys.readouterr().err
    assert Path(source).read_text() == before
    out.write_text("mine")
    assert main([source, "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main([source, "--out", str(out), "--force"]) == 0
    assert json.loads(out.read_text())["num_steps"] == len(work)


@pytest.mark.parametrize(
    ("seconds", "said"), [("0", "step_s is 0 in all"), ("1e400", "numbers of 0 to 10^18"), ("true", "numbers of 0")]
)
def test_steps_without_a_time_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: str, said: str
) -> None:
    work = steps()
    path = Path(written(tmp_path / "steps", work, np.zeros(len(work))))
    path.write_text(path.read_text().replace('"step_s": 0.0', f'"step_s": {seconds}'))
    assert main([str(path)]) == 2
    assert said in capsys.readouterr().err


def test_a_cost_is_never_negative() -> None:
    work = steps()
    found = calibrate(work, (work @ (TRUE * [1, 1, 1, -1, 1])).clip(min=1e-3))
    assert found.costs.context_s == 0


def test_what_these_steps_cannot_tell_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decodes = steps(prompts=1)  # every row computes one token
    assert main([written(tmp_path / "decodes", decodes, decodes @ TRUE)]) == 2
    assert "cannot tell row_s, token_s, context_s, pair_s apart" in capsys.readouterr().err
    alone = steps(most_rows=1)
    assert main([written(tmp_path / "alone", alone, alone @ TRUE)]) == 2
    assert "cannot tell step_s, row_s apart" in capsys.readouterr().err
    few = steps(20)
    assert main([written(tmp_path / "few", few, few @ TRUE)]) == 2
    assert "20 timed steps are too few" in capsys.readouterr().err


def test_the_command_writes_what_the_replay_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = steps()
    path = written(tmp_path / "steps.jsonl", work, work @ TRUE)
    with Path(path).open("a") as file:
        file.write(json.dumps({**dict.fromkeys(WORK, 1), "step_s": None}) + "\n")  # no end was seen: left out
    assert main([path, "--out", str(tmp_path / "costs.json"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "costs.json").read_text())
    assert printed["num_steps"] == len(work)
    assert main([path]) == 0
    out = capsys.readouterr().out
    assert "step_s     0.004" in out
    assert "not in these costs: what a request takes outside steps" in out


def test_a_file_of_other_lines_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "running": 2}\n')
    assert main([str(tmp_path / "metrics.jsonl")]) == 2
    assert "metrics.jsonl:1: a timed step has rows, new_tokens" in capsys.readouterr().err
