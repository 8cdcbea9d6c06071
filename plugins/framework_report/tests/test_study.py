"""What varied between runs, and who leads by how much."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from report_runs import make_run

from framework_report.records import collect
from framework_report.study import Study


def test_what_varied_is_found_and_seeds_become_means(sweep: Path) -> None:
    study = Study(collect([sweep]))
    assert study.keys == ["eviction", "cache.num_blocks"]
    assert study.constant["cache.block_size"] == 16
    values = [(setting.values["eviction"], setting.values["cache.num_blocks"]) for setting in study.settings]
    assert values == [("fifo", 64), ("fifo", 1024), ("lru", 64), ("lru", 1024)]
    for setting in study.settings:
        values = [run.result["hit_rate"] for run in setting.runs]
        mean = setting.means["hit_rate"]
        assert mean.value == pytest.approx(np.mean(values))
        half = 4.3027 * np.std(values, ddof=1) / np.sqrt(3)
        assert mean.interval == pytest.approx((mean.value - half, mean.value + half), rel=3e-3)
    ranked = [(rank, tuple(setting.values.values())) for rank, setting in study.ranked]
    assert ranked == [(1, ("lru", 64)), (2, ("fifo", 64)), (1, ("lru", 1024)), (2, ("fifo", 1024))]


def test_policies_are_compared_over_all_pairs_alike_in_the_rest(sweep: Path) -> None:
    study = Study(collect([sweep]))
    assert (study.baseline_key, study.baseline) == ("eviction", "lru")
    (entry,) = study.comparisons
    assert (entry.challenger, entry.difference.count, entry.difference.unit) == (("fifo",), 3, "seed of a policy")
    assert (entry.verdict, entry.evidence) == (
        "not shown",
        "3 seeds of a policy, 1 trace: too few, 3 more would be enough for a test",
    ), "two sizes are not six pairs"
    assert entry.difference.interval is not None
    assert entry.difference.interval[0] < -0.1 < entry.difference.interval[1]
    (other,) = Study(collect([sweep]), baseline="eviction=fifo").comparisons
    assert (other.challenger, other.better) == (("lru",), True)
    assert other.difference.value == pytest.approx(-entry.difference.value)


def test_an_option_of_two_components_varied_only_if_one_component_s_did(tmp_path: Path) -> None:
    for index, (eviction, ghosts) in enumerate((("2q", 0.5), ("s3fifo", 0.9), ("lru", None))):
        options = {} if ghosts is None else {"ghosts": ghosts}
        make_run(tmp_path / str(index), result={"hit_rate": 0.1}, eviction=eviction, options=options)
    assert Study(collect([tmp_path])).keys == ["eviction"]
    make_run(tmp_path / "4", result={"hit_rate": 0.2}, eviction="2q", options={"ghosts": 0.7})
    assert Study(collect([tmp_path])).keys == ["eviction", "eviction.ghosts"]
