"""Requests: what is asked of the engine, and what comes back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypedDict

from framework.errors import InvalidArgument, shown
from framework.interfaces.allocator import Hit
from framework.sampling import Sampling
from framework.types import (
    ROOT_NAMESPACE,
    Hint,
    Namespace,
    RequestId,
    RequestInfo,
    TokenArray,
    as_contents,
    is_unicode,
)

_LARGEST_PRIORITY = 2**31 - 1
_LATEST_S = 1e12


class Status(StrEnum):
    """How a request stands. Each request ends exactly once, in one of the last four."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to the request."""
        return self not in (Status.WAITING, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the model's raw distribution.

    Attributes:
        chosen: of the chosen token.
        top: (token id, log-probability) of the likeliest tokens, likeliest first.
    """

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Completion:
    """One generated sequence: its tokens (a stop token included), why it ended, and its log-probabilities if asked."""

    tokens: list[int]
    finish_reason: str
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    text: str | None = None


class StopWatch(Protocol):
    """Watches one sequence that asked for stop texts."""

    def push(self, token: int) -> bool:
        """Take the next token it generated: whether it ends there."""


MakeStopWatch = Callable[[int, int, tuple[str, ...]], StopWatch]
"""(request number, sample, stop texts) -> what watches that sequence."""


class About(TypedDict, total=False):
    """What a client may say of a request beside its prompt and sampling; see `Request`."""

    namespace: Namespace
    priority: int
    tenant: str
    key: str
    session: str | None
    category: str | None
    hint: Hint | None
    turn: int | None


@dataclass(slots=True, repr=False)
class Request:
    """One prompt and what became of it. Times are seconds on the engine's clock.

    Attributes:
        number: counts submissions; never reused.
        session, category, hint, turn: what the client says of it, see RequestInfo; None when it does not.
        arrival: when it arrived, on the logical clock that policies see; None until then.
        num_cached_tokens: prompt tokens served from the cache when first admitted.
        order: place among those that run, in order of admission, where a plugin orders those that wait; None: its
            number, which is the same order within a priority.
        arrival_step: steps begun before it was let in; None until then.
        num_recomputed_tokens: tokens computed again after preemptions.
        num_spared_tokens: tokens that a restoration found cached though the request had not computed them yet.
        num_loaded_tokens: of `num_cached_tokens`, those that came from tiers below the pool.
        tier_tokens: the same by tier; None where none did.
        load_s: time it waited for blocks from there.
        completions: in sample order, or best beam first; what there was so far of a request that did not finish.
        reason: why it was rejected, failed or cancelled.
    """

    number: int
    prompt: TokenArray
    sampling: Sampling
    arrival_s: float = 0.0
    namespace: Namespace = ROOT_NAMESPACE
    priority: int = 0
    tenant: str = ""
    key: str = ""
    session: str | None = None
    category: str | None = None
    hint: Hint | None = None
    turn: int | None = None
    seed: int = 0
    status: Status = Status.WAITING
    reason: str = ""
    num_cached_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_spared_tokens: int = 0
    num_loaded_tokens: int = 0
    tier_tokens: dict[int, int] | None = None
    load_s: float = 0.0
    num_preemptions: int = 0
    order: int | None = None
    arrival_step: int | None = None
    arrival: float | None = None
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    completions: list[Completion] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    group: BeamGroup | None = None

    def __repr__(self) -> str:
        """One line: what it is and how far it has come."""
        name = f"{self.number}" + (f" {self.key[:40]!r}" if self.key else "")
        new = sum(len(one.tokens) for one in self.completions)
        cached = f"{len(self.prompt)} prompt tokens, {self.num_cached_tokens} of them cached"
        return f"<Request {name}: {self.status.value}, {cached}, {new} generated>"

    @property
    def max_total_tokens(self) -> int:
        """Prompt plus the most tokens it may generate."""
        return len(self.prompt) + self.sampling.max_tokens

    @property
    def width(self) -> int:
        """Sequences that may run side by side: samples or beams."""
        return max(self.sampling.n, self.sampling.beam_width)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens over all completions."""
        return sum(len(completion.tokens) for completion in self.completions)


@dataclass(slots=True, eq=False)
class Sequence:
    """One path of tokens with a block table of its own while it runs.

    Attributes:
        stream: which sample of its request this is; part of its random stream's key.
        tokens: prompt and generated tokens; kept up to date only while it has no row.
        row: its row among the running, or -1.
        forks_due: samples still to be forked off once the prompt is computed.
        committed: tokens that were committed to the allocator.
        finish_reason: why it ended; empty while it goes on.
        watch: watches it for stop texts; None without any.
    """

    id: RequestId
    request: Request
    stream: int
    tokens: TokenArray
    row: int = -1
    forks_due: int = 0
    committed: int = 0
    was_admitted: bool = False
    computed_before: int = 0
    hit: Hit | None = None
    done: bool = False
    finish_reason: str = ""
    watch: StopWatch | None = None
    cumulative_logprob: float = 0.0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    _info: RequestInfo | None = None

    @property
    def info(self) -> RequestInfo:
        """What the allocator may know of it. Made once it has its id."""
        if self._info is None or self._info.id != self.id:
            request = self.request
            self._info = RequestInfo(
                id=self.id,
                max_total_tokens=request.max_total_tokens,
                namespace=request.namespace,
                priority=request.priority,
                tenant=request.tenant,
                session=request.session,
                category=request.category,
                hint=request.hint,
                turn=request.turn,
                arrival=request.arrival,
                prompt_tokens=len(request.prompt),
            )
        return self._info

    @property
    def is_among_beams(self) -> bool:
        """Whether it is one of several live beams, which take their steps together."""
        group = self.request.group
        return group is not None and len(group.live) > 1

    @property
    def generated(self) -> list[int]:
        """Generated tokens, valid while it has no row."""
        tokens: list[int] = self.tokens[len(self.request.prompt) :].tolist()
        return tokens


@dataclass(frozen=True, slots=True)
class Continuation:
    """One way to go on: `token` after beam `parent` (an index into the live beams)."""

    parent: int
    token: int
    logprob: float
    cumulative: float


@dataclass(slots=True, eq=False)
class BeamGroup:
    """The beams of one request. All live beams have equal length and take their steps together.

    Ends when `beam_width` sequences have ended and no live one can still beat the worst of them at its present
    length: the rule of transformers' `early_stopping=False`.
    """

    sampling: Sampling
    live: list[Sequence] = field(default_factory=list)
    ended: list[tuple[float, Completion]] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Beams kept."""
        return self.sampling.beam_width

    @property
    def num_candidates(self) -> int:
        """Likeliest tokens wanted of each beam: twice the width, so that ended ones never starve the live."""
        return 2 * self.width

    def score(self, cumulative: float, num_generated: int) -> float:
        """Log-probability over length to the penalty's power."""
        return cumulative / math.pow(num_generated, self.sampling.length_penalty)

    def rank(self, ids: list[list[int]], logprobs: list[list[float]]) -> list[Continuation]:
        """The best `num_candidates` continuations of all live beams; ties go to the earlier beam, then lower token."""
        ways = [
            Continuation(parent, token, logprob, seq.cumulative_logprob + logprob)
            for parent, (seq, tokens, values) in enumerate(zip(self.live, ids, logprobs, strict=True))
            for token, logprob in zip(tokens, values, strict=True)
        ]
        ways.sort(key=lambda way: (-way.cumulative, way.parent, way.token))
        return ways[: self.num_candidates]

    def split(
        self, ways: list[Continuation], ends: Callable[[int], bool]
    ) -> tuple[list[Continuation], list[Continuation]]:
        """(those that end here, those that live on: at most `width`). Only the best `width` may end."""
        ending = [way for way in ways[: self.width] if ends(way.token)]
        living = [way for way in ways if not ends(way.token)]
        return ending, living[: self.width]

    def end(self, completion: Completion, num_generated: int) -> None:
        """Keep a completed sequence if it is among the best `width`."""
        assert completion.cumulative_logprob is not None
        self.ended.append((self.score(completion.cumulative_logprob, num_generated), completion))
        self.ended.sort(key=lambda entry: -entry[0])
        del self.ended[self.width :]

    def is_done(self, best_cumulative: float, num_generated: int) -> bool:
        """Whether no live beam can still enter the best `width`, judged at its present length."""
        return len(self.ended) >= self.width and self.ended[-1][0] >= self.score(best_cumulative, num_generated)


def derived_seed(run_seed: int, number: int) -> int:
    """A 63-bit seed for request `number` of a run: SplitMix64's finaliser, so that neighbours are unrelated."""
    mask = (1 << 64) - 1
    value = (run_seed * 0x9E3779B97F4A7C15 + (number + 1) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return (value ^ (value >> 31)) >> 1


def require_facts(request: Request) -> None:
    """Raise unless what is asked of a request is of its type and within what arrays, policies and files can hold.

    Raises:
        InvalidArgument: names the first that is not.
    """
    asked, space = request, request.namespace
    at_s: Any = asked.arrival_s
    in_time = isinstance(at_s, (int, float)) and not isinstance(at_s, bool) and abs(at_s) <= _LATEST_S  # NaN is not
    small = type(asked.priority) is int and abs(asked.priority) <= _LARGEST_PRIORITY
    texts = isinstance(space, Namespace) and all(map(is_unicode, (space.model, space.adapter, space.salt)))
    checks: list[tuple[str, Any, bool, str]] = [
        ("sampling", asked.sampling, isinstance(asked.sampling, Sampling), "a Sampling"),
        ("arrival_s", at_s, in_time, f"at most {_LATEST_S:.0f} seconds"),
        ("priority", asked.priority, small, "an integer of 32 bits"),
        ("turn", asked.turn, asked.turn is None or _is_index(asked.turn), "an integer or None"),
        ("hint", asked.hint, asked.hint is None or isinstance(asked.hint, Hint), "a Hint or None"),
        ("key", asked.key, isinstance(asked.key, str), "text"),
        ("category", asked.category, asked.category is None or isinstance(asked.category, str), "text or None"),
        ("tenant", asked.tenant, is_unicode(asked.tenant), "Unicode text"),
        ("session", asked.session, asked.session is None or is_unicode(asked.session), "Unicode text or None"),
        ("namespace", space, texts, "a Namespace of Unicode texts"),
    ]
    for name, value, holds, what in checks:
        if not holds:
            raise InvalidArgument(f"{name} must be {what}, found {shown(value)}")
    if space.contents != () and as_contents(space.contents, len(asked.prompt)) != space.contents:
        raise InvalidArgument(f"namespace.contents must be as `as_contents` gives them, found {shown(space.contents)}")


def _is_index(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)
