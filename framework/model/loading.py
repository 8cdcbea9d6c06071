"""Which model is meant by a name, and what does it take to run it?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from framework.errors import ModelError
from framework.model.config import DTYPES, ModelConfig
from framework.model.decoder import Decoder
from framework.model.shapes import SHAPES
from framework.model.tiny import TINY_CONFIG, ByteTokenizer, tiny_decoder
from framework.model.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder with the tokenizer and the name that go with it.

    Attributes:
        name: as it was asked for; part of the namespace under which KV is shared.
    """

    decoder: Decoder
    tokenizer: Tokenizer
    config: ModelConfig
    name: str


def load_model(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> LoadedModel:
    """A model by name: "tiny", a local folder with a Hugging Face checkpoint, or a hub id ("Qwen/Qwen3-0.6B").

    Args:
        dtype: of the weights in memory; None or "auto" takes the checkpoint's own (float32 for "tiny").
        seed: of the tiny model's weights; a checkpoint has none to draw.

    Raises:
        ModelError: nothing there, offline, an unsupported family or feature, or weights that do not fit the config.
    """
    if str(name_or_path) == "tiny":
        decoder = tiny_decoder(dtype=as_dtype(dtype), device=device, seed=seed)
        return LoadedModel(decoder, ByteTokenizer(), TINY_CONFIG, "tiny")
    from framework.model.checkpoint import find_checkpoint, load_weights, read_config
    from framework.model.tokenizer import load_tokenizer

    folder = find_checkpoint(name_or_path)
    config = read_config(folder)
    tokenizer = load_tokenizer(folder, config)
    decoder = Decoder(config, dtype=as_dtype(dtype), device=device)
    load_weights(decoder, folder)
    return LoadedModel(decoder, tokenizer, config, str(name_or_path))


def read_model_config(name_or_path: str | Path) -> ModelConfig:
    """The shape of the model that `load_model` would load, without its weights. A hub id's files are fetched.

    Raises:
        ModelError: nothing there, offline, or an unsupported family or feature.
    """
    if str(name_or_path) == "tiny":
        return TINY_CONFIG
    from framework.model.checkpoint import find_checkpoint, read_config

    return read_config(find_checkpoint(name_or_path))


def random_model(
    shape: str | ModelConfig,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> LoadedModel:
    """A model of a known shape with random weights: for speed, not for sense. Needs no download.

    Its byte tokenizer has no end of text, so every request runs to its `max_tokens`.

    Args:
        shape: a name in `framework.model.shapes.SHAPES`, or a config with a vocabulary of at least 263.
        seed: equal seeds give equal weights on one kind of device.

    Raises:
        ModelError: no shape of that name.
    """
    if isinstance(shape, str) and shape not in SHAPES:
        raise ModelError(f"no model shape '{shape}'; known: {', '.join(SHAPES)}")
    config, name = (SHAPES[shape], shape) if isinstance(shape, str) else (shape, f"random-{shape.family}")
    tokenizer = ByteTokenizer(config.vocab_size, eos_token_ids=())
    decoder = Decoder(config, dtype=as_dtype(dtype), device=device)
    generator = torch.Generator(decoder.device).manual_seed(seed)
    for key, parameter in decoder.named_parameters():
        if key.endswith("norm"):
            parameter.fill_(1.0)
        else:
            parameter.normal_(std=0.02, generator=generator)
    return LoadedModel(decoder, tokenizer, config, name)


def as_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """A torch dtype by its name; None and "auto" stay None: the checkpoint's own.

    Raises:
        ModelError: a name that is no supported dtype.
    """
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return None
    if dtype not in DTYPES:
        raise ModelError(f"no model dtype '{dtype}'; supported: auto, {', '.join(DTYPES)}")
    found: torch.dtype = getattr(torch, dtype)
    return found
