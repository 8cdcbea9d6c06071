"""Generated tokens as text, one token at a time, and the stream of one request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from framework.engine.engine import Engine
from framework.engine.request import Completion, Request, Status
from framework.errors import FrameworkError, RequestFailed

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
    starts = range(max(0, len(text) - max(map(len, stops), default=1) + 1), len(text))
    return next((start for start in starts if any(stop.startswith(text[start:]) for stop in stops)), len(text))


def add_texts(requests: Sequence[Request], decode: Decode, eos: Sequence[int]) -> None:
    """Decode the completions of `requests`, without their stop token, up to their stop text."""
    for request in requests:
        ends = {*eos, *request.sampling.stop_token_ids}
        for completion in request.completions:
            tokens = completion.tokens
            cut = tokens[:-1] if completion.finish_reason == "stop" and tokens[-1] in ends else tokens
            completion.text = cut_at_stop(decode(cut), request.sampling.stop)


@dataclass(frozen=True, slots=True)
class Increment:
    """What was added to one sample of a streamed request.

    Attributes:
        index: of the sample.
        tokens: generated since the last increment of this sample; its stop token included.
        text: since the last increment: whole characters that no stop text can take back. Empty without a tokenizer.
        finish_reason: of a sample's last increment: "stop" or "length", or "aborted" if the request was cancelled.
    """

    index: int
    tokens: tuple[int, ...]
    text: str
    finish_reason: str | None = None


class _Sample:
    """How much of one sample has been handed out."""

    def __init__(self, index: int, decode: Decode | None, stops: tuple[str, ...]) -> None:
        self.index, self.num_tokens = index, 0
        self._stream, self._stops = TextStream(decode) if decode else None, stops
        self._sent = self._held = ""

    def take(self, tokens: list[int]) -> Increment | None:
        new = tokens[self.num_tokens :]
        if not new:
            return None
        self.num_tokens = len(tokens)
        if self._stream is not None:
            self._held += "".join([self._stream.push(token) for token in new])
        sure = num_certain(self._held, self._stops)
        text, self._held = self._held[:sure], self._held[sure:]
        self._sent += text
        return Increment(self.index, tuple(new), text)

    def end(self, completion: Completion) -> Increment:
        new, text = completion.tokens[self.num_tokens :], completion.text or ""
        return Increment(self.index, tuple(new), text[len(self._sent) :], completion.finish_reason)


class RequestStream:
    """Iterates over the increments of one request and steps the engine when there is none; others get on meanwhile.

    Ends with the request. Leave it early with `close`, or use it in a `with`: the request is then cancelled. The texts
    of a sample's increments, joined, are its completion's text; so are the tokens.

    Args:
        decode: token ids to text; None for a model without a tokenizer.
        add_texts: writes the texts of a request that has ended into its completions.

    Raises:
        RequestFailed: while iterating, if the request fails.
    """

    def __init__(
        self, engine: Engine, request: Request, decode: Decode | None, add_texts: Callable[[list[Request]], None]
    ) -> None:
        self.request = request
        self._engine, self._decode, self._add_texts = engine, decode, add_texts
        self._samples: dict[int, _Sample] = {}
        self._ready: deque[Increment] = deque()
        self._done = False

    def __iter__(self) -> RequestStream:
        return self

    def __next__(self) -> Increment:
        while not self._ready:
            if self._done:
                raise StopIteration
            if self.request.status.ended:
                self._finish()
                continue
            self._engine.step()
            if not self.request.status.ended:
                self._collect()
        return self._ready.popleft()

    def close(self) -> None:
        """Cancel the request, unless it has ended. Idempotent."""
        self._done = True
        self._ready.clear()
        if not self.request.status.ended and not self._engine.interrupted:
            self._engine.cancel(self.request, "its stream was closed")

    def __enter__(self) -> RequestStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sample(self, index: int) -> _Sample:
        if index not in self._samples:
            self._samples[index] = _Sample(index, self._decode, self.request.sampling.stop)
        return self._samples[index]

    def _collect(self) -> None:
        rows = self._engine.state.rows
        for seq in sorted(self.request.sequences, key=lambda seq: seq.stream):
            text = self._sample(seq.stream).take(seq.generated if seq.row < 0 else rows.generated(seq).tolist())
            if text is not None:
                self._ready.append(text)

    def _finish(self) -> None:
        self._done = True
        if self.request.status in (Status.FAILED, Status.REJECTED):
            raise RequestFailed(f"request {self.request.number} {self.request.status.value}: {self.request.reason}")
        self._add_texts([self.request])
        for index, completion in enumerate(self.request.completions):
            self._ready.append(self._sample(index).end(completion))


def abandon(engine: Engine, requests: list[Request]) -> None:
    """Cancel those of `requests` that have not ended: whoever asked for them is gone. Raises nothing."""
    for request in requests:
        if engine.interrupted:
            return  # a reset ends them all
        try:
            engine.cancel(request, "the call that asked for it was left early")
        except FrameworkError:
            return
