"""Seeded workloads: chats over shared system prompts, one shared prefix, and nothing shared at all.

Every generator draws from its own `random.Random`, seeded by its name and the run's seed, so that the same seed makes
the same requests in any process and under any PYTHONHASHSEED.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count
from typing import ClassVar

import numpy as np

from framework.interfaces.workload import Sampling, Workload, WorkloadRequest
from framework.types import TokenArray
from framework_workloads.draws import MOST, within

_WORDS = (
    "cache", "block", "page", "table", "prefix", "token", "query", "layer", "model", "batch", "prompt",
    "answer", "memory", "shared", "copy", "write", "free", "hash", "tree", "root", "child", "parent", "order",
    "policy", "trace", "engine", "step", "queue", "user", "system", "agent", "tool", "search", "result", "plan",
    "check", "please", "compare", "explain", "summarise", "the", "a", "of", "in", "with", "for", "and", "that",
    "which", "when", "how", "why", "each", "every", "other", "first", "last", "short", "long", "recent",
    "frequent", "cold", "warm", "local", "global", "exact", "careful", "clear", "useful",
)  # fmt: skip


@dataclass(kw_only=True)
class Chat(Workload):
    """Conversations over a few shared system prompts; some ask for several samples, some for beam search.

    A conversation's later turns repeat its earlier ones, so that a prefix cache can serve the system prompt to
    everybody and the history to its own conversation. All first turns come before all second ones, and so on.

    Args:
        seed: of all that is drawn.
        num_requests: prompts in all, over all turns.
        num_prefixes: distinct system prompts, given to conversations in turn.
        prefix_tokens: length of a system prompt in bytes, which is tokens under `model=tiny`; fewer under others.
        suffix_tokens: mean length of a user's message in bytes; each is drawn from half to one and a half of it.
        turns: of one conversation.
        output_tokens: generated per request, at most.
        temperature: of plain requests; 0 is greedy.
        parallel_share: share of requests that ask for 2 to `parallel_n` samples, at `parallel_temperature`.
        num_beam: further requests, evenly spread, that use beam search of `beam_width`; null: 2, or as many
            as there are.
        rate_per_s: Poisson arrivals; 0 means all at once.
    """

    name: ClassVar[str] = "chat"

    seed: int = 0
    num_requests: int = 48
    num_prefixes: int = 4
    prefix_tokens: int = 192
    suffix_tokens: int = 40
    turns: int = 2
    output_tokens: int = 24
    temperature: float = 0.0
    parallel_share: float = 0.2
    parallel_n: int = 4
    parallel_temperature: float = 0.8
    num_beam: int | None = None
    beam_width: int = 4
    rate_per_s: float = 0.0

    def __post_init__(self) -> None:
        within(self, 0, MOST, "prefix_tokens", "temperature", "parallel_temperature", "rate_per_s")
        within(self, 1, MOST, "num_requests", "num_prefixes", "turns", "output_tokens")
        within(self, 2, MOST, "suffix_tokens", "parallel_n", "beam_width")
        within(self, 0, 1, "parallel_share")
        if self.num_beam is not None:
            within(self, 0, self.num_requests, "num_beam")

    def requests(self) -> Iterator[WorkloadRequest]:
        rng = _stream("chat", self.seed)
        prefixes = [_text(rng, self.prefix_tokens) for _ in range(self.num_prefixes)]
        arrivals = _arrivals(rng, self.rate_per_s)
        num_sessions = -(-self.num_requests // self.turns)
        histories = [prefixes[session % self.num_prefixes] for session in range(num_sessions)]
        num_beam = min(2, self.num_requests) if self.num_beam is None else self.num_beam
        beams = {(2 * index + 1) * self.num_requests // (2 * num_beam) for index in range(num_beam)}
        for number in range(self.num_requests):
            session = number % num_sessions
            message = _text(rng, rng.randint(self.suffix_tokens // 2, self.suffix_tokens + self.suffix_tokens // 2))
            prompt = f"{histories[session]}\nUser: {message}\nAssistant:"
            histories[session] = f"{prompt} {_text(rng, self.output_tokens)}"
            n = rng.randint(2, self.parallel_n) if rng.random() < self.parallel_share else 1
            yield WorkloadRequest(
                prompt=prompt,
                sampling=self._sampling(n, number in beams),
                arrival_s=next(arrivals),
                session=f"session-{session}",
                turn=number // num_sessions,
                category="chat",
                key=f"chat-{number}",
            )

    def _sampling(self, n: int, searches: bool) -> Sampling:
        if searches:
            return Sampling(max_tokens=self.output_tokens, beam_width=self.beam_width)
        temperature = self.parallel_temperature if n > 1 else self.temperature
        return Sampling(max_tokens=self.output_tokens, n=n, temperature=temperature)


@dataclass(kw_only=True)
class _TokenIds(Workload):
    """Prompts of random token ids, each answered with `new_tokens`. A subclass says what they are."""

    name: ClassVar[str]

    seed: int = 0
    num_requests: int = 32
    new_tokens: int = 64
    vocab_size: int = 256
    temperature: float = 0.0
    ignore_eos: bool = True
    rate_per_s: float = 0.0

    def __post_init__(self) -> None:
        within(self, 1, MOST, "num_requests", "new_tokens")
        within(self, 2, 2**30, "vocab_size")
        within(self, 0, MOST, "temperature", "rate_per_s")

    @abstractmethod
    def _prompts(self, rng: random.Random) -> Iterator[TokenArray]:
        """Prompts without end."""

    def requests(self) -> Iterator[WorkloadRequest]:
        rng = _stream(self.name, self.seed)
        arrivals, prompts = _arrivals(rng, self.rate_per_s), self._prompts(rng)
        sampling = Sampling(max_tokens=self.new_tokens, temperature=self.temperature, ignore_eos=self.ignore_eos)
        for number in range(self.num_requests):
            key = f"{self.name.replace('_', '-')}-{number}"
            yield WorkloadRequest(prompt=next(prompts), sampling=sampling, arrival_s=next(arrivals), key=key)

    def _ids(self, rng: random.Random, count: int) -> TokenArray:
        return np.array([int(rng.random() * self.vocab_size) for _ in range(count)], dtype=np.int32)


@dataclass(kw_only=True)
class NoSharing(_TokenIds):
    """Ragged prompts of random token ids with nothing in common: what no cache can help.

    Args:
        seed: of all that is drawn.
        num_requests: prompts.
        min_tokens, max_tokens: prompt lengths, drawn evenly from this range.
        new_tokens: generated per request.
        vocab_size: ids are drawn from 0 to this; the default suits every tokenizer with byte tokens first.
        temperature: 0 is greedy.
        ignore_eos: generate all `new_tokens` whatever comes.
        rate_per_s: Poisson arrivals; 0 means all at once.
    """

    name = "no_sharing"

    new_tokens: int = 128
    min_tokens: int = 32
    max_tokens: int = 512

    def __post_init__(self) -> None:
        within(self, 1, MOST, "min_tokens")
        within(self, self.min_tokens, MOST, "max_tokens")
        super().__post_init__()

    def _prompts(self, rng: random.Random) -> Iterator[TokenArray]:
        while True:
            yield self._ids(rng, rng.randint(self.min_tokens, self.max_tokens))


@dataclass(kw_only=True)
class SharedPrefix(_TokenIds):
    """One long prefix of random token ids, then a tail of its own for each request.

    Args:
        prefix_tokens: shared by all; 0 for none.
        unique_tokens: of each request's own.
        new_tokens: generated per request.
        seed, num_requests, vocab_size, temperature, ignore_eos, rate_per_s: see NoSharing.
    """

    name = "shared_prefix"

    prefix_tokens: int = 1024
    unique_tokens: int = 64

    def __post_init__(self) -> None:
        within(self, 1, MOST, "unique_tokens")
        within(self, 0, MOST, "prefix_tokens")
        super().__post_init__()

    def _prompts(self, rng: random.Random) -> Iterator[TokenArray]:
        prefix = self._ids(rng, self.prefix_tokens)
        while True:
            yield np.concatenate([prefix, self._ids(rng, self.unique_tokens)])


def _stream(name: str, seed: int) -> random.Random:
    # A text seed goes through SHA-512, not through the per-process string hash.
    return random.Random(f"framework.workload.{name}:{seed}")


def _text(rng: random.Random, num_bytes: int) -> str:
    """ASCII words, exactly `num_bytes` long."""
    words, length = [], 0
    while length < num_bytes:
        words.append(_WORDS[int(rng.random() * len(_WORDS))])
        length += len(words[-1]) + 1
    return " ".join(words)[:num_bytes].ljust(num_bytes, ".")


def _arrivals(rng: random.Random, rate_per_s: float) -> Iterator[float]:
    gap_rng = random.Random(rng.random())  # a stream of its own: the rate changes when requests come, not what they are
    gaps = (gap_rng.expovariate(rate_per_s) if rate_per_s > 0 else 0.0 for _ in count())
    return accumulate(gaps, initial=0.0)
