"""Causes of misses in a report: the accounts that runs left."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from framework.errors import FrameworkError, RunDirectoryError
from framework.files.jsonl import read_jsonl
from framework.results.console import Table
from framework.results.layout import REQUESTS
from framework.results.reading import read_result
from framework.results.records import Run
from framework_explain.account import HIT, OUTCOMES, REGRET, Account, Evictions, key_of
from framework_report.study import Study

_KEYS = ("hit_tokens", *(key_of(outcome, "tokens") for outcome in OUTCOMES[HIT + 1 :]))
_MOST_RUNS = 20


def misses(study: Study) -> Table:
    """Shares of prompt tokens by what became of them, a row a run that explained its misses, the best first."""
    runs = [setting.runs[0] for _, setting in study.ranked if key_of("new", "tokens") in setting.runs[0].result]
    counts = np.array([[run.number(key) or 0.0 for key in _KEYS] for run in runs[:_MOST_RUNS]]).reshape(-1, len(_KEYS))
    shown, shares = np.flatnonzero(counts.any(axis=0)), 100 * counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    rows = [[run.name, *(f"{share:.1f}" for share in row[shown])] for run, row in zip(runs, shares, strict=False)]
    header = ["% of prompt tokens", *(OUTCOMES[place] for place in shown)]
    return Table("Why prompt tokens were missed", header, rows, _sentence_of(runs[0]) if runs else "")


def _sentence_of(run: Run) -> str:
    """A run's account in one sentence; empty where its files do not give one: that must not cost the report."""
    try:
        return f"{run.name}: {read_account(run.path).sentence()}."
    except (FrameworkError, OSError, ValueError, TypeError, KeyError):
        return ""


def read_account(directory: Path) -> Account:
    """The account that a run with observers=[explain] left.

    Blocks are known of the whole run alone: the first request's row holds them all.

    Raises:
        RunDirectoryError: no result, or one of a run that did not explain its misses.
    """
    result = read_result(directory)
    if key_of("new", "tokens") not in result:
        raise RunDirectoryError(f"{directory} does not say why it missed; run it again with observers=[explain]")
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
