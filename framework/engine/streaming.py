"""The tokens of one request as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from framework.engine.engine import Engine
from framework.engine.request import Completion, Request, Sequence, Status
from framework.engine.text import Decode, TextStream, num_certain
from framework.errors import FrameworkError, RequestFailed


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
        self.index, self.num_tokens, self.ended = index, 0, False
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
        self.ended = True
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
        for seq in sorted(self.request.sequences, key=lambda seq: seq.stream):
            found = self._sample(seq.stream).take(self._generated(seq))
            if found is not None:
                self._ready.append(found)

    def _generated(self, seq: Sequence) -> list[int]:
        if seq.row < 0:
            return seq.generated
        rows, start = self._engine.state.rows, len(self.request.prompt)
        tokens: list[int] = rows.tokens[seq.row, start : int(rows.length[seq.row])].tolist()
        return tokens

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
