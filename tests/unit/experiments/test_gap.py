"""The score of the gap and of the leaderboard, and what may enter the latter."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from replay_helpers import random_requests, workload

from framework.errors import ConfigError
from framework_builtin.eviction.belady import Belady
from framework_builtin.eviction.lru import Lru
from framework_cache_only.reference import replay


@pytest.fixture
def experiments(repository: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(repository))
    names = ("gap.scoring", "gap.cells", "leaderboard.entry", "leaderboard.__main__")
    return {name: importlib.import_module(f"experiments.{name}") for name in names}


def field(scoring: ModuleType, seed: int = 0):
    paths = workload(random_requests(seed, count=400, width=3, longest=6))
    return scoring.field_of(paths, np.arange(paths.num_requests) // 20, (0.02, 0.05, 0.1, 0.2))


def test_lru_closes_nothing_and_the_pinned_optimum_everything(experiments) -> None:
    scoring = experiments["gap.scoring"]
    found = field(scoring)
    for policy, wanted in ((Lru, 0.0), (Belady, 1.0)):
        hits = np.stack([found.by_unit(replay(found.paths, policy(), size).request_hits) for size in found.capacities])
        closed = scoring.closed_by(found, hits, resamples=50)
        assert closed == pytest.approx((wanted, wanted, wanted)), "value, low, high"
        at = scoring.closed_at(found, hits)
        assert at[np.isfinite(at)] == pytest.approx(wanted)
    assert (found.published.sum(axis=1) >= found.optimum.sum(axis=1)).all()


def test_half_way_between_them_is_a_half(experiments) -> None:
    scoring = experiments["gap.scoring"]
    found = field(scoring, seed=1)
    middle = (found.lru + found.optimum) / 2
    assert scoring.closed_by(found, middle, resamples=20)[0] == pytest.approx(0.5)
    gained = 100 * (middle - found.lru).sum(axis=1) / found.num_references
    assert scoring.points_over_lru(found, middle) == pytest.approx(gained)
    assert scoring.closed_by_at(found, middle, index=1, resamples=50) == pytest.approx((0.5, 0.5, 0.5))


def test_labels_are_wrong_as_often_as_asked(experiments) -> None:
    policies = experiments["gap.cells"]
    draw = random.Random(0)
    chats = [[number * 10 + depth for depth in range(turn + 1)] for turn in range(3) for number in range(200)]
    draw.shuffle(chats)
    paths = workload(chats)
    truth, _ = policies.continuations(paths)
    for error in (0.0, 0.3, 1.0):
        said = [facts.hint.continues == 1.0 for facts in policies.with_labels(paths, error).known]
        wrong = np.mean([one != other for one, other in zip(truth, said, strict=True)])
        assert wrong == pytest.approx(error, abs=0.05)
    assert not any(facts.hint for facts in paths.known), "the trace itself is not changed"


def test_an_entry_is_a_file(experiments, tmp_path: Path) -> None:
    entry = experiments["leaderboard.entry"]
    (tmp_path / "mine.toml").write_text('policy = "lru_k"\noptions = { k = 3 }\nby = "me"\n')
    found = entry.with_installed(entry.read_entries(tmp_path))
    assert [(e.name, e.options) for e in found if e.policy == "lru_k"] == [("mine", {"k": 3})]
    assert any(e.name == "lru" for e in found), "installed policies without a file take part"
    for text in ("policy = 3\n", 'policy = "lru"\nscore = 99\n', "policy ="):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(ConfigError, match=r"bad\.toml"):
            entry.read_entries(tmp_path)


def test_who_knows_the_future_or_fails_the_kit_is_not_valid(experiments) -> None:
    board, entry = experiments["leaderboard.__main__"], experiments["leaderboard.entry"]
    assert board.judge(entry.Entry(name="lru", policy="lru")) == []
    assert board.judge(entry.Entry(name="b", policy="belady"))[0] == "it knows the future"
    assert "it may exceed the capacity" in board.judge(entry.Entry(name="o", policy="optimum"))


def test_the_board_ranks_who_plays_by_the_rules_and_puts_the_others_below(experiments, tmp_path: Path) -> None:
    board = experiments["leaderboard.__main__"]
    given = ["--traces", "synthetic", "--quick", "--out", str(tmp_path), "--jobs", "1"]
    assert board.main([*given, "--policies", "belady", "lru", "fifo"]) == 0
    found = json.loads((tmp_path / "leaderboard.json").read_text())["rows"]
    assert found[-1]["name"] == "belady", [row["name"] for row in found]
    assert [row["ranked"] for row in found] == [True, True, False]
    assert not found[0]["valid"], "a part of the capacities"
    assert any("--quick" in reason for reason in found[0]["against"])
    page = (tmp_path / "leaderboard.md").read_text()
    assert "| - | belady |" in page
    assert "| 1 | lru |" in page


def test_no_trace_dominates_the_score_and_its_interval_is_over_traces(experiments) -> None:
    board = experiments["leaderboard.__main__"]
    shares = [0.2, float("nan"), 0.4, -30.0]
    found = board._score(shares)
    assert found["score"] == pytest.approx((0.2 + 0.4 - 1.0) / 3)
    without = [(0.4 - 1.0) / 2, (0.2 - 1.0) / 2, (0.2 + 0.4) / 2]  # jackknife: one trace left out
    error = np.sqrt(2 / 3 * np.sum((np.array(without) - np.mean(without)) ** 2))
    assert found["high"] - found["score"] == pytest.approx(4.302653 * error, rel=1e-6)
    assert np.isnan(board._score([0.3])["low"]), "one trace says nothing of another"


def test_where_lru_is_optimal_there_is_no_gap_to_close_and_no_warning(experiments) -> None:
    scoring = experiments["gap.scoring"]
    found = field(scoring)
    all_of_it = scoring.field_of(found.paths, found.units, (1.0, 2.0))
    for closed in (scoring.closed_by(all_of_it, all_of_it.lru), scoring.closed_by_at(all_of_it, all_of_it.lru)):
        assert np.isnan(closed).all()
    assert np.isnan(experiments["leaderboard.__main__"]._score([float("nan")])["score"])
