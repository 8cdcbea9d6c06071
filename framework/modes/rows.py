"""One line of `requests.jsonl`: who asked, how it went, and what was generated."""

from __future__ import annotations

from typing import Any

from framework.engine.request import Completion, Request
from framework.misses.ledger import Ledger

Row = dict[str, Any]


def request_row(request: Request, *, unit: str = "s", tiers: int = 0, ledger: Ledger | None = None) -> Row:
    """What became of one request, its generated tokens left out.

    Args:
        unit: of the run's clock, which ends the names of the times: "s" or "steps".
        tiers: how many there are below the pool, from which blocks may have come.
        ledger: of the engine, where it has one: the prompt's missed tokens by cause follow.
    """
    loaded: Row = {}
    if tiers:
        by_tier = request.tier_tokens or {}
        loaded = {f"tier{tier}_tokens": by_tier.get(tier, 0) for tier in range(1, tiers + 1)}
        loaded[f"load_{unit}"] = request.load_s
    return {
        "request": request.number,
        "key": request.key,
        "tenant": request.tenant,
        "priority": request.priority,
        "session": request.session,
        "status": request.status.value,
        "reason": request.reason,
        "prompt_tokens": len(request.prompt),
        "cached_tokens": request.num_cached_tokens,
        "output_tokens": sum(len(completion.tokens) for completion in request.completions),
        "recomputed_tokens": request.num_recomputed_tokens,
        "preemptions": request.num_preemptions,
        f"arrival_{unit}": request.arrival_s,
        f"first_token_{unit}": request.first_token_s,
        f"finished_{unit}": request.finished_s,
        **loaded,
        **(ledger.row(request.number) if ledger is not None else {}),
    }


def completion_rows(request: Request) -> list[Row]:
    """What a model generated for one request: text, tokens and, where they were asked for, log-probabilities."""
    return [_completion(completion) for completion in request.completions]


def _completion(completion: Completion) -> Row:
    row: Row = {
        "text": completion.text,
        "tokens": completion.tokens,
        "finish_reason": completion.finish_reason,
        "logprob": completion.cumulative_logprob,
    }
    if completion.logprobs is not None:
        row["token_logprobs"] = [position.chosen for position in completion.logprobs]
        row["top_logprobs"] = [[list(pair) for pair in position.top] for position in completion.logprobs]
    return row
