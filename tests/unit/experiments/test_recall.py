"""The training of `model=recall`: what a row asks, and a few steps of it from its command to a checkpoint."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from experiments.recall import train
from framework.model.loading import load_model
from framework_recall.tasks import ASK, LIST, TASKS, words


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("length", [64, 512])
def test_only_answers_are_asked_and_each_stands_earlier_in_its_row(task: str, length: int) -> None:
    tokens, labels = train.row(np.random.default_rng(0), task, length)
    assert len(tokens) == len(labels) == length
    asked = np.flatnonzero(labels != train.NOT_ASKED)
    assert len(asked) >= length // 8
    assert (labels[asked] == tokens[asked]).all()
    for place in asked.tolist():
        cue = tokens[place - 1]
        assert (cue, tokens[place]) in pairwise(tokens[:place])
        assert task == "copy" or tokens[place - 2] == ASK
    assert task != "copy" or tokens[asked[0] - 1] == LIST


def test_a_few_steps_make_a_checkpoint_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "LENGTHS", (64,))
    monkeypatch.setattr(train, "MEASURED", 3)
    folder = tmp_path / "made"
    assert train.main(["--steps", "2", "--to", str(folder)]) == 0
    facts = json.loads((folder / "training.json").read_text())
    assert (facts["steps"], facts["tokens"]) == (2, 2 * train.BATCH_TOKENS)
    assert [(row["task"], row["length"], row["asked"]) for row in facts["accuracy"]] == [(t, 64, 3) for t in TASKS]
    tokenizer = load_model(folder).tokenizer
    assert tokenizer.decode(tokenizer.encode("? baba .")) == "? baba ."
    assert tokenizer.vocab_size == len(words())
