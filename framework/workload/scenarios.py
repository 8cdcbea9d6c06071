"""Seeded streams of single requests: popular system prompts, retrieved documents, samples and beams.

Every generator yields its requests in order of arrival and holds no more than the one at hand, so that a trace of any
length can be written. Contents are token ids; what is shared is drawn anew from its number, never stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from framework.errors import ConfigError
from framework.sampling import Sampling
from framework.types import TokenArray
from framework.workload.draws import Draws, Zipf, at_least, need
from framework.workload.opening import opening
from framework.workload.request import WorkloadRequest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SyntheticRequest(WorkloadRequest):
    """A drawn request, and the answer that its conversation goes on with.

    Attributes:
        output: (n,) int32 token ids; what a trace records as generated. A served model answers on its own.
    """

    output: TokenArray

    @property
    def tokens(self) -> TokenArray:
        """The prompt, (n,) int32."""
        assert isinstance(self.prompt, np.ndarray)
        return self.prompt


def system_prompts(
    *,
    seed: int,
    num_requests: int = 32,
    num_prompts: int = 8,
    zipf_alpha: float = 1.0,
    system_tokens: int = 256,
    user_tokens: int = 48,
    output_tokens: int = 24,
    spread: float = 0.5,
    vocab_size: int = 256,
    temperature: float = 0.0,
    rate_per_s: float = 0.0,
    burstiness: float = 1.0,
    arrivals: Path | None = None,
) -> Iterator[SyntheticRequest]:
    """Applications of different popularity, each with its own system prompt, each request with its own question.

    Args:
        seed: of all that is drawn.
        num_requests: prompts.
        num_prompts: applications; application k is drawn with a chance proportional to (k + 1) ** -zipf_alpha.
        zipf_alpha: 0 is uniform.
        system_tokens, user_tokens, output_tokens: mean lengths.
        spread: of all lengths, sigma of their log; 0 makes them equal.
        vocab_size: token ids are drawn from 0 to this.
        temperature: 0 is greedy.
        rate_per_s, burstiness, arrivals: see framework.workload.arrivals.

    Raises:
        ConfigError: a number outside its range.
    """
    at_least("system_prompts", 0, zipf_alpha=zipf_alpha, system_tokens=system_tokens)
    at_least("system_prompts", 1, num_requests=num_requests, num_prompts=num_prompts, user_tokens=user_tokens)
    draws, times = opening(
        "system_prompts", seed=seed, output_tokens=output_tokens, spread=spread, vocab_size=vocab_size,
        rate_per_s=rate_per_s, burstiness=burstiness, arrivals=arrivals,
    )  # fmt: skip
    popularity = Zipf(num_prompts, zipf_alpha)

    def stream() -> Iterator[SyntheticRequest]:
        for number in range(num_requests):
            application = popularity.draw(draws.random)
            system = draws.child("application", application).text(system_tokens)
            prompt = np.concatenate([system, draws.text(user_tokens)])
            yield _request(draws, prompt, next(times), output_tokens, temperature, f"system-prompts-{number}",
                           tenant=f"application-{application}")  # fmt: skip

    return stream()


def rag(
    *,
    seed: int,
    num_requests: int = 32,
    num_documents: int = 64,
    documents_per_request: int = 4,
    zipf_alpha: float = 1.0,
    shuffle: bool = True,
    instruction_tokens: int = 32,
    document_tokens: int = 128,
    question_tokens: int = 24,
    output_tokens: int = 24,
    spread: float = 0.5,
    vocab_size: int = 256,
    temperature: float = 0.0,
    rate_per_s: float = 0.0,
    burstiness: float = 1.0,
    arrivals: Path | None = None,
) -> Iterator[SyntheticRequest]:
    """Retrieval: one instruction, a few popular documents, a question. What a prefix cache finds hard.

    The same documents in another order are another prefix; `shuffle=false` sorts them by number, the order in which
    a cache-aware retriever would place them.

    Args:
        seed: of all that is drawn.
        num_requests: prompts.
        num_documents: in the store; document k is retrieved with a chance proportional to (k + 1) ** -zipf_alpha.
        documents_per_request: different ones in each prompt.
        zipf_alpha: 0 is uniform.
        shuffle: documents come in random order.
        instruction_tokens: shared by all; exact.
        document_tokens, question_tokens, output_tokens: mean lengths.
        spread, vocab_size, temperature, rate_per_s, burstiness, arrivals: as in system_prompts.

    Raises:
        ConfigError: a number outside its range.
    """
    at_least("rag", 0, zipf_alpha=zipf_alpha, instruction_tokens=instruction_tokens)
    at_least("rag", 1, num_requests=num_requests, num_documents=num_documents)
    at_least("rag", 1, document_tokens=document_tokens, question_tokens=question_tokens)
    need("rag", "documents_per_request", documents_per_request, 1, num_documents)
    draws, times = opening(
        "rag", seed=seed, output_tokens=output_tokens, spread=spread, vocab_size=vocab_size,
        rate_per_s=rate_per_s, burstiness=burstiness, arrivals=arrivals,
    )  # fmt: skip
    popularity = Zipf(num_documents, zipf_alpha)
    instruction = draws.child("instruction", 0).tokens(instruction_tokens)

    def stream() -> Iterator[SyntheticRequest]:
        for number in range(num_requests):
            chosen = popularity.distinct(draws.random, documents_per_request)
            if shuffle:
                draws.random.shuffle(chosen)
            else:
                chosen.sort()
            documents = [draws.child("document", document).text(document_tokens) for document in chosen]
            prompt = np.concatenate([instruction, *documents, draws.text(question_tokens)])
            yield _request(draws, prompt, next(times), output_tokens, temperature, f"rag-{number}")

    return stream()


def forks(
    *,
    seed: int,
    num_requests: int = 16,
    prompt_tokens: int = 128,
    output_tokens: int = 32,
    n: int = 4,
    beam_width: int = 4,
    beam_share: float = 0.5,
    spread: float = 0.5,
    vocab_size: int = 256,
    temperature: float = 0.8,
    rate_per_s: float = 0.0,
    burstiness: float = 1.0,
    arrivals: Path | None = None,
) -> Iterator[SyntheticRequest]:
    """Parallel sampling and beam search on prompts that share nothing: what forks alone save.

    Args:
        seed: of all that is drawn.
        num_requests: prompts.
        prompt_tokens, output_tokens: mean lengths.
        n: samples of a request that samples; 1 for none beside the first.
        beam_width: of a request that searches, at least 2.
        beam_share: share of requests that search; the others sample.
        temperature: of requests that sample.
        spread, vocab_size, rate_per_s, burstiness, arrivals: as in system_prompts.

    Raises:
        ConfigError: a number outside its range.
    """
    at_least("forks", 1, num_requests=num_requests, prompt_tokens=prompt_tokens, n=n)
    need("forks", "beam_width", beam_width, 2)
    need("forks", "beam_share", beam_share, 0, 1)
    if n > 1 and not temperature and beam_share < 1:
        raise ConfigError(f"workload.temperature (forks) must be above 0 for n={n} samples: greedy ones are all equal")
    draws, times = opening(
        "forks", seed=seed, output_tokens=output_tokens, spread=spread, vocab_size=vocab_size,
        rate_per_s=rate_per_s, burstiness=burstiness, arrivals=arrivals,
    )  # fmt: skip

    def stream() -> Iterator[SyntheticRequest]:
        for number in range(num_requests):
            searches = draws.random.random() < beam_share
            tokens, output = draws.text(prompt_tokens), draws.text(output_tokens)
            more = {"beam_width": beam_width} if searches else {"n": n}
            heat = 0.0 if searches else temperature
            sampling = Sampling(max_tokens=len(output), temperature=heat, ignore_eos=True, **more)  # type: ignore[arg-type]
            yield SyntheticRequest(
                prompt=tokens, sampling=sampling, arrival_s=next(times), key=f"forks-{number}", output=output
            )

    return stream()


def _request(
    draws: Draws,
    prompt: TokenArray,
    arrival_s: float,
    output_tokens: int,
    temperature: float,
    key: str,
    tenant: str = "",
) -> SyntheticRequest:
    output = draws.text(output_tokens)
    sampling = Sampling(max_tokens=len(output), temperature=temperature, ignore_eos=True)
    return SyntheticRequest(
        prompt=prompt, sampling=sampling, arrival_s=arrival_s, tenant=tenant, key=key, output=output
    )
