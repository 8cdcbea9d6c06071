"""Seeded streams of sessions, whose later requests repeat their earlier ones: conversations, and agents with tools.

Sessions overlap in time. Only those that have begun and not ended are in memory, each with its history.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from framework.sampling import Sampling
from framework.types import TokenArray
from framework.workload.draws import Zipf, at_least
from framework.workload.opening import opening
from framework.workload.scenarios import SyntheticRequest

_Session = Callable[[int, float], Iterator[SyntheticRequest]]
"""(number, start) -> the session's requests in order of arrival."""


def conversations(
    *,
    seed: int,
    num_sessions: int = 12,
    turns: float = 3.0,
    num_prompts: int = 4,
    zipf_alpha: float = 1.0,
    system_tokens: int = 192,
    user_tokens: int = 32,
    output_tokens: int = 24,
    think_s: float = 0.0,
    spread: float = 0.5,
    vocab_size: int = 256,
    temperature: float = 0.0,
    rate_per_s: float = 0.0,
    burstiness: float = 1.0,
    arrivals: Path | None = None,
) -> Iterator[SyntheticRequest]:
    """Multi-turn chat: each turn's prompt is the system prompt, all turns and answers before it, and a new message.

    Where arrivals tie (`rate_per_s=0`, `think_s=0`) all first turns come before all second ones, and so on. Turns come
    when their user has thought, whether the answer before is served by then or not.

    Args:
        seed: of all that is drawn.
        num_sessions: conversations.
        turns: mean of a conversation; geometric, at least 1.
        num_prompts: distinct system prompts, of Zipf popularity; see system_prompts.
        zipf_alpha: 0 is uniform.
        system_tokens, user_tokens, output_tokens: mean lengths. The answers in a history are drawn, not a model's.
        think_s: mean time between a turn and the next; exponential.
        spread, vocab_size, temperature: as in system_prompts.
        rate_per_s, burstiness, arrivals: of new conversations; see framework.workload.arrivals.

    Raises:
        ConfigError: a number outside its range.
    """
    at_least("conversations", 0, zipf_alpha=zipf_alpha, system_tokens=system_tokens, think_s=think_s)
    at_least(
        "conversations", 1, num_sessions=num_sessions, turns=turns, num_prompts=num_prompts, user_tokens=user_tokens
    )
    draws, times = opening(
        "conversations", seed=seed, output_tokens=output_tokens, spread=spread, vocab_size=vocab_size,
        rate_per_s=rate_per_s, burstiness=burstiness, arrivals=arrivals,
    )  # fmt: skip
    popularity = Zipf(num_prompts, zipf_alpha)

    def session(number: int, now_s: float) -> Iterator[SyntheticRequest]:
        mine = draws.child("session", number)
        application = popularity.draw(mine.random)
        history = draws.child("application", application).text(system_tokens)
        for turn in range(mine.count(turns)):
            prompt, output = np.concatenate([history, mine.text(user_tokens)]), mine.text(output_tokens)
            yield _turn(
                prompt, output, now_s, temperature, f"conversation-{number}", turn, f"application-{application}"
            )
            history = np.concatenate([prompt, output])
            now_s += mine.pause(think_s)

    return _merged(num_sessions, times, session)


