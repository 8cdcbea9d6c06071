"""Workloads: where the requests of a run come from, and the one request type of all of them."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from framework.errors import InvalidArgument
from framework.sampling import Sampling
from framework.types import ROOT_NAMESPACE, Hint, Namespace, TokenArray, as_tokens

__all__ = [
    "Answer", "BlockIdArray", "Candidates", "Hint", "Message", "Namespace", "Recording", "Sampling", "Workload",
    "WorkloadRequest", "answer", "name_blocks",
]  # fmt: skip

Message = dict[str, Any]
"""One turn of a chat: `role` and `content`, both text, and where it has them `tool_calls`, `tool_call_id` and `name`,
for the tokenizer's chat template."""

BlockIdArray = npt.NDArray[np.int64]
"""(n,) int64 names of a prompt's blocks, in order. What a name means is up to its trace: see WorkloadRequest."""

Candidates = tuple[list[list[int]], list[list[float]]]
"""The likeliest tokens of each beam of a step, and their log-probabilities."""

_DEFAULTS = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkloadRequest:
    """What to ask, and when: one prompt, how to answer it, and what is known of who asks.

    The prompt is given in one of four ways: as `prompt` (text, chat messages or token ids), as `block_ids` (names of
    its blocks, where a trace hides the content), or as `input_tokens` alone (a length, nothing to share).

    Attributes:
        prompt: text, (n,) int32 token ids, or the messages of a chat; None where only block ids or a length are known.
            Token ids become one read-only array here and are handed on as they are.
        input_tokens: of the prompt; 0 for text, whose length its tokenizer decides.
        block_ids: (n,) int64, one a block of `block_tokens` tokens, the last may be partial. Two requests share block
            i when their ids 0 to i are equal and their namespaces are equal. Equal ids are equal content, of other
            namespaces too: `framework_workloads.trace.format.ScopedIds` is for traces that count ids anew in a session.
            None where the content is not named so.
        block_tokens: tokens a block; 0 without block ids.
        output: (m,) int32, the recorded answer; a full replay generates it again. None: unknown.
        output_tokens: its length; None: unknown.
        sampling: how to answer, and `max_tokens` at most.
        arrival_s: seconds after the start, finite, at least 0; a replay needs requests in order of arrival. Of one that
            comes after others: when it was sent as recorded, which a closed loop does not look at.
        after: keys of the requests whose answers it waits for, each of the same workload; an open loop does not wait.
        delay_s: seconds from the last of these answers until it is sent: a user's thinking, a tool's run.
        not_before_s: it is sent no earlier, however early those answers are there.
        namespace: only requests of one namespace share cached blocks.
        priority: larger is more important.
        tenant: who asks, for policies that share a cache fairly; "" for unknown.
        session: conversation or agent run, in order of arrival; None: unknown.
        turn: number of the request within its session, from 0; None: unknown.
        category: kind of request as its source tells kinds apart, such as "text" or "tool_result"; None: unknown.
        hint: what the caller foretells of its session; None: nothing.
        key: names the request in logs and results; unique within its workload.

    Raises:
        InvalidArgument: no prompt, an empty one, a length below 1, a time that is negative or not finite, or an `after`
            that is no tuple of texts.
        InvalidTokens: token ids that are none.
    """

    prompt: str | TokenArray | tuple[Message, ...] | None = None
    input_tokens: int = 0
    block_ids: BlockIdArray | None = None
    block_tokens: int = 0
    output: TokenArray | None = None
    output_tokens: int | None = None
    sampling: Sampling = _DEFAULTS
    arrival_s: float = 0.0
    after: tuple[str, ...] = ()
    delay_s: float = 0.0
    not_before_s: float = 0.0
    namespace: Namespace = ROOT_NAMESPACE
    priority: int = 0
    tenant: str = ""
    session: str | None = None
    turn: int | None = None
    category: str | None = None
    hint: Hint | None = None
    key: str = ""

    def __post_init__(self) -> None:
        if self.prompt is None and self.input_tokens < 1:
            raise InvalidArgument(f"a prompt must hold at least one token, found input_tokens={self.input_tokens}")
        if self.prompt is not None and not isinstance(self.prompt, (str, tuple)):
            self._hold_tokens(self.prompt)
        if self.prompt is not None and not len(self.prompt):
            raise InvalidArgument("a prompt must hold at least one token, found an empty one")
        if self.output is not None and self.output_tokens is None:
            object.__setattr__(self, "output_tokens", len(self.output))
        for name in ("arrival_s", "delay_s", "not_before_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name} must be finite and at least 0, found {getattr(self, name)!r}")
        if self.after and not (isinstance(self.after, tuple) and all(type(key) is str and key for key in self.after)):
            raise InvalidArgument(f"after must be a tuple of the keys of other requests, found {self.after!r}")

    def _hold_tokens(self, prompt: Any) -> None:
        """Keep token ids as one array that nobody can write to: a copy, unless they are such an array already."""
        tokens = as_tokens(prompt)
        if tokens.flags.writeable:
            tokens = tokens.copy()
            tokens.flags.writeable = False
        object.__setattr__(self, "prompt", tokens)
        object.__setattr__(self, "input_tokens", len(tokens))

    @property
    def tokens(self) -> TokenArray | None:
        """(n,) int32 token ids of the prompt, where it was given so."""
        return self.prompt if isinstance(self.prompt, np.ndarray) else None

    @property
    def num_full_blocks(self) -> int:
        """Named blocks that the prompt fills to the last token."""
        if self.block_ids is None:
            return 0
        return min(len(self.block_ids), self.input_tokens // self.block_tokens)

    @property
    def max_total_tokens(self) -> int:
        """Prompt plus the most tokens that may be generated."""
        return self.input_tokens + self.sampling.max_tokens

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkloadRequest):
            return NotImplemented
        return _plain(self) == _plain(other)

    __hash__ = None  # type: ignore[assignment]


