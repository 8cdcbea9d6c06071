"""Models by name: where their weights come from, loading them, and the embedded one that needs no download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from framework.errors import ModelError, OutOfMemory
from framework.model.checkpoint import load_weights
from framework.model.config import ModelConfig
from framework.model.decoder import Decoder
from framework.model.families import read_config
from framework.model.hf_config import find_checkpoint
from framework.model.memory import free_bytes
from framework.model.ranks import Ranks
from framework.model.shape import DTYPES
from framework.model.shapes import SHAPES
from framework.model.shard import WHOLE, Shard
from framework.model.tokenizer import BOS, BYTE_VOCABULARY, EOS, ByteTokenizer, Tokenizer, load_tokenizer

TINY_CONFIG = ModelConfig(
    family="qwen3",
    vocab_size=BYTE_VOCABULARY,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    qk_norm=True,
    max_position_embeddings=131_072,
    bos_token_id=BOS,
    eos_token_ids=(EOS,),
)

_PRINTABLE = range(32, 127)


def _draw_tiny(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """A weight of the tiny model, in float32 on the CPU whatever dtype and device.

    Made so that greedy text is printable and varied, and so that each token depends on all before it: sharp attention
    (query norms of 3) that outweighs the token's own embedding, so a wrong block of KV shows within a few tokens.
    Only printable bytes and eos can win: the other rows of the head are zero.
    """
    if name.endswith("norm"):
        scale = torch.ones(shape)
        if name == "qk_norm":
            scale[: TINY_CONFIG.num_heads] = 3.0
        return scale
    values = torch.randn(shape, generator=generator)
    if name == "embedding":
        return values.mul_(0.5)
    if name == "lm_head":
        keep = torch.zeros(len(values), 1)
        keep[[*_PRINTABLE, EOS]] = 4.0 * shape[1] ** -0.5
        return values.mul_(keep)
    gain = 4.0 if name in ("output", "down") else 1.0
    return values.mul_(gain * shape[1] ** -0.5)


def _draw_weights(decoder: Decoder, seed: int, *, tiny: bool) -> None:
    """Fill with the tiny model's weights, or normal numbers of deviation 0.02 and norms that change nothing.

    A shard draws the whole, tensor by tensor, and keeps its part.
    """
    config, device = decoder.config, torch.device("cpu") if tiny else decoder.device
    generator = torch.Generator(device).manual_seed(seed)
    planned = Decoder(config, device="meta")
    for name, weight in planned.named_parameters():
        whole = torch.empty(weight.shape, dtype=decoder.dtype, device=device)
        if tiny:
            whole = _draw_tiny(name.rpartition(".")[2], weight.shape, generator)
        elif name.endswith("norm"):
            whole.fill_(0.0 if config.norms_plus_one else 1.0)
        else:
            whole.normal_(std=0.02, generator=generator)
        decoder.get_parameter(name).copy_(decoder.shard.cut(whole, planned.division(name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model's weights come from: enough for another process to load its part of the same model.

    Attributes:
        name: as it was asked for.
        folder: of a checkpoint; None: weights are drawn.
        dtype: of the weights in memory; None takes the config's.
        seed: of weights that are drawn. Every rank draws the whole and keeps its part.
    """

    name: str
    config: ModelConfig
    folder: Path | None = None
    dtype: torch.dtype | None = None
    seed: int = 0

    def decoder(self, device: str | torch.device, shard: Shard = WHOLE) -> Decoder:
        """The decoder of one rank's part, with its weights.

        Raises:
            ModelError: weights that do not fit the config, missing or damaged.
            InvalidArgument: a model that does not divide so.
            OutOfMemory: the device has too little for the weights. Nothing was allocated.
        """
        self._require_memory(device, shard)
        decoder = Decoder(self.config, dtype=self.dtype, device=device, shard=shard)
        if self.folder is None:
            _draw_weights(decoder, self.seed, tiny=self.name == "tiny")
        else:
            load_weights(decoder, self.folder)
        return decoder

    def _require_memory(self, device: str | torch.device, shard: Shard) -> None:
        if torch.device(device).type not in ("cpu", "cuda"):
            return
        planned = Decoder(self.config, dtype=self.dtype, device="meta", shard=shard)
        asked, free = sum(weight.nbytes for weight in planned.parameters()), free_bytes(device)
        if asked > free:
            name = str(planned.dtype).removeprefix("torch.")
            raise OutOfMemory(
                f"the weights of '{self.name}' in {name} take {asked:,} bytes ({asked / 2**30:.1f} GiB), and {free:,} "
                f"({free / 2**30:.1f} GiB) are free on {device}; take a smaller dtype or model, or more ranks"
            )


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder with the tokenizer and the name that go with it.

    Attributes:
        decoder: the whole model, or rank 0's part of it.
        name: as it was asked for; part of the namespace under which KV is shared.
        ranks: the processes that hold the other parts; None when there are none.
    """

    decoder: Decoder
    tokenizer: Tokenizer
    config: ModelConfig
    name: str
    ranks: Ranks | None = None

    def close(self) -> None:
        """End the processes of the other ranks, if there are any. Idempotent."""
        if self.ranks is not None:
            self.ranks.close()


def load_model(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
    tensor_parallel_size: int = 1,
    change: Callable[[ModelConfig], ModelConfig] | None = None,
) -> LoadedModel:
    """A model by name: "tiny", a local folder with a Hugging Face checkpoint, or a hub id ("Qwen/Qwen3-0.6B").

    Args:
        dtype: of the weights in memory; None or "auto" takes the checkpoint's own (float32 for "tiny").
        seed: of the tiny model's weights; a checkpoint has none to draw.
        tensor_parallel_size: ranks that the model is divided over, each a process and, on CUDA, a device. Close such a
            model when done.
        change: makes the config that is served of the one in a checkpoint's folder; None: that one.

    Raises:
        ModelError: nothing there, offline, an unsupported family or feature, or weights that do not fit the config.
        InvalidArgument, ConfigError: the model does not divide so, or there are too few devices. Nothing was loaded.
        RankError: another rank failed.
    """
    if str(name_or_path) == "tiny":
        source = ModelSource(name="tiny", config=TINY_CONFIG, dtype=as_dtype(dtype), seed=seed)
        return _load(source, ByteTokenizer(), device, tensor_parallel_size)
    folder = find_checkpoint(name_or_path)
    config = read_config(folder) if change is None else change(read_config(folder))
    source = ModelSource(name=str(name_or_path), config=config, folder=folder.absolute(), dtype=as_dtype(dtype))
    return _load(source, load_tokenizer(folder, config), device, tensor_parallel_size)


def _load(source: ModelSource, tokenizer: Tokenizer, device: str | torch.device, num_ranks: int) -> LoadedModel:
    if num_ranks == 1:
        return LoadedModel(source.decoder(device), tokenizer, source.config, source.name)
    ranks = Ranks(source.decoder, source.config, num_ranks, str(device))
    return LoadedModel(ranks.decoder, tokenizer, source.config, source.name, ranks)


def read_model_config(name_or_path: str | Path) -> ModelConfig:
    """The shape of the model that `load_model` would load, without its weights. A hub id's files are fetched.

    Raises:
        ModelError: nothing there, offline, or an unsupported family or feature.
    """
    if str(name_or_path) == "tiny":
        return TINY_CONFIG
    return read_config(find_checkpoint(name_or_path))


def random_model(
    shape: str | ModelConfig,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
    tensor_parallel_size: int = 1,
) -> LoadedModel:
    """A model of a known shape with random weights: for speed, not for sense. Needs no download.

    Its byte tokenizer has no end of text, so every request runs to its `max_tokens`.

    Args:
        shape: a name in `framework.model.shapes.SHAPES`, or a config with a vocabulary of at least 263.
        seed: equal seeds give equal weights on one kind of device, however many ranks there are.
        tensor_parallel_size: see `load_model`.

    Raises:
        ModelError: no shape of that name.
        InvalidArgument, ConfigError, RankError: see `load_model`.
    """
    if isinstance(shape, str) and shape not in SHAPES:
        raise ModelError(f"no model shape '{shape}'; known: {', '.join(SHAPES)}")
    config, name = (SHAPES[shape], shape) if isinstance(shape, str) else (shape, f"random-{shape.family}")
    tokenizer = ByteTokenizer(config.vocab_size, eos_token_ids=())
    source = ModelSource(name=name, config=config, dtype=as_dtype(dtype), seed=seed)
    return _load(source, tokenizer, device, tensor_parallel_size)


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
    resolved: torch.dtype = getattr(torch, dtype)
    return resolved


def fingerprint(decoder: Decoder) -> str:
    """A text that is equal for equal weights and shape, whose K and V of equal tokens are equal. Reads every weight."""
    import xxhash  # not where only torch and NumPy are installed, as on a GPU machine without a network

    digest = xxhash.xxh3_128(repr(decoder.config).encode())
    for name, weight in decoder.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        data = weight.detach().cpu().contiguous().reshape(-1)
        digest.update(data.view(torch.uint8).numpy().data)
    return digest.hexdigest()
