"""How the tokens of one request are chosen, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from framework.errors import InvalidArgument, shown

_INT32, _INT64 = 2**31, 2**63
_MAX_TEMPERATURE, _MAX_PENALTY = 1e6, 16.0
_MAX_STOPS, _MAX_STOP_CHARACTERS = 64, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Decoding parameters of one request.

    Attributes:
        max_tokens: most tokens to generate, at least 1 and below 2**31.
        temperature: 0 is greedy (ties go to the lowest id); else logits are divided by it, at most 1e6.
        top_k: keep the k likeliest tokens; 0 keeps all, and so does any k from the vocabulary's size up to 2**31 - 1.
        top_p: then keep the smallest set of likeliest tokens whose probability reaches p, in (0, 1].
        seed: of the request's own random stream; None takes one from the run's seed and the request's number. The
            draw depends only on (seed, sample index, position), never on the batch.
        n: samples of one prompt, forked after its prefill.
        beam_width: above 1, beam search instead of sampling: the `beam_width` likeliest sequences are returned.
        length_penalty: beams are ranked by log-probability / length ** length_penalty; -16 to 16.
        stop: texts that end a sequence as soon as they are generated, wherever their tokens begin and end; a single
            text may be given as such. The tokens are kept, the text ends before the stop. Not with beam search.
        stop_token_ids: ends a sequence, beside the tokenizer's end of text; kept as its last token.
        ignore_eos: do not stop at the tokenizer's end of text.
        logprobs: None for none; k reports the chosen token's log-probability and the k likeliest at each position.

    Raises:
        InvalidArgument: a value of another type or out of range; names the field.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    n: int = 1
    beam_width: int = 1
    length_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, (default, holds, rule) in _RULES.items():
            given = getattr(self, name)
            if given is default:
                continue
            value = given if type(given) in (int, float) else _plain(name, given)
            if not holds(value):
                raise InvalidArgument(f"sampling.{name} must be {rule}, found {shown(value)}")
            if value is not given:
                object.__setattr__(self, name, value)
        if self.beam_width > 1 and self.n > 1:
            raise InvalidArgument(
                f"sampling.n must be 1 with beam search, found {self.n}; beam_width says how many are returned"
            )
        if self.beam_width > 1 and self.stop:
            raise InvalidArgument("sampling.stop cannot be with beam search; use stop_token_ids")


def _plain(name: str, value: Any) -> Any:
    """A NumPy number as Python's, a list as a tuple, and a single stop as one of several."""
    if name == "stop" and isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        return tuple(_plain("", entry) for entry in value)
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def is_integer(value: Any) -> bool:
    """Whether it is an int; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(low: int, high: int, *, none: bool = False) -> Callable[[Any], bool]:
    return lambda value: (none and value is None) or (is_integer(value) and low <= value <= high)


def _number(low: float, high: float, *, above: bool = False) -> Callable[[Any], bool]:
    """Compared as it is: an integer too large for a float is out of range, not an error."""

    def holds(value: Any) -> bool:
        if not (isinstance(value, float) or is_integer(value)) or (isinstance(value, float) and math.isnan(value)):
            return False
        return bool((low < value if above else low <= value) and value <= high)

    return holds


def _are_stops(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) <= _MAX_STOPS
        and all(isinstance(text, str) and 0 < len(text) <= _MAX_STOP_CHARACTERS for text in value)
    )


def _are_tokens(value: Any) -> bool:
    return isinstance(value, tuple) and all(is_integer(token) and 0 <= token < _INT32 for token in value)


_RULES: dict[str, tuple[Any, Callable[[Any], bool], str]] = {
    "max_tokens": (64, _integer(1, _INT32 - 1), "an integer, at least 1 and below 2**31"),
    "temperature": (0.0, _number(0, _MAX_TEMPERATURE), f"a number, at least 0 and at most {_MAX_TEMPERATURE:.0f}"),
    "top_k": (0, _integer(0, _INT32 - 1), "an integer, at least 0 (0 keeps all) and below 2**31"),
    "top_p": (1.0, _number(0, 1, above=True), "a number, above 0 and at most 1"),
    "seed": (None, _integer(0, _INT64 - 1, none=True), "None or an integer, 0 to 2**63 - 1"),
    "n": (1, _integer(1, _INT32 - 1), "an integer, at least 1 and below 2**31"),
    "beam_width": (1, _integer(1, _INT32 - 1), "an integer, at least 1 and below 2**31"),
    "length_penalty": (1.0, _number(-_MAX_PENALTY, _MAX_PENALTY), f"a number, {-_MAX_PENALTY:g} to {_MAX_PENALTY:g}"),
    "stop": ((), _are_stops, f"at most {_MAX_STOPS} texts of 1 to {_MAX_STOP_CHARACTERS} characters"),
    "stop_token_ids": ((), _are_tokens, "token ids, 0 to 2**31 - 1"),
    "ignore_eos": (False, lambda value: isinstance(value, bool), "true or false"),
    "logprobs": (None, _integer(0, 1024, none=True), "None or an integer, 0 to 1024"),
}
"""Each field's rule: a value known to be good, the test of any other, and the rule in words."""
