"""Causes of misses in a report: the accounts that runs left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from framework.errors import FrameworkError, RunDirectoryError
from framework.files.jsonl import read_jsonl
from framework.misses.account import HIT, OUTCOMES, Account, Evictions, key_of
from framework.results.layout import REGRET, REQUESTS
from framework.results.reading import read_result


def counts_of(result: Mapping[str, Any]) -> dict[str, int]:
    """Outcome -> prompt tokens, as a run's result says; empty of a run that did not explain its misses."""
    if key_of("new", "tokens") not in result:
        return {}
    missed = {outcome: int(result.get(key_of(outcome, "tokens")) or 0) for outcome in OUTCOMES[HIT + 1 :]}
    return {OUTCOMES[HIT]: int(result.get("hit_tokens") or 0), **missed}


def sentence_of(directory: Path) -> str:
    """A run's account in one sentence; empty where its files do not give one: that must not cost the report."""
    try:
        return read_account(directory).sentence()
    except (FrameworkError, OSError, ValueError, TypeError, KeyError):
        return ""


def read_account(directory: Path) -> Account:
    """The account that a run with run.explain=true left.

    Blocks are known of the whole run alone: the first request's row holds them all.

    Raises:
        RunDirectoryError: no result, or one of a run that did not explain its misses.
    """
    result = read_result(directory)
    if key_of("new", "tokens") not in result:
        raise RunDirectoryError(f"{directory} does not say why it missed; run it again with run.explain=true")
    rows = [row for row in read_jsonl(directory / REQUESTS) if key_of("new", "tokens") in row]
    columns = ["cached_tokens", *(key_of(outcome, "tokens") for outcome in OUTCOMES if outcome != "hit")]
    tokens = np.array([[row.get(column) or 0 for column in columns] for row in rows], dtype=np.int64)
    blocks = np.zeros((len(rows), len(OUTCOMES)), dtype=np.int64)
    if len(rows):
        blocks[0] = [
            result["hit_blocks"],
            *(result.get(key_of(o, "blocks"), 0) for o in OUTCOMES if o != OUTCOMES[HIT]),
        ]
    regret = directory / REGRET
    lost = read_jsonl(regret) if regret.exists() else []
    return Account(
        blocks=blocks,
        tokens=tokens.reshape(-1, len(OUTCOMES)),
        evictions=Evictions.of_rows(lost),
        policy=str(result.get("eviction") or ""),
        preempted_tokens=int(result.get("missed_preempted_tokens") or 0),
        num_forgotten=int(result.get("missed_forgotten_contents") or 0),
        requests=[int(row["request"]) for row in rows],
    )
