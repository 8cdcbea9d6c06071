"""Seeded streams of single requests: popular system prompts, retrieved documents, samples and beams.

Every generator yields its requests in order of arrival and holds no more than the one at hand, so that a trace of any
length can be written. Contents are token ids; what is shared is drawn anew from its number, never stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from framework.errors import ConfigError
from framework.interfaces.workload import Sampling, WorkloadRequest
from framework_workloads.draws import MOST, SeededWorkload, Zipf, within


@dataclass(kw_only=True)
class SystemPrompts(SeededWorkload):
    """Applications of Zipf popularity, each with its own system prompt, each request with its own question.

    Args:
        num_requests: prompts.
        num_prompts: applications; application k is drawn with a chance proportional to (k + 1) ** -zipf_alpha.
        zipf_alpha: 0 is uniform.
        system_tokens, user_tokens, output_tokens: mean lengths.
        seed, spread, vocab_size, temperature, rate_per_s, burstiness, arrivals: see SeededWorkload.
    """

    name = "system_prompts"

    num_requests: int = 32
    num_prompts: int = 8
    zipf_alpha: float = 1.0
    system_tokens: int = 256
    user_tokens: int = 48

    def __post_init__(self) -> None:
        within(self, 0, MOST, "zipf_alpha", "system_tokens")
        within(self, 1, MOST, "num_requests", "num_prompts", "user_tokens")
        super().__post_init__()

    def requests(self) -> Iterator[WorkloadRequest]:
        draws, times = self.opening()
        popularity = Zipf(self.num_prompts, self.zipf_alpha)
        for number in range(self.num_requests):
            application = popularity.draw(draws.random)
            system = draws.child("application", application).text(self.system_tokens)
            yield self.request(
                np.concatenate([system, draws.text(self.user_tokens)]),
                draws.text(self.output_tokens),
                next(times),
                tenant=f"application-{application}",
                category="chat",
                key=f"system-prompts-{number}",
            )


@dataclass(kw_only=True)
class Rag(SeededWorkload):
    """Retrieval: one instruction, a few popular documents in shuffled order, a question. Hard for a prefix cache.

    The same documents in another order are another prefix; `shuffle=false` sorts them by number, the order in which
    a cache-aware retriever would place them.

    Args:
        num_requests: prompts.
        num_documents: in the store; document k is retrieved with a chance proportional to (k + 1) ** -zipf_alpha.
        documents_per_request: different ones in each prompt.
        zipf_alpha: 0 is uniform.
        shuffle: documents come in random order.
        instruction_tokens: shared by all; exact.
        document_tokens, question_tokens, output_tokens: mean lengths.
        seed, spread, vocab_size, temperature, rate_per_s, burstiness, arrivals: see SeededWorkload.
    """

    name = "rag"

    num_requests: int = 32
    num_documents: int = 64
    documents_per_request: int = 4
    zipf_alpha: float = 1.0
    shuffle: bool = True
    instruction_tokens: int = 32
    document_tokens: int = 128
    question_tokens: int = 24

    def __post_init__(self) -> None:
        within(self, 0, MOST, "zipf_alpha", "instruction_tokens")
        within(self, 1, MOST, "num_requests", "num_documents", "document_tokens", "question_tokens")
        within(self, 1, self.num_documents, "documents_per_request")
        super().__post_init__()

    def requests(self) -> Iterator[WorkloadRequest]:
        draws, times = self.opening()
        popularity = Zipf(self.num_documents, self.zipf_alpha)
        instruction = draws.child("instruction", 0).tokens(self.instruction_tokens)
        for number in range(self.num_requests):
            chosen = popularity.distinct(draws.random, self.documents_per_request)
            if self.shuffle:
                draws.random.shuffle(chosen)
            else:
                chosen.sort()
            documents = [draws.child("document", document).text(self.document_tokens) for document in chosen]
            yield self.request(
                np.concatenate([instruction, *documents, draws.text(self.question_tokens)]),
                draws.text(self.output_tokens),
                next(times),
                category="rag",
                key=f"rag-{number}",
            )


@dataclass(kw_only=True)
class Forks(SeededWorkload):
    """Parallel sampling and beam search on prompts that share nothing: what forks alone save.

    Args:
        num_requests: prompts.
        prompt_tokens, output_tokens: mean lengths.
        n: samples of a request that samples; 1 for none beside the first.
        beam_width: of a request that searches, at least 2.
        beam_share: share of requests that search; the others sample.
        temperature: of requests that sample.
        seed, spread, vocab_size, rate_per_s, burstiness, arrivals: see SeededWorkload.
    """

    name = "forks"

    num_requests: int = 16
    prompt_tokens: int = 128
    output_tokens: int = 32
    n: int = 4
    beam_width: int = 4
    beam_share: float = 0.5
    temperature: float = 0.8

    def __post_init__(self) -> None:
        within(self, 1, MOST, "num_requests", "prompt_tokens", "n")
        within(self, 2, MOST, "beam_width")
        within(self, 0, 1, "beam_share")
        if self.n > 1 and not self.temperature and self.beam_share < 1:
            raise ConfigError(
                f"workload.temperature (forks) must be above 0 for n={self.n} samples: greedy ones are all equal"
            )
        super().__post_init__()

    def requests(self) -> Iterator[WorkloadRequest]:
        draws, times = self.opening()
        for number in range(self.num_requests):
            searches = draws.random.random() < self.beam_share
            tokens, output = draws.text(self.prompt_tokens), draws.text(self.output_tokens)
            forks = {"beam_width": self.beam_width} if searches else {"n": self.n, "temperature": self.temperature}
            yield self.request(
                tokens,
                output,
                next(times),
                sampling=Sampling(max_tokens=len(output), ignore_eos=True, **forks),
                category="beam_search" if searches else "samples",
                key=f"forks-{number}",
            )
