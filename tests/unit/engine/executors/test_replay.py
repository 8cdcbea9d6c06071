"""A clock of fitted costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.engine.executors.base import work_of
from framework.engine.executors.replay import StepCosts
from framework.errors import ConfigError

COSTS = {"step_s": 1.0, "row_s": 0.1, "token_s": 0.01, "context_s": 0.001, "pair_s": 0.0001}


def written(path: Path, **costs: Any) -> Path:
    path.write_text(json.dumps({"costs": {**COSTS, **costs}}))
    return path


def test_pairs_are_those_of_causal_attention() -> None:
    new, computed = np.array([1, 4]), np.array([7, 2])
    pairs = sum(before + place + 1 for count, before in ((1, 7), (4, 2)) for place in range(count))
    assert work_of(new, computed) == {"rows": 2, "new_tokens": 5, "context_tokens": 9, "pairs": pairs}


def test_a_prompt_costs_what_is_not_cached(tmp_path: Path) -> None:
    costs = StepCosts.read(written(tmp_path / "costs.json"))
    assert costs.prefill_s(8, 8) == 0
    assert costs.prefill_s(8, 10) == pytest.approx(1 + 0.1 + 0.02 + 0.008 + (9 + 10) * 0.0001)


@pytest.mark.parametrize(
    "wrong",
    [{"row_s": -1.0}, {"pair_s": float("nan")}, {"pair_s": 1e308}, {"row_s": True}, {"row_s": None}, {"rows": 1.0},
     dict.fromkeys(COSTS, 0.0)],
)  # fmt: skip
def test_costs_that_no_clock_can_have_are_refused(tmp_path: Path, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"replay.costs\.\w+ (must be|has no value)|unknown key|stand still"):
        StepCosts.read(written(tmp_path / "costs.json", **wrong))


def test_a_file_without_costs_is_refused_with_the_command_that_writes_one(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("{}")
    for path in (tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(ConfigError, match=r"framework calibrate STEPS --out FILE"):
            StepCosts.read(path)
