"""How often the model of `model=recall` is right by the length of its prompt, up to twice what it has learnt."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from experiments.recall.train import measure
from experiments.shared import finish, panels, parse, save, table
from framework_recall.model import CHECKPOINT
from framework_recall.tasks import TASKS

BEYOND = {"pairs": (3072,), "needle": (3072, 4096), "induction": (3072, 4096)}
"""Lengths that were not learnt; documents of `pairs` and `copy` end where there are no more words."""
ASKED = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """What was measured at the end of training, and what is beyond."""
    options = parse(__doc__, "recall", arguments)
    torch.set_num_threads(1)
    model, asked = Qwen3ForCausalLM.from_pretrained(CHECKPOINT), 2 if options.quick else ASKED
    rows = json.loads((CHECKPOINT / "training.json").read_text())["accuracy"]
    for task, lengths in BEYOND.items():
        rows += measure(model, np.random.default_rng(2), {task: lengths}, asked)
    rows = [{**row, "share": row["right"] / row["asked"]} for row in rows]
    finish(options, {"recall": rows}, {"recall": _table(rows)}, asked_beyond=asked)
    by_task = sorted(rows, key=lambda row: [*TASKS].index(row["task"]))
    save(panels(by_task, "task", ("length", 1, "tokens of a prompt"), ("share", 0.01, "right, %"), ylim=(0, 102)),
         options, "recall")  # fmt: skip
    return 0


def _table(rows: Sequence[dict[str, float]]) -> str:
    cells = {(row["task"], row["length"]): row for row in rows}
    body = []
    for length in sorted({length for _, length in cells}):
        found = [cells.get((task, length)) for task in TASKS]
        body.append((f"{length:,}", *(
            "" if one is None else f"{100 * one['share']:.1f} [{100 * one['low']:.1f}, {100 * one['high']:.1f}]"
            for one in found
        )))  # fmt: skip
    return table(("length", *(f"`{task}`" for task in TASKS)), body)


if __name__ == "__main__":
    sys.exit(main())
