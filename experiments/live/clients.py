"""Requests of drawn workloads, sent to a server through the `openai` client, and what came back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from experiments.live.checkpoint import VOCABULARY
from experiments.live.server import MODEL, Server
from framework.registry.components import build_component


@dataclass(frozen=True)
class Ask:
    """One request: prompt tokens, how many to answer, and when it comes."""

    prompt: tuple[int, ...]
    max_tokens: int
    session: str = ""
    arrival_s: float = 0.0


@dataclass
class Answer:
    """What a server said: token ids, and the prompt tokens that it found in its cache.

    Attributes:
        first_s, end_s: `time.perf_counter` at the first token and at the end, of a streamed answer.
    """

    tokens: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    prompt_tokens: int = 0
    first_s: float = 0.0
    end_s: float = 0.0


def drawn(name: str, longest: int, seed: int = 0, **options: Any) -> list[Ask]:
    """The requests of a workload that are, with their answer, no longer than `longest` tokens.

    In order of arrival; the histories hold drawn answers, so that a stream does not depend on what a server says.
    """
    workload = build_component("workload", {"name": name, "vocab_size": VOCABULARY, **options}, {"seed": seed})
    asks = [
        Ask(tuple(request.prompt.tolist()), request.output_tokens, request.session or "", request.arrival_s)
        for request in workload.requests()
    ]
    return [ask for ask in asks if len(ask.prompt) + ask.max_tokens <= longest]


class Client:
    """The `openai` client of one server. Greedy unless asked otherwise, `max_tokens` tokens whatever they are."""

    def __init__(self, server: Server) -> None:
        import openai

        self.api = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600)

    def ask(self, ask: Ask, **extra: Any) -> Answer:
        """One request, answered whole."""
        body = {"ignore_eos": True, "return_token_ids": True, **extra.pop("extra_body", {})}
        said = self.api.completions.create(
            model=MODEL,
            prompt=list(ask.prompt),
            max_tokens=ask.max_tokens,
            extra_body=body,
            **{"temperature": 0.0, **extra},
        )
        usage = said.usage
        details = usage.prompt_tokens_details
        tokens = [token for choice in said.choices for token in choice.token_ids]
        return Answer(tokens, (details.cached_tokens or 0) if details else 0, usage.prompt_tokens)

    def stream(self, ask: Ask, stop_after: int | None = None) -> Answer:
        """One request, streamed; the connection is closed after `stop_after` tokens: an abort."""
        answer = Answer()
        with self.api.completions.create(
            model=MODEL,
            prompt=list(ask.prompt),
            max_tokens=ask.max_tokens,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True, "return_token_ids": True},
        ) as chunks:
            for chunk in chunks:
                for choice in chunk.choices:
                    answer.tokens += choice.token_ids or []
                    answer.end_s = time.perf_counter()
                    answer.first_s = answer.first_s or answer.end_s
                if chunk.usage and chunk.usage.prompt_tokens_details:
                    answer.cached_tokens = chunk.usage.prompt_tokens_details.cached_tokens or 0
                    answer.prompt_tokens = chunk.usage.prompt_tokens
                if stop_after is not None and len(answer.tokens) >= stop_after:
                    break
        return answer

    def one_by_one(self, asks: Iterable[Ask]) -> list[Answer]:
        """Each request when the one before it has been answered."""
        return [self.ask(ask) for ask in asks]

    def on_time(self, asks: Sequence[Ask], arrivals_s: Sequence[float]) -> tuple[float, list[Answer]]:
        """Each request streamed from its arrival on, whatever became of the others; and when the clock began."""
        with ThreadPoolExecutor(len(asks)) as pool:
            start = time.perf_counter()

            def ask_at(ask: Ask, arrival_s: float) -> Answer:
                time.sleep(max(0.0, start + arrival_s - time.perf_counter()))
                return self.stream(ask)

            return start, list(pool.map(ask_at, asks, arrivals_s))

    def at_once(self, asks: Sequence[Ask], clients: int, **extra: Any) -> list[Answer]:
        """`clients` requests at a time, in order of asking."""
        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(lambda ask: self.ask(ask, **extra), asks))
