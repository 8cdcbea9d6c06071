"""A small checkpoint, written by hand: weights and a config, and no tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from framework.model.checkpoint import weight_targets
from framework.model.decoder import Decoder
from framework.model.families import read_config

CONFIG = {
    "model_type": "qwen3", "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 24, "tie_word_embeddings": True, "eos_token_id": 1,
}  # fmt: skip


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder. Every tensor is different."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    generator = torch.Generator().manual_seed(0)
    shapes = {name: shape for name, (_, shape) in weight_targets(Decoder(read_config(folder))).items()}
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    return folder
