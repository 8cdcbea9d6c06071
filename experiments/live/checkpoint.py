"""A small Qwen3 checkpoint with a tokenizer, made here: random weights, the same for a seed."""

from __future__ import annotations

import json
from pathlib import Path

VOCABULARY = 2048
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def make(folder: Path, seed: int = 0, **other: int) -> Path:
    """Write config.json, model.safetensors (float32) and tokenizer.json to `folder`, unless they are there.

    Args:
        other: keys of SHAPE with other numbers.
    """
    if (folder / "tokenizer_config.json").exists():
        return folder
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    shape = SHAPE | other
    (folder / "config.json").write_text(json.dumps(shape, indent=1))
    draw = torch.Generator().manual_seed(seed)
    words, hidden, inner, heads, kv_heads, size = (
        int(str(shape[key]))
        for key in (
            "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"
        )
    )  # fmt: skip
    weights = {"model.embed_tokens.weight": (words, hidden), "model.norm.weight": (hidden,)}
    for layer in range(int(str(shape["num_hidden_layers"]))):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "self_attn.q_proj.weight": (heads * size, hidden),
            prefix + "self_attn.k_proj.weight": (kv_heads * size, hidden),
            prefix + "self_attn.v_proj.weight": (kv_heads * size, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, heads * size),
            prefix + "self_attn.q_norm.weight": (size,),
            prefix + "self_attn.k_norm.weight": (size,),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
        }
    drawn = {
        name: torch.randn(shape, generator=draw) * (2.0 / shape[-1]) ** 0.5 if len(shape) == 2 else torch.ones(shape)
        for name, shape in weights.items()
    }
    save_file(drawn, folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(folder)
    return folder


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<s>", "</s>", *alphabet]
    words += [f"{a}{b}" for a in alphabet for b in alphabet][: VOCABULARY - len(words)]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
