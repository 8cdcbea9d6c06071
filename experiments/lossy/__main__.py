"""What a compression's budget returns to the pool at a block size, and what it costs in right answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy import stats

from experiments.shared import finish, panels, parse, save, table
from framework.interfaces.workload import Answer
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.model.loading import LoadedModel, load_model
from framework_recall.model import CHECKPOINT
from framework_recall.workload import Recall

TOKENS = ("streaming", "knorm", "keydiff", "snapkv", "expected_attention", "adakv")
BLOCKS = ("paged_eviction", "openvino")
RATIOS, SEEDS = (0.25, 0.5, 0.75, 0.9), {1: 4, 16: 12, 64: 4}
"""By block size: answers are compared in blocks of 16, what comes back in all three."""
DOCUMENTS, LENGTHS, QUESTION, TASKS = 6, (512, 475, 438, 401), 2, ("pairs", "needle", "induction")
"""Seeds take them in turn: how much a block's rounding takes depends on it."""
OWN: Mapping[str, Mapping[str, Any]] = {
    "openvino": {"start_tokens": 16, "recent_tokens": 32},  # its own take up more than the smallest budget
    "adakv": {"over": "expected_attention"},  # beside which it stands: only the heads' budgets differ
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Every method, ratio, block size and seed over the same documents."""
    options = parse(__doc__, "lossy", arguments)
    torch.set_num_threads(1)
    ratios, seeds = ((0.5,), dict.fromkeys(SEEDS, 1)) if options.quick else (RATIOS, SEEDS)
    model = load_model(str(CHECKPOINT), device="cpu")
    rows = [served(model, "none", 0.0, 16, seed) for seed in range(seeds[16])]
    for method, ratio, size in product((*TOKENS, *BLOCKS), ratios, SEEDS):
        rows += [served(model, method, ratio, size, seed) for seed in range(seeds[size])]
    rows += [served(model, "quest", ratio, 16, seed) for ratio, seed in product(ratios, range(seeds[16]))]
    lines = summarised(rows)
    finish(
        options, {"runs": rows, "lossy": lines},
        {"lossy": _table(lines), "depth": _depths(lines), "sentence": _sentences(lines)},
        documents=DOCUMENTS, lengths=LENGTHS, question_tokens=QUESTION, tasks=TASKS, seeds=seeds,
        own={name: dict(values) for name, values in OWN.items()},
    )  # fmt: skip
    curves = [line for line in lines if line["block_size"] == 16 and line["method"] != "none"]
    shown = ("accuracy", 0.01, "right, %"), ("kept_mass", 0.01, "attention kept, %")
    save(panels(curves, "method", ("returned_bytes", 1024, "KiB returned by a compression"), *shown), options, "lossy")
    return 0


def served(model: LoadedModel, method: str, ratio: float, size: int, seed: int) -> dict[str, Any]:
    """One after another, the questions about one seed's documents: two a document, where there are two."""
    workload = Recall(tasks=TASKS, documents=DOCUMENTS, questions=2, length=LENGTHS[seed % len(LENGTHS)], seed=seed)
    compression: Any = {"name": method, "ratio": ratio, "question_tokens": QUESTION, **OWN.get(method, {})}
    backend: Any = "torch"
    if method == "quest":  # at ratio 0 the question is computed in a step of its own, and nothing is dropped
        compression = {"name": "streaming", "ratio": 0.0, "question_tokens": QUESTION}
        backend = {"name": "quest", "share": 1 - ratio, "max_queries": QUESTION}
    llm = LLM(
        model, compression="none" if method == "none" else compression, backend=backend, device="cpu",
        cache=CacheOptions(num_blocks=4096 // size, block_size=size), engine=EngineOptions(max_batch_requests=1),
    )  # fmt: skip
    items = list(workload.requests())
    requests = llm.generate([item.prompt or "" for item in items], [item.sampling for item in items])
    llm.engine.check()
    answers = [Answer(one, (request.completions[0].text or "",)) for one, request in zip(items, requests, strict=True)]
    stats, facts = llm.stats(), llm.backend.facts() if method == "quest" else {}
    block_bytes = llm.pool.bytes // (llm.num_blocks + 1)
    judged = {f"depth_{fifth}": None for fifth in range(1, 6)} | {
        name.removeprefix("accuracy_"): share for name, share in workload.judge(answers).items()
    }
    return {
        "method": method, "ratio": ratio, "block_size": size, "seed": seed, "questions": len(items),
        "accuracy": judged["accuracy"], "dropped_share": stats.get("dropped_share"),
        "returned_share": stats.get("returned_share") or 0.0,
        "returned_bytes": (stats.get("returned_blocks") or 0) * block_bytes, "hit_rate": stats["hit_rate"],
        "kept_mass": facts.get("kept_attention_mass", stats.get("kept_attention_mass")),
        "output_error": stats.get("compression_output_error"), "read_share": facts.get("read_share"),
        "top_block_recall": facts.get("top_block_recall"),
        **{name: judged[name] for name in ("depth_1", "depth_2", "depth_3", "depth_4", "depth_5")},
    }  # fmt: skip


def summarised(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The mean over seeds of each cell, and the 95 % interval of its accuracy."""
    lines = []
    for key in dict.fromkeys((row["method"], row["ratio"], row["block_size"]) for row in rows):
        cell = [row for row in rows if (row["method"], row["ratio"], row["block_size"]) == key]
        right = np.array([row["accuracy"] for row in cell])
        half = float("nan")
        if len(cell) > 1:
            half = stats.t.ppf(0.975, len(cell) - 1) * stats.sem(right)
        lines.append({
            "method": key[0], "ratio": key[1], "block_size": key[2], "seeds": len(cell),
            "returned_share": _mean(cell, "returned_share"), "returned_bytes": _mean(cell, "returned_bytes"),
            "returned_of_nominal": (_mean(cell, "returned_share") or 0.0) / key[1] if key[1] else None,
            "accuracy": float(right.mean()), "half_width": half, "hit_rate": _mean(cell, "hit_rate"),
            **{name: _mean(cell, name) for name in (
                "kept_mass", "output_error", "read_share", "top_block_recall",
                "depth_1", "depth_2", "depth_3", "depth_4", "depth_5",
            )},
        })  # fmt: skip
    return lines


def _mean(cell: Sequence[Mapping[str, Any]], name: str) -> float | None:
    found = [row[name] for row in cell if row[name] is not None]
    return float(np.mean(found)) if found else None


def _sentences(lines: Sequence[Mapping[str, Any]]) -> str:
    """How much of the nominal ratio a block size returns, by method, from the least to the most over ratios."""
    said = []
    for size in SEEDS:
        parts = []
        for method in (*TOKENS, *BLOCKS):
            mine = [line for line in lines if (line["method"], line["block_size"]) == (method, size)]
            shares = [line["returned_of_nominal"] for line in mine]
            parts.append(f"{method} {100 * min(shares):.0f} to {100 * max(shares):.0f} %")
        said.append(f"* A block of {size} returns, of the nominal ratio: {', '.join(parts)}.")
    return "\n".join(said)


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    header = (
        "method", "ratio", "returned at 1, %", "at 16, %", "at 64, %", "KiB at 16", "right at 16, %", "± (seeds)",
        "attention kept, %", "hit rate, %",
    )  # fmt: skip
    cells = {(line["method"], line["ratio"], line["block_size"]): line for line in lines}
    body = []
    for method, ratio, size in cells:
        if size != 16:
            continue
        line = cells[method, ratio, 16]
        returned = [cells.get((method, ratio, one), {}).get("returned_share") for one in SEEDS]
        body.append((
            method, f"{ratio:g}", *(_percent(one) for one in returned), f"{line['returned_bytes'] / 1024:.0f}",
            _percent(line["accuracy"]), f"{_percent(line['half_width'])} ({line['seeds']})",
            _percent(line["kept_mass"]), _percent(line["hit_rate"]),
        ))  # fmt: skip
    return table(header, body)


def _depths(lines: Sequence[Mapping[str, Any]]) -> str:
    """Right answers by where in its document the answer stands, at half the tokens."""
    fifths = ("depth_1", "depth_2", "depth_3", "depth_4", "depth_5")
    mine = [line for line in lines if line["ratio"] in (0.0, 0.5) and line["block_size"] == 16]
    header = ("method", *(f"fifth {number}" for number in range(1, 6)), "error of attention, %")
    body = [(line["method"], *(_percent(line[one]) for one in (*fifths, "output_error"))) for line in mine]
    return table(header, body)


def _percent(value: float | None) -> str:
    return "" if value is None or np.isnan(value) else f"{100 * value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
