"""Small checkpoints made by transformers itself, with random weights and a trained tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHAT_TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('unknown role ' + message.role) }}
    {%- endif %}
    {{- '<|start|>' + message.role + '\\n' + message.content | trim + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant\\n' }}
{%- endif %}
"""

_CORPUS = (
    "You are a helpful assistant. Answer the question in one short sentence.",
    "A block table maps logical blocks to physical blocks; a shared prefix is stored once.",
    "def fork(parent, child):\n    return {**parent, 'id': child, 'blocks': list(parent['blocks'])}\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 数据块 キャッシュ 🙂",
)


def make_checkpoint(
    path: str | Path,
    family: str = "qwen3",
    *,
    seed: int = 0,
    max_shard_size: str = "5GB",
    tokenizer: bool = True,
    **overrides: Any,
) -> Path:
    """Write a small random checkpoint with `save_pretrained`; returns its folder. Needs transformers (slow to import).

    Weights are drawn wide enough that greedy text varies; norm weights and biases are not left at one and zero.

    Args:
        path: folder to write to, made if need be.
        family: `model_type` of transformers' config.
        max_shard_size: "50KB" makes many shards and an index.
        tokenizer: also write a byte-level BPE tokenizer with a chat template; its size is then the vocabulary's.
        overrides: fields of transformers' config: `hidden_size`, `tie_word_embeddings`, `rope_parameters`, ...
    """
    import torch
    import transformers

    library: Any = transformers  # typed in part only

    folder = Path(path)
    settings: dict[str, Any] = {
        "vocab_size": 384,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "max_position_embeddings": 2048,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    settings.update(overrides)
    if tokenizer:
        settings["vocab_size"] = save_tokenizer(folder, settings["vocab_size"])
    config = library.AutoConfig.for_model(family, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = library.AutoModelForCausalLM.from_config(config)
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            if "norm" in name:
                parameter.data.copy_(1 + 0.2 * noise)
            else:
                gain = 0.3 if name.endswith("bias") else 1.5 * parameter.shape[-1] ** -0.5
                parameter.data.copy_(gain * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.3 * torch.randn(buffer.shape))
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def save_tokenizer(path: str | Path, vocab_size: int) -> int:
    """Train a byte-level BPE on a few sentences and save it as transformers' fast tokenizer. Returns its real size."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special = ["<|bos|>", "<|eos|>", "<|start|>", "<|end|>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(_CORPUS, trainer)
    bpe.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    library: Any = transformers  # typed in part only
    fast = library.PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<|bos|>", eos_token="<|eos|>", clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(path)
    return int(bpe.get_vocab_size())
