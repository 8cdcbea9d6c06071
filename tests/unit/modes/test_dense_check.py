"""A backend that declares a loss: the run measures it, and fails where it is larger than declared."""

from __future__ import annotations

import math
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_engines import make_llm

from framework import api
from framework.errors import InvalidArgument, PluginError, RankError
from framework.interfaces.backend import Capabilities, DenseBackend, Loss
from framework.modes import dense_check
from framework.modes.dense_check import measure_loss
from framework.results.reading import read_result
from framework.sampling import Sampling
from framework_torch.backend import TorchBackend
from framework_workloads.lines import read_jsonl

PROMPTS = [[1, 2, 3, 4, 5], [9, 8, 7], [5] * 20]


class Rounds(DenseBackend):
    """Attention over K and V rounded to `levels` steps a side."""

    capabilities = Capabilities(
        dtypes=frozenset({"float32"}), devices=frozenset({"cpu"}), lossy=Loss(max_error=0.05, reason="K, V as int8")
    )
    levels = 127

    def attend_one(self, q: Any, k: Any, v: Any, row: Any) -> Any:
        group = q.shape[1] // k.shape[1]
        k, v = (self.rounded(x).repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("qhd,chd->hqc", q, k) * row.spec.softmax_scale
        scores = scores.masked_fill(~row.visible(q.device), float("-inf"))
        return torch.einsum("hqc,chd->qhd", scores.softmax(-1), v)

    def rounded(self, x: Any) -> Any:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / self.levels
        return (x / scale).round() * scale


class RoundsMore(Rounds):
    levels = 3


class Exact(Rounds):
    def rounded(self, x: Any) -> Any:
        return x


def measured(backend: Any, prompts: Any = PROMPTS, **options: Any) -> dict[str, Any]:
    llm = make_llm("tiny", backend=backend, num_blocks=64, block_size=4, **options)
    requests = llm.generate(prompts, Sampling(max_tokens=12))
    assert [request.status.value for request in requests] == ["finished"] * len(prompts)
    verdicts = measure_loss(llm, requests, 8)
    assert [verdict.request for verdict in verdicts] == list(range(len(prompts)))
    return dense_check.summarise_loss(verdicts, Rounds.capabilities.lossy.max_error)  # type: ignore[union-attr]


def test_coarser_rounding_loses_more_in_every_measure() -> None:
    fine, coarse, exact = measured(Rounds()), measured(RoundsMore()), measured(Exact())
    for key in ("dense_logit_error", "dense_kl_divergence", "attention_error"):
        assert exact[key] < fine[key] < coarse[key], (key, exact[key], fine[key], coarse[key])
    assert exact["attention_error"] < 1e-6, exact
    assert exact["dense_agreement"] == 1.0, exact
    assert coarse["dense_agreement"] <= fine["dense_agreement"] <= 1.0
    assert (fine["dense_mismatches"], fine["loss_exceeded"]) == (None, 0), fine
    assert coarse["loss_exceeded"] == len(PROMPTS), coarse


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_the_measure_does_not_depend_on_blocks(layout: str) -> None:
    wide = replace(Rounds.capabilities, layouts=frozenset({"NHD", "HND"}))
    cls = type("Wide", (Rounds,), {"capabilities": wide})
    assert measured(cls(), layout=layout)["attention_error"] == pytest.approx(
        measured(Rounds())["attention_error"], rel=1e-6
    )


@pytest.mark.parametrize(("share", "reason"), [(0.0, "x"), (1.0, "x"), (float("nan"), "x"), (0.1, " ")])
def test_a_loss_says_how_much_and_why(share: float, reason: str) -> None:
    with pytest.raises(InvalidArgument):
        Loss(max_error=share, reason=reason)


def test_a_measuring_pass_that_fails_makes_the_run_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise PluginError("the backend wrote nothing")

    monkeypatch.setattr(dense_check, "measure_loss", broken)
    config = {
        "workload": {"name": "no_sharing", "num_requests": 2, "new_tokens": 3},
        "cache": {"kv_dtype": "bfloat16"},  # of another dtype than the model's, so it is measured
        "run": {"dir": str(tmp_path), "progress": False},
    }
    with pytest.raises(PluginError, match="wrote nothing"):
        api.run(config)
    result = read_result(tmp_path)
    assert (result["status"], result["num_requests"]) == ("failed", 2)
    assert "wrote nothing" in result["reasons"][0]
    assert len(read_jsonl(tmp_path / "requests.jsonl")) == 2


def test_the_error_is_the_largest_share_of_a_call_and_layer_over_the_heads_of_all_ranks() -> None:
    first, second = [(0.1, 1.0), (0.2, 8.0)], [(0.3, 0.5), (0.1, 2.0)]
    assert dense_check.attention_error([first]) == 0.1
    assert dense_check.attention_error([first, second]) == 0.3, "0.3 of 1.0: the largest |V| is the first rank's"
    assert dense_check.attention_error([[(0.25, 0.0)]]) == 0.25, "all V are 0"
    assert math.isnan(dense_check.attention_error([first, [(math.nan, 1.0), (0.0, 1.0)]]))


class FailsOnRank1(TorchBackend):
    """Serves, and raises in the measuring pass of rank 1, the only pass there over a pool of fewer blocks than 256."""

    def attend(self, q: Any, kv: Any, batch: Any, out: Any) -> None:
        if multiprocessing.parent_process() is not None and len(kv.k) < 257:
            raise ValueError("no such head")
        super().attend(q, kv, batch, out)


def config_of(folder: Path, size: int, kv_dtype: str, **more: Any) -> dict[str, Any]:
    return {
        "workload": {"name": "shared_prefix", "num_requests": 4, "new_tokens": 12},
        "cache": {"kv_dtype": kv_dtype},
        "engine": {"tensor_parallel_size": size},
        "device": "cpu",
        "run": {"dir": str(folder / f"{kv_dtype}{size}"), "progress": False},
        **more,
    }


@pytest.mark.parametrize(
    "kv_dtype", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("bfloat16", "float8_e4m3fn")), "int8"]
)
def test_two_ranks_report_the_fidelity_of_one(tmp_path: Path, kv_dtype: str) -> None:
    """Sums over ranks are rounded otherwise, and a number at the edge of two steps of int8 may fall to either side."""
    one, two = (api.run(config_of(tmp_path, size, kv_dtype)) for size in (1, 2))
    assert (two["dense_checked"], two["tensor_parallel_size"]) == (4, 2)
    assert two["dense_agreement"] == one["dense_agreement"], (one, two)
    assert [(run["dtype"], run["kv_dtype"], run["dense_mismatches"]) for run in (one, two)] == [
        ("float32", kv_dtype, None)
    ] * 2
    for key in ("dense_logit_error", "dense_kl_divergence", "attention_error"):
        assert two[key] == pytest.approx(one[key], rel=0.02), (key, one[key], two[key])
        assert two[key] > 0.0, key
    rows = [read_jsonl(tmp_path / f"{kv_dtype}{size}" / "requests.jsonl") for size in (1, 2)]
    assert [row["dense_differs_at"] for row in rows[0]] == [row["dense_differs_at"] for row in rows[1]]


def test_a_rank_that_fails_in_the_measuring_pass_makes_the_run_a_failure(tmp_path: Path) -> None:
    own = {"name": f"{__file__}:FailsOnRank1"}
    with pytest.raises(RankError, match=r"rank 1 of 2 failed: .*FailsOnRank1\.\w+: raised .*no such head"):
        api.run(config_of(tmp_path, 2, "bfloat16", backend=own))
    result = read_result(tmp_path / "bfloat162")
    assert result["status"] == "failed", result
    assert "no such head" in result["reasons"][0]
