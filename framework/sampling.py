"""How the tokens of one request are chosen, and when it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from framework.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Decoding parameters of one request.

    Attributes:
        max_tokens: most tokens to generate, at least 1.
        temperature: 0 is greedy (ties go to the lowest id); else logits are divided by it.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: then keep the smallest set of likeliest tokens whose probability reaches p, in (0, 1].
        seed: of the request's own random stream; None takes one from the run's seed and the request's number. The
            draw depends only on (seed, sample index, position), never on the batch.
        n: samples of one prompt, forked after its prefill.
        beam_width: above 1, beam search instead of sampling: the `beam_width` likeliest sequences are returned.
        length_penalty: beams are ranked by log-probability / length ** length_penalty.
        stop_token_ids: ends a sequence, beside the tokenizer's end of text; kept as its last token.
        ignore_eos: do not stop at the tokenizer's end of text.
        logprobs: None for none; k reports the chosen token's log-probability and the k likeliest at each position.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    n: int = 1
    beam_width: int = 1
    length_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        def need(ok: bool, name: str, rule: str) -> None:
            if not ok:
                raise InvalidArgument(f"sampling.{name} must be {rule}, found {getattr(self, name)!r}")

        for name in ("max_tokens", "top_k", "n", "beam_width"):
            value = getattr(self, name)
            need(isinstance(value, int) and not isinstance(value, bool), name, "an integer")
        need(self.max_tokens >= 1, "max_tokens", "at least 1")
        need(math.isfinite(self.temperature) and self.temperature >= 0, "temperature", "finite and at least 0")
        need(self.top_k >= 0, "top_k", "at least 0 (0 keeps all)")
        need(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        need(self.n >= 1, "n", "at least 1")
        need(self.beam_width >= 1, "beam_width", "at least 1")
        need(self.beam_width == 1 or self.n == 1, "n", "1 with beam search; beam_width says how many are returned")
        need(math.isfinite(self.length_penalty), "length_penalty", "finite")
        need(self.logprobs is None or 0 <= self.logprobs <= 1024, "logprobs", "None or 0 to 1024")
        need(self.seed is None or 0 <= self.seed < 2**63, "seed", "None or 0 to 2**63 - 1")
        need(all(0 <= token < 2**31 for token in self.stop_token_ids), "stop_token_ids", "token ids")
