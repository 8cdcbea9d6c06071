"""workload=recall: questions whose answers are known, and how many were answered right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from framework.errors import ConfigError, did_you_mean, listing
from framework.interfaces.workload import Answer, Sampling, Workload, WorkloadRequest
from framework_recall.tasks import TASKS, Ids, words

DEPTHS = 5
"""Equal parts of a document by which answers are counted."""


@dataclass(frozen=True, slots=True)
class _Asked:
    request: WorkloadRequest
    task: str
    answer: str
    depth: int


@dataclass(kw_only=True)
class Recall(Workload):
    """Documents of made-up words, each followed by a question whose answer stands in it; see framework_recall.tasks.

    The prompts are text of one word a token for `model=recall`, which was trained on them; any model that reads text
    can be asked. The result has the share of right answers: `workload_accuracy`, by task `workload_accuracy_pairs`, and
    by where the answer stands in its document, in fifths from the front, `workload_accuracy_depth_1` to `_5` (of all
    tasks but `copy`, whose answer is the document).

    Args:
        tasks: which, in turns: of pairs, needle, copy, induction.
        documents: how many.
        questions: about each document where it has so many, a request each; from the second on they hit its blocks.
        length: tokens of a prompt, nearly.
        answer_tokens: at most, of an answer that is longer.
        tokens_per_word: that are generated for each word of the answer, where a model cuts words into several.
    """

    tasks: Sequence[str] = tuple(TASKS)
    documents: int = 64
    questions: int = 1
    length: int = 512
    answer_tokens: int = 8
    tokens_per_word: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in TASKS:
                raise ConfigError(
                    f"workload.tasks: no task {task!r}; tasks: {listing(TASKS)}{did_you_mean(task, TASKS)}"
                )
        for name, least in (
            ("documents", 1), ("questions", 1), ("length", 8), ("answer_tokens", 1), ("tokens_per_word", 1)
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ConfigError(f"workload.{name} (recall) must be at least {least}, found {getattr(self, name)}")
        if not self.tasks:
            raise ConfigError(f"workload.tasks (recall) is empty; tasks: {listing(TASKS)}")

    def requests(self) -> Iterator[WorkloadRequest]:
        """Every question, document after document."""
        return (asked.request for asked in self._asked)

    @cached_property
    def _asked(self) -> list[_Asked]:
        rng = np.random.default_rng(self.seed)
        return [one for number in range(self.documents) for one in self._about(number, rng)]

    def _about(self, number: int, rng: np.random.Generator) -> Iterator[_Asked]:
        task = self.tasks[number % len(self.tasks)]
        document = TASKS[task](rng, self.length - 2)
        chosen = rng.permutation(len(document.questions))[: self.questions]
        for index in chosen.tolist():
            question, answer = document.questions[index], document.questions[index].answer[: self.answer_tokens]
            request = WorkloadRequest(
                prompt=_text(np.concatenate([document.tokens, question.asked])),
                sampling=Sampling(max_tokens=len(answer) * self.tokens_per_word),
                session=f"document-{number}",
                category=task,
                key=f"{task}-{number}-{index}",
            )
            yield _Asked(request, task, _text(answer), 1 + question.place * DEPTHS // len(document.tokens))

    def judge(self, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """The shares of right answers. What a request that failed would have answered counts as wrong."""
        expected = {asked.request.key: asked for asked in self._asked}
        right: dict[str, list[bool]] = defaultdict(list)
        for request, texts in answers:
            asked = expected[request.key]
            words = texts[0].split() if texts else []
            equal = words[: len(asked.answer.split())] == asked.answer.split()
            names = [f"_{asked.task}"] if asked.task == "copy" else [f"_{asked.task}", f"_depth_{asked.depth}"]
            for name in ("", *names):
                right[name].append(equal)
        return {f"accuracy{name}": sum(equal) / len(equal) for name, equal in sorted(right.items())}


_WORDS = words()


def _text(ids: Ids) -> str:
    return " ".join(_WORDS[number] for number in ids.tolist())
