"""Our block eviction and OpenVINO GenAI's, beside each other: the same checkpoint, prompts and cache sizes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from scipy import stats

from experiments.shared import begun, finish, output_of, parser_of, table
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.model.loading import load_model
from framework.sampling import Sampling
from framework_recall.model import CHECKPOINT
from framework_recall.tasks import copy

BLOCK, START, RECENT, WINDOW = 32, 32, 32, 8
"""Tokens of a block on OpenVINO's CPU, of the first and last ones that stay, and its queries that count."""
SIZES, SEEDS, DOCUMENTS, LENGTH, ANSWER = (None, 384, 256, 128), 6, 4, 511, 96
NUM_BLOCKS = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Both engines copy lists of which a cache of each size keeps a part."""
    parser = parser_of(__doc__, "lossy.peer", quick="one seed")
    parser.add_argument("--python", type=Path, default=Path(".peers/bin/python"), help="of the peer's environment")
    parser.add_argument("--model", type=Path, default=Path(".peers/recall"), help="the checkpoint in OpenVINO's format")
    options = begun(parser, arguments, "results/peer")
    torch.set_num_threads(1)
    prompts, answers = _lists(1 if options.quick else SEEDS)
    asked = {
        "prompts": prompts, "num_blocks": NUM_BLOCKS, "start_tokens": START, "recent_tokens": RECENT,
        "answer_tokens": ANSWER, "sizes": [{"max_tokens": size} for size in SIZES],
    }  # fmt: skip
    version, theirs = _peer(options.python, options.model, asked)
    ours = {each: [_ours(prompts, size, each_layer=each) for size in SIZES] for each in (False, True)}
    rows = [
        {"engine": engine, "max_tokens": size, "seed": number // DOCUMENTS, "document": number,
         "right_words": _right(tokens, answer)}
        for engine, found in (
            ("framework, all layers alike", ours[False]), ("framework, each layer", ours[True]),
            (f"openvino-genai {version}", theirs),
        )
        for size, each in zip(SIZES, found, strict=True)
        for number, (tokens, answer) in enumerate(zip(each, answers, strict=True))
    ]  # fmt: skip
    finish(
        options, {"answers": rows}, {"peer": _table(rows)}, peer=f"openvino-genai {version}",
        **{name: value for name, value in asked.items() if name != "prompts"},
    )  # fmt: skip
    return 0


def _lists(seeds: int) -> tuple[list[list[int]], list[list[int]]]:
    """Lists with the question for them, and the words that answer it."""
    prompts, answers = [], []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        for document in (copy(rng, LENGTH) for _ in range(DOCUMENTS)):
            [question] = document.questions
            prompts.append([*document.tokens.tolist(), *question.asked.tolist()])
            answers.append(question.answer[:ANSWER].tolist())
    return prompts, answers


def _ours(prompts: list[list[int]], max_tokens: int | None, *, each_layer: bool) -> list[list[int]]:
    """Blocks go when the prompt is computed, and again whenever a block was filled."""
    length = len(prompts[0])
    compression: Any = "none" if max_tokens is None else {
        "name": "openvino", "ratio": 1 - max_tokens / length, "start_tokens": START, "recent_tokens": RECENT,
        "window": WINDOW, "every": BLOCK, "each_layer": each_layer,
    }  # fmt: skip
    llm = LLM(
        load_model(str(CHECKPOINT), device="cpu"), compression=compression, device="cpu",
        cache=CacheOptions(num_blocks=NUM_BLOCKS, block_size=BLOCK), engine=EngineOptions(max_batch_requests=1),
    )  # fmt: skip
    sampling = Sampling(max_tokens=ANSWER, ignore_eos=True)
    return [request.completions[0].tokens for request in llm.generate([[*one] for one in prompts], sampling)]


def _peer(python: Path, model: Path, asked: dict[str, Any]) -> tuple[str, list[list[list[int]]]]:
    with TemporaryDirectory() as folder:
        questions, answers = Path(folder) / "questions.json", Path(folder) / "answers.json"
        questions.write_text(json.dumps(asked))
        output_of([python, Path(__file__).with_name("peer_side.py"), model, questions, answers])
        found = json.loads(answers.read_text())
    return found["version"], [one["tokens"] for one in found["found"]]


def _right(tokens: Sequence[int], answer: Sequence[int]) -> int:
    """Words that are right before the first that is not: what follows that is another place of the list."""
    wrong = [place for place, pair in enumerate(zip(tokens, answer, strict=True)) if pair[0] != pair[1]]
    return wrong[0] if wrong else len(answer)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    body = []
    for engine, size in dict.fromkeys((row["engine"], row["max_tokens"]) for row in rows):
        mine = [row for row in rows if (row["engine"], row["max_tokens"]) == (engine, size)]
        each = [
            np.mean([row["right_words"] for row in mine if row["seed"] == seed])
            for seed in {row["seed"] for row in mine}
        ]
        half = stats.t.ppf(0.975, len(each) - 1) * stats.sem(each) if len(each) > 1 else float("nan")
        body.append((engine, size or "all", f"{np.mean(each):.0f}", f"{half:.0f}"))
    return table(("engine", "tokens that stay", f"right words of {ANSWER}", f"± ({len(each)} seeds)"), body)


if __name__ == "__main__":
    sys.exit(main())
