"""Train the model of `model=recall` on its own tasks, and measure how often it is right at which length."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import Qwen3Config, Qwen3ForCausalLM

from framework_recall.tasks import END, SIGNS, STOP, TASKS, VOCABULARY, Document, Ids, words

CHECKPOINT = Path(__file__).resolve().parents[2] / "plugins/framework_recall/checkpoint"
LENGTHS = (64, 128, 256, 512, 1024, 2048)
"""Tokens a row: the next once NEXT_AT of the answers are right."""
NEXT_AT = 0.97
LOOK_EVERY = 50
"""Steps between two looks at the accuracy."""
FINISH_STEPS = 600
"""Steps after the last length, over rows of all lengths, in which the learning rate falls to 0."""
BATCH_TOKENS = 4096
RATE = 3e-3
NOT_ASKED = -100
MEASURED = 400
"""Questions for each task and length."""

CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256, "tie_word_embeddings": True,
    "max_position_embeddings": 4096, "rope_theta": 100_000.0, "bos_token_id": None, "eos_token_id": END,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, measure, save."""
    parser = argparse.ArgumentParser(prog="python -m experiments.recall.train", description=__doc__)
    parser.add_argument("--to", type=Path, default=CHECKPOINT, help="folder of the checkpoint (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="end after so many steps, trained or not")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the sums, and so the weights, are then the same again on one kind of machine
    torch.manual_seed(options.seed)
    model = Qwen3ForCausalLM(Qwen3Config(**CONFIG))
    start = time.process_time()
    steps, tokens = train(model, np.random.default_rng(options.seed), options.steps)
    facts = {
        "command": "python -m experiments.recall.train", "seed": options.seed, "steps": steps, "tokens": tokens,
        "cpu_s": round(time.process_time() - start), "parameters": sum(weight.numel() for weight in model.parameters()),
        "torch": torch.__version__, "machine": f"{platform.machine()}, one thread",
    }  # fmt: skip
    accuracy = measure(model, np.random.default_rng(options.seed + 1), dict.fromkeys(TASKS, LENGTHS), MEASURED)
    save(model, options.to, {**facts, "accuracy": accuracy})
    for row in accuracy:
        print(f"{row['task']:>10} {row['length']:>6} {row['right']:>5} of {row['asked']}")
    return 0


def train(model: Any, rng: np.random.Generator, most: int | None) -> tuple[int, int]:
    """Longer rows as soon as the present ones are answered, then all lengths with a falling rate.

    Returns:
        steps and tokens that it took.
    """
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    gains = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": gains, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
    level, steps, tokens, left, seen = 0, 0, 0, FINISH_STEPS, list[float]()
    while left > 0 and steps != most:
        last = level == len(LENGTHS)
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, (steps + 1) / 100) * (left / FINISH_STEPS if last else 1.0)
        length = int(rng.choice(LENGTHS)) if last else LENGTHS[level]
        rows, labels = batch(rng, length, max(1, BATCH_TOKENS // length))
        loss, right = loss_of(model, rows, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        steps, tokens, left = steps + 1, tokens + rows.numel(), left - last
        seen.append(right)
        if steps % LOOK_EVERY == 0:
            mean = sum(seen[-LOOK_EVERY:]) / LOOK_EVERY
            print(f"step {steps}: {tokens:,} tokens, rows of {length}, {mean:.4f} right", flush=True)
            level += not last and mean > NEXT_AT
    return steps, tokens


def batch(rng: np.random.Generator, length: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (count, length) int64 of documents with questions and answers, and the labels: answers, else NOT_ASKED."""
    names = list(TASKS)
    rows = [row(rng, names[rng.integers(len(names))], length) for _ in range(count)]
    return torch.tensor(np.stack([tokens for tokens, _ in rows])), torch.tensor(np.stack([label for _, label in rows]))


def row(rng: np.random.Generator, task: str, length: int) -> tuple[Ids, Ids]:
    """A document of a sixth to a half of the row, then questions in any order with their answers until it is full."""
    document = TASKS[task](rng, int(rng.integers(length // 6, length // 2)))
    tokens, labels = [document.tokens], [np.full(len(document.tokens), NOT_ASKED)]
    full = len(document.tokens)
    while full < length:
        question = document.questions[rng.integers(len(document.questions))]
        tokens += [question.asked, question.answer, np.array([STOP])]
        labels += [np.full(len(question.asked), NOT_ASKED), question.answer, np.array([NOT_ASKED])]
        full += len(question.asked) + len(question.answer) + 1
    return np.concatenate(tokens)[:length], np.concatenate(labels)[:length]


def loss_of(model: Any, rows: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Cross entropy of the answers' tokens, and the share of them that are right."""
    hidden, wanted = model.model(rows).last_hidden_state[:, :-1], labels[:, 1:]
    asked = wanted != NOT_ASKED
    logits = hidden[asked] @ model.lm_head.weight.T
    right = (logits.argmax(-1) == wanted[asked]).float().mean()
    return torch.nn.functional.cross_entropy(logits, wanted[asked]), float(right)


def measure(
    model: Any, rng: np.random.Generator, lengths: Mapping[str, Sequence[int]], asked: int
) -> list[dict[str, Any]]:
    """Right first tokens for each task and its lengths, one question a document, with a 95 % interval (Wilson)."""
    found = []
    for task in lengths:
        for length in lengths[task]:
            right = sum(_is_right(model, document, rng) for document in islice(_documents(rng, task, length), asked))
            interval = binomtest(right, asked).proportion_ci(method="wilson")
            found.append({
                "task": task, "length": length, "right": right, "asked": asked,
                "low": round(interval.low, 4), "high": round(interval.high, 4),
            })  # fmt: skip
    return found


def _documents(rng: np.random.Generator, task: str, length: int) -> Iterator[Document]:
    while True:
        yield TASKS[task](rng, length - 2)


@torch.inference_mode()
def _is_right(model: Any, document: Document, rng: np.random.Generator) -> bool:
    question = document.questions[rng.integers(len(document.questions))]
    prompt = torch.tensor(np.concatenate([document.tokens, question.asked]))[None]
    hidden = model.model(prompt).last_hidden_state[0, -1]
    return int((model.lm_head.weight @ hidden).argmax()) == int(question.answer[0])


def save(model: Any, folder: Path, facts: dict[str, Any]) -> None:
    """The checkpoint as Qwen3, its tokenizer of whole words, and what is known of its training."""
    model.save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words())}, unk_token=SIGNS[END]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SIGNS[END]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
