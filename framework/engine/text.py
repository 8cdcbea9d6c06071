"""Generated tokens as text, one token at a time: stop texts and streaming."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framework.engine.request import Request

Decode = Callable[[Sequence[int]], str]
"""Token ids -> text; bytes that are no UTF-8 become U+FFFD."""

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """The text of one sequence as its tokens come; what is not yet a whole character waits.

    A tokenizer may write a token differently after another one, so each new token is decoded together with those that
    made the last piece of text, and only what is new is taken.

    Source: `detokenize_incrementally` in vLLM, after text-generation-inference.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []  # those that `_before` and the pending text stem from
        self._num_before = 0
        self.pending = ""

    def push(self, token: int) -> str:
        """Take one token; returns the text that is now certain, perhaps none. `pending` is the rest."""
        self._tokens.append(token)
        before = self._decode(self._tokens[: self._num_before])
        new = self._decode(self._tokens)[len(before) :]
        if not new or new.endswith(_UNFINISHED):
            self.pending = new
            return ""
        del self._tokens[: self._num_before]
        self._num_before = len(self._tokens)
        self.pending = ""
        return new


class StopTexts:
    """A StopWatch that decodes: whether the text of one sequence holds one of its stops, after each token."""

    def __init__(self, decode: Decode, stops: Sequence[str]) -> None:
        self._stream, self._stops = TextStream(decode), stops
        self._keep = max(map(len, stops)) - 1
        self._tail = ""

    def push(self, token: int) -> bool:
        """Take one token. Whole characters count, even behind ones that are not whole yet."""
        text = self._tail + self._stream.push(token)
        seen = text + self._stream.pending.rstrip(_UNFINISHED)
        self._tail = text[-self._keep :] if self._keep else ""
        return any(stop in seen for stop in self._stops)


class RecordedEnd:
    """Stop texts of a recording, which a replay cannot decode: the sequence ends where the recorded one did.

    Args:
        num_tokens: that the recorded one generated; None if it was not recorded.
    """

    def __init__(self, num_tokens: int | None) -> None:
        self._left = num_tokens

    def push(self, token: int) -> bool:
        """See StopWatch."""
        if self._left is not None:
            self._left -= 1
        return self._left == 0


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first place where one of `stops` begins; all of it where none does."""
    places = [place for place in map(text.find, stops) if place >= 0]
    return text[: min(places)] if places else text


def num_certain(text: str, stops: Sequence[str]) -> int:
    """How many leading characters of `text` are sure to be part of the answer: a stop may have begun behind them."""
    for start in range(max(0, len(text) - max(map(len, stops), default=1) + 1), len(text)):
        if any(stop.startswith(text[start:]) for stop in stops):
            return start
    return len(text)


def add_texts(requests: Sequence[Request], decode: Decode, eos: Sequence[int]) -> None:
    """Decode the completions of `requests`, without their stop token, up to their stop text."""
    for request in requests:
        ends = {*eos, *request.sampling.stop_token_ids}
        for completion in request.completions:
            tokens = completion.tokens
            cut = tokens[:-1] if completion.finish_reason == "stop" and tokens[-1] in ends else tokens
            completion.text = cut_at_stop(decode(cut), request.sampling.stop)
