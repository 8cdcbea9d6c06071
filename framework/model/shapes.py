"""Shapes of well-known models, for benchmarks on random weights."""

from __future__ import annotations

from typing import Any

from framework.model.config import ModelConfig
from framework.model.shape import RopeScaling

_QWEN3: dict[str, Any] = {
    "family": "qwen3", "rope_theta": 1_000_000.0, "qk_norm": True, "max_position_embeddings": 40_960
}  # fmt: skip
_LLAMA3: dict[str, Any] = {
    "family": "llama", "vocab_size": 128_256, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131_072, "dtype": "bfloat16",
}  # fmt: skip
_100M: dict[str, Any] = {
    "vocab_size": 32_000, "hidden_size": 768, "num_layers": 12, "num_heads": 12, "num_kv_heads": 4, "head_dim": 64,
    "intermediate_size": 2048, "tie_word_embeddings": True,
}  # fmt: skip

SHAPES: dict[str, ModelConfig] = {
    # 100.1M parameters, the tied embedding (24.6M, also the output head) included.
    "qwen3-100m": ModelConfig(**_QWEN3, **_100M),
    # huggingface.co/Qwen/Qwen3-0.6B config.json
    "qwen3-0.6b": ModelConfig(
        **_QWEN3, vocab_size=151_936, hidden_size=1024, num_layers=28, num_heads=16, num_kv_heads=8, head_dim=128,
        intermediate_size=3072, tie_word_embeddings=True, dtype="bfloat16",
    ),
    # huggingface.co/Qwen/Qwen3-8B config.json
    "qwen3-8b": ModelConfig(
        **_QWEN3, vocab_size=151_936, hidden_size=4096, num_layers=36, num_heads=32, num_kv_heads=8, head_dim=128,
        intermediate_size=12_288, dtype="bfloat16",
    ),
    # The 100M shape above as a Llama: no norm on queries and keys.
    "llama-100m": ModelConfig(**_100M, family="llama", rms_norm_eps=1e-5, max_position_embeddings=40_960),
    # huggingface.co/meta-llama/Llama-3.2-1B config.json
    "llama-3.2-1b": ModelConfig(
        **_LLAMA3, hidden_size=2048, num_layers=16, num_heads=32, num_kv_heads=8, head_dim=64, intermediate_size=8192,
        rope_scaling=RopeScaling(kind="llama3", factor=32.0), tie_word_embeddings=True,
    ),
    # huggingface.co/meta-llama/Llama-3.1-8B config.json
    "llama-3.1-8b": ModelConfig(
        **_LLAMA3, hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128,
        intermediate_size=14_336, rope_scaling=RopeScaling(kind="llama3", factor=8.0),
    ),
}  # fmt: skip
"""Name -> shape. None has an end-of-text token: random weights must not decide how long a benchmark runs."""
