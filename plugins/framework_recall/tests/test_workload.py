"""workload=recall asks what can be answered, and counts what was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework.api import run
from framework.errors import ConfigError, PluginError
from framework.interfaces.workload import Answer
from framework_recall.model import RecallModel
from framework_recall.workload import Recall
from framework_testing import workload_checks


@pytest.mark.parametrize("check", workload_checks)
def test_the_workload_keeps_its_contract(check: Any) -> None:
    check(Recall)


def test_questions_about_one_document_share_its_text() -> None:
    requests = list(Recall(documents=8, questions=3, length=60).requests())
    by_document: dict[str | None, list[str]] = {}
    for request in requests:
        by_document.setdefault(request.session, []).append(str(request.prompt))
    assert len(by_document) == 8
    of_pairs = by_document["document-0"]
    assert len(of_pairs) == 3
    assert len({text[: text.rindex("?")] for text in of_pairs}) == 1
    assert len({text[text.rindex("?") :] for text in of_pairs}) == 3


def answered(workload: Recall, wrong: set[str] = frozenset(), failed: set[str] = frozenset()) -> list[Answer]:  # type: ignore[assignment]
    """Every question with the right answer and a word more, but those of these tasks."""
    texts = [
        () if asked.task in failed else ("nonsense",) if asked.task in wrong else (f"{asked.answer} baba",)
        for asked in workload._asked
    ]
    return [Answer(*one) for one in zip(workload.requests(), texts, strict=True)]


def test_right_answers_are_counted_by_task_and_by_depth() -> None:
    workload = Recall(documents=40, length=60)
    judged = workload.judge(answered(workload))
    assert set(judged.values()) == {1.0}
    assert {"accuracy", "accuracy_copy", "accuracy_pairs", "accuracy_depth_1", "accuracy_depth_5"} < set(judged)
    judged = workload.judge(answered(workload, wrong={"pairs"}, failed={"copy"}))
    assert (judged["accuracy"], judged["accuracy_pairs"], judged["accuracy_copy"]) == (0.5, 0.0, 0.0)
    assert judged["accuracy_needle"] == judged["accuracy_induction"] == 1.0


def test_an_answer_cut_short_is_wrong() -> None:
    workload = Recall(documents=1, tasks=["copy"], length=20, answer_tokens=3)
    (asked,) = workload._asked
    assert len(asked.answer.split()) == asked.request.sampling.max_tokens == 3
    for text, accuracy in ((asked.answer, 1.0), (asked.answer.rpartition(" ")[0], 0.0)):
        assert workload.judge([Answer(asked.request, (text,))]) == {"accuracy": accuracy, "accuracy_copy": accuracy}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["pears"]}, "no task 'pears'; tasks: pairs, .*; did you mean 'pairs'"),
        ({"tasks": []}, "workload.tasks .recall. is empty"),
        ({"length": 7}, "workload.length .recall. must be at least 8, found 7"),
        ({"documents": 0}, "workload.documents .recall. must be at least 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recall(**options)


RECENT = '''
from torch.nn.functional import scaled_dot_product_attention

from framework.interfaces.backend import Capabilities, DenseBackend, Loss


class Recent(DenseBackend):
    """Attends to the first token and the last 64: what stands before them is lost."""

    capabilities = Capabilities(
        dtypes=frozenset({"float32"}),
        devices=frozenset({"cpu"}),
        lossy=Loss(max_error=0.99, reason="only the last 64 tokens and the first one are read"),
    )

    def attend_one(self, q, k, v, row):
        query, key = row.positions(q.device)
        seen = row.visible(q.device) & ((key > query - 64) | (key == 0))
        one, two, three = (part.transpose(0, 1)[None] for part in (q, k, v))
        return scaled_dot_product_attention(
            one, two, three, attn_mask=seen, scale=row.spec.softmax_scale, enable_gqa=True
        )[0].transpose(0, 1)
'''


def served(folder: Path, backend: Any) -> dict[str, Any]:
    workload = {"name": "recall", "documents": 24, "length": 256, "questions": 2}
    settings = {"dir": str(folder), "check_requests": 0, "progress": False}
    return run({"model": "recall", "workload": workload, "backend": backend, "run": settings, "device": "cpu"})


def test_the_model_answers_behind_hits_and_what_a_backend_loses_shows_where_it_was(tmp_path: Path) -> None:
    result = served(tmp_path / "exact", "torch")
    assert result["workload_accuracy"] > 0.97
    assert result["hit_tokens"] > 0
    (tmp_path / "recent.py").write_text(RECENT)
    lossy = served(tmp_path / "lossy", f"{tmp_path / 'recent.py'}:Recent")
    assert lossy["workload_accuracy_depth_1"] < 0.2 < 0.8 < lossy["workload_accuracy_depth_5"]


@pytest.mark.parametrize(("window", "least", "most"), [(512, 0.97, 1.0), (64, 0.0, 0.5)])
def test_a_window_loses_what_lies_before_it(window: int, least: float, most: float, tmp_path: Path) -> None:
    workload = {"name": "recall", "documents": 16, "length": 200}
    model = {"name": "recall", "window": window}
    result = run(
        {"model": model, "workload": workload, "run": {"dir": str(tmp_path), "progress": False}, "device": "cpu"}
    )
    assert least <= result["workload_accuracy"] <= most, result["workload_accuracy"]
    assert result["dense_mismatches"] == 0, "a dense model with this window"


def test_a_window_of_no_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="window must be at least 1"):
        RecallModel(window=0)


FORGETFUL = """
from framework_recall.workload import Recall

class Forgetful(Recall):
    def judge(self, answers):
        return {"accuracy": None}
"""


def test_what_a_workload_says_of_its_answers_is_checked(tmp_path: Path) -> None:
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    workload = {"name": f"{tmp_path / 'forgetful.py'}:Forgetful", "documents": 1, "length": 20}
    with pytest.raises(PluginError, match="judge: must return a dict of names to texts and finite numbers"):
        run({"model": "tiny", "workload": workload, "run": {"dir": str(tmp_path / "run")}, "device": "cpu"})
