"""The embedded model: small, deterministic, byte-level, no download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from framework.errors import ModelError
from framework.model.config import ModelConfig
from framework.model.decoder import Decoder
from framework.model.shard import WHOLE, Shard

BOS, EOS, END_OF_TURN = 256, 257, 258
ROLES = {"system": 259, "user": 260, "assistant": 261, "tool": 262}

TINY_CONFIG = ModelConfig(
    family="qwen3",
    vocab_size=263,
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


class ByteTokenizer:
    """UTF-8 bytes are tokens 0 to 255; bos, eos, end of turn and one marker a role follow.

    Args:
        vocab_size: of the model, when it is larger than what the tokenizer itself uses (263).
        eos_token_ids: give none for random weights that are to generate to the requested length.
    """

    has_text = True

    def __init__(self, vocab_size: int = TINY_CONFIG.vocab_size, eos_token_ids: tuple[int, ...] = (EOS,)):
        if vocab_size < TINY_CONFIG.vocab_size:
            raise ModelError(f"a byte tokenizer needs {TINY_CONFIG.vocab_size} token ids, the model has {vocab_size}")
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids

    def encode(self, text: str) -> list[int]:
        """bos, then the bytes of `text`."""
        return [BOS, *text.encode("utf-8", errors="surrogatepass")]

    def decode(self, ids: Sequence[int]) -> str:
        """The bytes among `ids`; those that are no UTF-8 become U+FFFD."""
        return bytes(token for token in ids if 0 <= token < 256).decode("utf-8", errors="replace")

    def apply_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """bos, then per message its role's marker, its bytes and an end of turn; last the assistant's marker.

        Raises:
            ModelError: a role without a marker.
        """
        ids = [BOS]
        for message in messages:
            role = message.get("role", "")
            if role not in ROLES:
                raise ModelError(f"the tiny model knows no role '{role}'; known: {', '.join(ROLES)}")
            ids += [ROLES[role], *message.get("content", "").encode(), END_OF_TURN]
        return [*ids, ROLES["assistant"]]


def tiny_decoder(
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
    shard: Shard = WHOLE,
) -> Decoder:
    """A decoder of `TINY_CONFIG` with weights from `seed`, drawn in float32 on the CPU whatever dtype and device.

    Made so that greedy text is printable and varied, and so that each token depends on all before it: sharp attention
    (query norms of 3) that outweighs the token's own embedding, so a wrong block of KV shows within a few tokens.
    Only printable bytes and eos can win: the other rows of the head are zero. A shard draws the whole and keeps its
    part.
    """
    decoder = Decoder(TINY_CONFIG, dtype=dtype, device=device, shard=shard)
    shapes = Decoder(TINY_CONFIG, device="meta").state_dict()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        whole = _draw(name.rpartition(".")[2], shapes[name].shape, generator)
        parameter.copy_(shard.cut(name, whole, TINY_CONFIG))
    return decoder


def _draw(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    if name == "qk_norm":
        scale = torch.ones(shape)
        scale[: TINY_CONFIG.num_heads] = 3.0
        return scale
    if name.endswith("norm"):
        return torch.ones(shape)
    values = torch.randn(shape, generator=generator)
    if name == "embedding":
        return values.mul_(0.5)
    if name == "lm_head":
        keep = torch.zeros(len(values), 1)
        keep[[*_PRINTABLE, EOS]] = 4.0 * shape[1] ** -0.5
        return values.mul_(keep)
    gain = 4.0 if name in ("output", "down") else 1.0
    return values.mul_(gain * shape[1] ** -0.5)
