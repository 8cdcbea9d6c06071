"""model=recall: the checkpoint of this package, trained on its tasks by `python -m experiments.recall.train`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from framework.errors import ConfigError
from framework.model.options import Checkpoint

if TYPE_CHECKING:
    from framework.model.config import ModelConfig

CHECKPOINT = Path(__file__).resolve().parent / "checkpoint"
"""A folder as transformers and vLLM load it: Qwen3, float32, a tokenizer of whole words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallModel(Checkpoint):
    """A small model that answers workload=recall. No download.

    Attributes:
        window: tokens that each layer sees, itself included, to measure what a window costs; None: all, as it was
            trained.
    """

    path: str = field(default=str(CHECKPOINT), init=False)
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ConfigError(f"model.window must be at least 1 token, found {self.window}")

    def changed(self, config: ModelConfig) -> ModelConfig:
        return replace(config, sliding_window=self.window)
