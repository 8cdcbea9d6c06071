"""model=recall: the checkpoint of this package, trained on its tasks by `python -m experiments.recall.train`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from framework.model.options import Checkpoint

CHECKPOINT = Path(__file__).resolve().parent / "checkpoint"
"""A folder as transformers and vLLM load it: Qwen3, float32, a tokenizer of whole words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallModel(Checkpoint):
    """A small model that answers workload=recall. No download."""

    path: str = field(default=str(CHECKPOINT), init=False)