def _plain(request: WorkloadRequest) -> list[object]:
    """The fields as values that compare by content."""
    values = (getattr(request, one.name) for one in fields(request))
    return [(value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value for value in values]


class Answer(NamedTuple):
    """What a model answered: a text for each sample, none where the request failed."""

    request: WorkloadRequest
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """A serve run that can be replayed without its model: it makes the same decisions.

    Attributes:
        eos_token_ids: ended their sequences.
        max_model_len: longest sequence the engine took, tokens: what allocators that reserve reserve.
        window: of all layers of the model, tokens; None where a layer has none.
        requests: in order of submission. Arrivals are step numbers, and `sampling.seed` is the one that was drawn.
        outputs: (place in `requests`, sample) -> the tokens it generated. A replay numbers requests by their places;
            the run numbered those too that it refused, which are left out.
        tops: (place in `requests`, call) -> candidates of its beam search.
    """

    eos_token_ids: tuple[int, ...]
    max_model_len: int
    window: int | None
    requests: list[WorkloadRequest] = field(default_factory=list)
    outputs: dict[tuple[int, int], TokenArray] = field(default_factory=dict)
    tops: dict[tuple[int, int], Candidates] = field(default_factory=dict)


class Workload(ABC):
    """Requests to serve or to replay. Constructor keywords are the options, with their defaults; `seed` is the run's.

    A constructor checks its options and reads nothing; `requests` reads or draws.
    """

    @abstractmethod
    def requests(self) -> Iterator[WorkloadRequest]:
        """Every request, in order of submission. Each call begins anew and yields the same, in any process.

        Raises:
            WorkloadError: a source that cannot be read, naming file, line and field.
        """

    def in_steps(self) -> bool:
        """Whether arrivals count steps of the engine that was recorded, instead of seconds."""
        return False

    def recording(self) -> Recording | None:
        """The serve run that these requests were recorded from, where they are `in_steps`; None: nobody knows it."""
        return None

    def facts(self) -> Mapping[str, Any]:
        """What a run's result should hold of this workload, once the requests were drawn: names to texts and finite
        numbers, each kept as `workload_<name>`."""
        return {}

    def judge(self, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """What a result should hold of the answers, where a workload knows what is right: as `facts`. Asked once, at
        the end of a serve run that has answered every request, in order of submission."""
        return {}


def name_blocks(tokens: TokenArray, block_tokens: int, namespace: Namespace = ROOT_NAMESPACE) -> BlockIdArray:
    """(ceil(n / block_tokens),) int64: a name a block that covers its whole prefix, the partial last one included.

    The contents of the namespace are mixed into those that they touch, and nothing else of it.
    62 bits of a chained BLAKE2b: among a million blocks two different ones share a name with probability 1e-7.
    """
    data = np.ascontiguousarray(tokens, dtype="<i4").tobytes()
    step, name, names = 4 * block_tokens, b"", []
    for start in range(0, len(data), step):
        if there := namespace.contents and namespace.within(start // 4, start // 4 + block_tokens):
            what = Namespace(contents=there).encode()
            name = hashlib.blake2b(name + what, digest_size=8, person=b"contents").digest()
        name = hashlib.blake2b(name + data[start : start + step], digest_size=8).digest()
        names.append(int.from_bytes(name, "little") >> 2)
    return np.array(names, dtype=np.int64)


def answer(output_tokens: int, n: int = 1, beam_width: int = 1) -> Sampling:
    """How a trace's request is answered: with exactly as many tokens as recorded, at least one."""
    return Sampling(max_tokens=max(1, output_tokens), n=n, beam_width=beam_width, ignore_eos=True)
