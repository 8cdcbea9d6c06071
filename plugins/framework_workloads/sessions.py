"""Seeded streams of sessions, whose later requests repeat their earlier ones: conversations, and agents with tools.

Sessions overlap in time. Only those that have begun and not ended are in memory, each with its history.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from framework.interfaces.workload import WorkloadRequest
from framework_workloads.draws import MOST, Draws, SeededWorkload, Zipf, within


class Sessions(SeededWorkload):
    """Sessions of a few kinds, which are of Zipf popularity. A subclass says what a session of a kind asks for."""

    kinds: ClassVar[str]
    """The option that says how many kinds of session there are."""

    num_sessions: int
    zipf_alpha: float

    @abstractmethod
    def _session(self, draws: Draws, popularity: Zipf, number: int, now_s: float) -> Iterator[WorkloadRequest]:
        """The requests of session `number`, which begins now, in order of arrival."""

    def requests(self) -> Iterator[WorkloadRequest]:
        """All sessions' requests in order of arrival; ties by turn, then by session. Each says which one it follows."""
        draws, times = self.opening()
        popularity = Zipf(getattr(self, self.kinds), self.zipf_alpha)
        active: list[tuple[float, int, int, WorkloadRequest, Iterator[WorkloadRequest]]] = []
        started, start_s = 0, next(times)
        while started < self.num_sessions or active:
            while started < self.num_sessions and (not active or start_s <= active[0][0]):
                requests = self._session(draws, popularity, started, start_s)
                heapq.heappush(active, (start_s, 0, started, next(requests), requests))
                started += 1
                if started < self.num_sessions:
                    start_s = next(times)
            _, turn, number, request, requests = active[0]
            following = next(requests, None)
            if following is None:
                heapq.heappop(active)
            else:
                delay_s = following.arrival_s - request.arrival_s
                following = replace(following, after=(request.key,), delay_s=delay_s)
                heapq.heapreplace(active, (following.arrival_s, turn + 1, number, following, requests))
            yield request


@dataclass(kw_only=True)
class Conversations(Sessions):
    """Multi-turn chat: each turn's prompt is the system prompt, all turns and answers before it, and a new message.

    Where arrivals tie (`rate_per_s=0`, `think_s=0`) all first turns come before all second ones, and so on. In an open
    loop turns come when their user has thought, whether the answer before is served by then or not.

    Args:
        num_sessions: conversations.
        turns: mean of a conversation; geometric, at least 1.
        num_prompts: distinct system prompts, of Zipf popularity; see SystemPrompts.
        zipf_alpha: 0 is uniform.
        system_tokens, user_tokens, output_tokens: mean lengths. The answers in a history are drawn, not a model's.
        think_s: mean time between a turn and the next; exponential.
        rate_per_s, burstiness, arrivals: of new conversations; these and seed, spread, vocab_size, temperature: see
            SeededWorkload.
    """

    name = "conversations"
    kinds = "num_prompts"

    num_sessions: int = 12
    turns: float = 3.0
    num_prompts: int = 4
    zipf_alpha: float = 1.0
    system_tokens: int = 192
    user_tokens: int = 32
    think_s: float = 0.0

    def __post_init__(self) -> None:
        within(self, 0, MOST, "zipf_alpha", "system_tokens", "think_s")
        within(self, 1, MOST, "num_sessions", "turns", "num_prompts", "user_tokens")
        super().__post_init__()

    def _session(self, draws: Draws, popularity: Zipf, number: int, now_s: float) -> Iterator[WorkloadRequest]:
        mine = draws.child("session", number)
        application = popularity.draw(mine.random)
        history = draws.child("application", application).text(self.system_tokens)
        for turn in range(mine.count(self.turns)):
            prompt, output = np.concatenate([history, mine.text(self.user_tokens)]), mine.text(self.output_tokens)
            yield self.request(
                prompt,
                output,
                now_s,
                tenant=f"application-{application}",
                session=f"conversation-{number}",
                turn=turn,
                category="chat",
                key=f"conversation-{number}-{turn}",
            )
            history = np.concatenate([prompt, output])
            now_s += mine.pause(self.think_s)


@dataclass(kw_only=True)
class Agents(Sessions):
    """Agents that call tools: long shared instructions, many short steps, a context that grows by each tool's result.

    A step's prompt is the agent's instructions and tool descriptions, the task, and all calls and results so far.
    When it would pass `max_context_tokens` the agent compacts: everything after the task becomes one fresh summary.

    Args:
        num_sessions: tasks.
        steps: mean model calls of a task; geometric, at least 1.
        num_agents: kinds of agent, of Zipf popularity, each with its own instructions.
        zipf_alpha: 0 is uniform.
        agent_tokens, task_tokens, tool_tokens, output_tokens, summary_tokens: mean lengths of the instructions, the
            task, a tool's result, a model's call and a summary.
        max_context_tokens: prompt and output of no step are longer, unless instructions, task and output alone are.
        tool_s: mean time from a step to the next; exponential.
        rate_per_s, burstiness, arrivals: of new tasks; these and seed, spread, vocab_size, temperature: see
            SeededWorkload.
    """

    name = "agents"
    kinds = "num_agents"

    num_sessions: int = 8
    steps: float = 5.0
    num_agents: int = 2
    zipf_alpha: float = 1.0
    agent_tokens: int = 384
    task_tokens: int = 48
    tool_tokens: int = 96
    max_context_tokens: int = 2048
    summary_tokens: int = 64
    tool_s: float = 0.0
    spread: float = 0.8

    def __post_init__(self) -> None:
        within(self, 0, MOST, "zipf_alpha", "agent_tokens", "summary_tokens", "tool_s")
        within(self, 1, MOST, "num_sessions", "steps", "num_agents", "task_tokens", "tool_tokens", "max_context_tokens")
        super().__post_init__()

    def _session(self, draws: Draws, popularity: Zipf, number: int, now_s: float) -> Iterator[WorkloadRequest]:
        mine = draws.child("session", number)
        agent = popularity.draw(mine.random)
        begin = np.concatenate([draws.child("agent", agent).text(self.agent_tokens), mine.text(self.task_tokens)])
        prompt = begin
        for step in range(mine.count(self.steps)):
            output = mine.text(self.output_tokens)
            if len(prompt) + len(output) > self.max_context_tokens and len(prompt) > len(begin):
                room = max(0, self.max_context_tokens - len(begin) - len(output))
                prompt = np.concatenate([begin, mine.text(self.summary_tokens)[:room]])
            yield self.request(
                prompt,
                output,
                now_s,
                tenant=f"agent-{agent}",
                session=f"agent-{number}",
                turn=step,
                category="tool_result" if step else "task",
                key=f"agent-{number}-{step}",
            )
            prompt = np.concatenate([prompt, output, mine.text(self.tool_tokens)])
            now_s += mine.pause(self.tool_s)
