"""Every answer stands in its document where it is said to, and the document says nothing else about it."""

from __future__ import annotations

import numpy as np
import pytest

from framework_recall.tasks import ASK, LIST, SIGNS, TASKS, VOCABULARY, words


def test_every_token_has_a_text_of_its_own() -> None:
    assert len(set(words())) == len(words()) == VOCABULARY
    assert not any(set(word) & set(" .?!:<>") for word in words()[len(SIGNS) :])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("length", [2, 12, 100, 512, 2048])
def test_an_answer_follows_from_its_document_alone(task: str, length: int) -> None:
    document = TASKS[task](np.random.default_rng(length), length)
    text = document.tokens.tolist()
    assert abs(len(text) - length) <= max(4, length // 100)
    assert document.questions or task == "induction"
    for question in document.questions:
        answer, cue = question.answer.tolist(), int(question.asked[-1])
        assert text[question.place : question.place + len(answer)] == answer
        assert text.count(cue) == 1, "the cue stands twice"
        assert text[question.place - 1] == cue
        assert question.asked.tolist() == ([LIST] if task == "copy" else [ASK, cue])
    places = [question.place for question in document.questions]
    assert places == sorted(places)


@pytest.mark.parametrize("task", TASKS)
def test_equal_seeds_give_equal_documents(task: str) -> None:
    one, same, other = (TASKS[task](np.random.default_rng(seed), 60) for seed in (1, 1, 2))
    assert one.tokens.tolist() == same.tokens.tolist() != other.tokens.tolist()
