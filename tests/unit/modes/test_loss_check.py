"""A backend that declares a loss: the run measures it, and fails where it is larger than declared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from framework import api
from framework.errors import InvalidArgument, PluginError
from framework.interfaces.backend import Capabilities, DenseBackend, Loss
from framework.llm import LLM
from framework.modes import loss_check
from framework.modes.loss_check import measure_loss
from framework.sampling import Sampling
from framework.tracking import read_jsonl, read_result

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
    llm = LLM("tiny", backend=backend, num_blocks=64, block_size=4, **options)
    requests = llm.generate(prompts, Sampling(max_tokens=12))
    assert [request.status.value for request in requests] == ["finished"] * len(prompts)
    verdicts = measure_loss(llm.model.decoder, llm.backend, llm.spec, llm.pool, requests, 8)
    assert [verdict.request for verdict in verdicts] == list(range(len(prompts)))
    return loss_check.summarise(verdicts, Rounds.capabilities.lossy.max_error)  # type: ignore[union-attr]


def test_coarser_rounding_loses_more_in_every_measure() -> None:
    fine, coarse, exact = measured(Rounds()), measured(RoundsMore()), measured(Exact())
    for key in ("dense_logit_error", "dense_kl_divergence", "attention_error"):
        assert exact[key] < fine[key] < coarse[key], (key, exact[key], fine[key], coarse[key])
    assert exact["attention_error"] < 1e-6, exact
    assert exact["dense_agreement"] == 1.0, exact
    assert coarse["dense_agreement"] <= fine["dense_agreement"] <= 1.0
    assert fine["dense_mismatches"] == 0, fine
    assert coarse["dense_mismatches"] == len(PROMPTS), coarse


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

    monkeypatch.setattr(loss_check, "measure_loss", broken)
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
