"""Seeded workloads: chats over shared system prompts, one shared prefix, and nothing shared at all.

Every generator draws from its own `random.Random`, seeded by its name and the run's seed, so that the same seed makes
the same requests in any process and under any PYTHONHASHSEED.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from framework.errors import ConfigError
from framework.sampling import Sampling
from framework.types import TokenArray
from framework.workload.request import WorkloadRequest

_WORDS = (
    "cache", "block", "page", "table", "prefix", "token", "query", "layer", "model", "batch", "prompt",
    "answer", "memory", "shared", "copy", "write", "free", "hash", "tree", "root", "child", "parent", "order",
    "policy", "trace", "engine", "step", "queue", "user", "system", "agent", "tool", "search", "result", "plan",
    "check", "please", "compare", "explain", "summarise", "the", "a", "of", "in", "with", "for", "and", "that",
    "which", "when", "how", "why", "each", "every", "other", "first", "last", "short", "long", "recent",
    "frequent", "cold", "warm", "local", "global", "exact", "careful", "clear", "useful",
)  # fmt: skip


def chat(
    *,
    seed: int,
    num_requests: int = 48,
    num_prefixes: int = 4,
    prefix_tokens: int = 192,
    suffix_tokens: int = 40,
    turns: int = 2,
    output_tokens: int = 24,
    temperature: float = 0.0,
    parallel_share: float = 0.2,
    parallel_n: int = 4,
    parallel_temperature: float = 0.8,
    num_beam: int = 2,
    beam_width: int = 4,
    rate_per_s: float = 0.0,
) -> list[WorkloadRequest]:
    """Conversations that open with one of a few system prompts, some asked for several answers.

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
        num_beam: further requests, evenly spread, that use beam search of `beam_width`.
        rate_per_s: Poisson arrivals; 0 means all at once.

    Raises:
        ConfigError: a number outside its range.
    """
    _need("chat", num_requests >= 1, "num_requests", num_requests, "at least 1")
    _need("chat", num_prefixes >= 1, "num_prefixes", num_prefixes, "at least 1")
    _need("chat", prefix_tokens >= 0, "prefix_tokens", prefix_tokens, "at least 0")
    _need("chat", suffix_tokens >= 2, "suffix_tokens", suffix_tokens, "at least 2")
    _need("chat", turns >= 1, "turns", turns, "at least 1")
    _need("chat", 0 <= parallel_share <= 1, "parallel_share", parallel_share, "0 to 1")
    _need("chat", parallel_n >= 2, "parallel_n", parallel_n, "at least 2")
    _need("chat", 0 <= num_beam <= num_requests, "num_beam", num_beam, "0 to num_requests")
    _need("chat", beam_width >= 2, "beam_width", beam_width, "at least 2")
    _need("chat", output_tokens >= 1, "output_tokens", output_tokens, "at least 1")
    rng = _stream("chat", seed)
    prefixes = [_text(rng, prefix_tokens) for _ in range(num_prefixes)]
    arrivals = _arrivals("chat", rng, rate_per_s)
    num_sessions = -(-num_requests // turns)
    histories = [prefixes[session % num_prefixes] for session in range(num_sessions)]
    beams = {(2 * index + 1) * num_requests // (2 * num_beam) for index in range(num_beam)}
    requests = []
    for number in range(num_requests):
        session = number % num_sessions
        message = _text(rng, rng.randint(suffix_tokens // 2, suffix_tokens + suffix_tokens // 2))
        prompt = f"{histories[session]}\nUser: {message}\nAssistant:"
        histories[session] = f"{prompt} {_text(rng, output_tokens)}"
        n = rng.randint(2, parallel_n) if rng.random() < parallel_share else 1
        if number in beams:
            sampling = Sampling(max_tokens=output_tokens, beam_width=beam_width)
        elif n > 1:
            sampling = Sampling(max_tokens=output_tokens, n=n, temperature=parallel_temperature)
        else:
            sampling = Sampling(max_tokens=output_tokens, temperature=temperature)
        requests.append(
            WorkloadRequest(
                prompt=prompt,
                sampling=sampling,
                arrival_s=next(arrivals),
                session=f"session-{session}",
                key=f"chat-{number}",
            )
        )
    return requests


def no_sharing(
    *,
    seed: int,
    num_requests: int = 32,
    min_tokens: int = 32,
    max_tokens: int = 512,
    new_tokens: int = 128,
    vocab_size: int = 256,
    temperature: float = 0.0,
    ignore_eos: bool = True,
    rate_per_s: float = 0.0,
) -> list[WorkloadRequest]:
    """Ragged prompts of random token ids with nothing in common: what a cache cannot help.

    Args:
        seed: of all that is drawn.
        num_requests: prompts.
        min_tokens, max_tokens: prompt lengths, drawn evenly from this range.
        new_tokens: generated per request.
        vocab_size: ids are drawn from 0 to this; the default suits every tokenizer with byte tokens first.
        temperature: 0 is greedy.
        ignore_eos: generate all `new_tokens` whatever comes.
        rate_per_s: Poisson arrivals; 0 means all at once.

    Raises:
        ConfigError: a number outside its range.
    """
    _need("no_sharing", num_requests >= 1, "num_requests", num_requests, "at least 1")
    _need("no_sharing", min_tokens >= 1, "min_tokens", min_tokens, "at least 1")
    _need("no_sharing", max_tokens >= min_tokens, "max_tokens", max_tokens, f"at least min_tokens, {min_tokens}")
    _need("no_sharing", new_tokens >= 1, "new_tokens", new_tokens, "at least 1")
    _need("no_sharing", vocab_size >= 2, "vocab_size", vocab_size, "at least 2")
    rng = _stream("no_sharing", seed)
    arrivals = _arrivals("no_sharing", rng, rate_per_s)
    sampling = Sampling(max_tokens=new_tokens, temperature=temperature, ignore_eos=ignore_eos)
    return [
        WorkloadRequest(
            prompt=_ids(rng, rng.randint(min_tokens, max_tokens), vocab_size),
            sampling=sampling,
            arrival_s=next(arrivals),
            key=f"no-sharing-{number}",
        )
        for number in range(num_requests)
    ]


def shared_prefix(
    *,
    seed: int,
    num_requests: int = 32,
    prefix_tokens: int = 1024,
    unique_tokens: int = 64,
    new_tokens: int = 64,
    vocab_size: int = 256,
    temperature: float = 0.0,
    ignore_eos: bool = True,
    rate_per_s: float = 0.0,
) -> list[WorkloadRequest]:
    """One long prefix of random token ids, then a tail of its own for each request.

    Args:
        seed: of all that is drawn.
        num_requests: prompts.
        prefix_tokens: shared by all; 0 for none.
        unique_tokens: of each request's own.
        new_tokens: generated per request.
        vocab_size: ids are drawn from 0 to this.
        temperature: 0 is greedy.
        ignore_eos: generate all `new_tokens` whatever comes.
        rate_per_s: Poisson arrivals; 0 means all at once.

    Raises:
        ConfigError: a number outside its range.
    """
    _need("shared_prefix", num_requests >= 1, "num_requests", num_requests, "at least 1")
    _need("shared_prefix", prefix_tokens >= 0, "prefix_tokens", prefix_tokens, "at least 0")
    _need("shared_prefix", unique_tokens >= 1, "unique_tokens", unique_tokens, "at least 1")
    _need("shared_prefix", new_tokens >= 1, "new_tokens", new_tokens, "at least 1")
    _need("shared_prefix", vocab_size >= 2, "vocab_size", vocab_size, "at least 2")
    rng = _stream("shared_prefix", seed)
    arrivals = _arrivals("shared_prefix", rng, rate_per_s)
    prefix = _ids(rng, prefix_tokens, vocab_size)
    sampling = Sampling(max_tokens=new_tokens, temperature=temperature, ignore_eos=ignore_eos)
    return [
        WorkloadRequest(
            prompt=np.concatenate([prefix, _ids(rng, unique_tokens, vocab_size)]),
            sampling=sampling,
            arrival_s=next(arrivals),
            key=f"shared-prefix-{number}",
        )
        for number in range(num_requests)
    ]


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


def _ids(rng: random.Random, count: int, vocab_size: int) -> TokenArray:
    return np.array([int(rng.random() * vocab_size) for _ in range(count)], dtype=np.int32)


def _arrivals(workload: str, rng: random.Random, rate_per_s: float) -> Iterator[float]:
    _need(workload, rate_per_s >= 0, "rate_per_s", rate_per_s, "at least 0 (0 is all at once)")
    # A stream of its own: the rate changes when requests come, not what they are.
    own = random.Random(rng.random())
    return _arrival_times(own, rate_per_s)


def _arrival_times(rng: random.Random, rate_per_s: float) -> Iterator[float]:
    now_s = 0.0
    while True:
        yield now_s
        now_s += rng.expovariate(rate_per_s) if rate_per_s > 0 else 0.0


def _need(workload: str, ok: bool, name: str, value: float, rule: str) -> None:
    if not ok:
        raise ConfigError(f"workload.{name} ({workload}) must be {rule}, found {value!r}")