def agents(
    *,
    seed: int,
    num_sessions: int = 8,
    steps: float = 5.0,
    num_agents: int = 2,
    zipf_alpha: float = 1.0,
    agent_tokens: int = 384,
    task_tokens: int = 48,
    tool_tokens: int = 96,
    output_tokens: int = 24,
    max_context_tokens: int = 2048,
    summary_tokens: int = 64,
    tool_s: float = 0.0,
    spread: float = 0.8,
    vocab_size: int = 256,
    temperature: float = 0.0,
    rate_per_s: float = 0.0,
    burstiness: float = 1.0,
    arrivals: Path | None = None,
) -> Iterator[SyntheticRequest]:
    """Agents that call tools: long shared instructions, many short steps, a context that grows by each tool's result.

    A step's prompt is the agent's instructions and tool descriptions, the task, and all calls and results so far.
    When it would pass `max_context_tokens` the agent compacts: everything after the task becomes one fresh summary.

    Args:
        seed: of all that is drawn.
        num_sessions: tasks.
        steps: mean model calls of a task; geometric, at least 1.
        num_agents: kinds of agent, of Zipf popularity, each with its own instructions.
        zipf_alpha: 0 is uniform.
        agent_tokens, task_tokens, tool_tokens, output_tokens, summary_tokens: mean lengths of the instructions, the
            task, a tool's result, a model's call and a summary.
        max_context_tokens: prompt and output of no step are longer, unless instructions, task and output alone are.
        tool_s: mean time from a step to the next; exponential.
        spread, vocab_size, temperature: as in system_prompts.
        rate_per_s, burstiness, arrivals: of new tasks; see framework.workload.arrivals.

    Raises:
        ConfigError: a number outside its range.
    """
    at_least(
        "agents", 0, zipf_alpha=zipf_alpha, agent_tokens=agent_tokens, summary_tokens=summary_tokens, tool_s=tool_s
    )
    at_least("agents", 1, num_sessions=num_sessions, steps=steps, num_agents=num_agents, task_tokens=task_tokens)
    at_least("agents", 1, tool_tokens=tool_tokens, max_context_tokens=max_context_tokens)
    draws, times = opening(
        "agents", seed=seed, output_tokens=output_tokens, spread=spread, vocab_size=vocab_size,
        rate_per_s=rate_per_s, burstiness=burstiness, arrivals=arrivals,
    )  # fmt: skip
    popularity = Zipf(num_agents, zipf_alpha)

    def session(number: int, now_s: float) -> Iterator[SyntheticRequest]:
        mine = draws.child("session", number)
        agent = popularity.draw(mine.random)
        opening = np.concatenate([draws.child("agent", agent).text(agent_tokens), mine.text(task_tokens)])
        prompt = opening
        for step in range(mine.count(steps)):
            output = mine.text(output_tokens)
            if len(prompt) + len(output) > max_context_tokens and len(prompt) > len(opening):
                room = max(0, max_context_tokens - len(opening) - len(output))
                prompt = np.concatenate([opening, mine.text(summary_tokens)[:room]])
            yield _turn(prompt, output, now_s, temperature, f"agent-{number}", step, f"agent-{agent}")
            prompt = np.concatenate([prompt, output, mine.text(tool_tokens)])
            now_s += mine.pause(tool_s)

    return _merged(num_sessions, times, session)


def _turn(
    prompt: TokenArray, output: TokenArray, now_s: float, temperature: float, session: str, turn: int, tenant: str
) -> SyntheticRequest:
    return SyntheticRequest(
        prompt=prompt,
        sampling=Sampling(max_tokens=len(output), temperature=temperature, ignore_eos=True),
        arrival_s=now_s,
        tenant=tenant,
        session=session,
        key=f"{session}-{turn}",
        output=output,
    )


def _merged(num_sessions: int, times: Iterator[float], session: _Session) -> Iterator[SyntheticRequest]:
    """All sessions' requests in order of arrival; ties by turn, then by session."""
    active: list[tuple[float, int, int, SyntheticRequest, Iterator[SyntheticRequest]]] = []
    started, start_s = 0, next(times)
    while started < num_sessions or active:
        while started < num_sessions and (not active or start_s <= active[0][0]):
            requests = session(started, start_s)
            heapq.heappush(active, (start_s, 0, started, next(requests), requests))
            started += 1
            if started < num_sessions:
                start_s = next(times)
        _, turn, number, request, requests = active[0]
        following = next(requests, None)
        if following is None:
            heapq.heappop(active)
        else:
            heapq.heapreplace(active, (following.arrival_s, turn + 1, number, following, requests))
        yield request
