"""Causes of misses in a report: the accounts that runs left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from framework.errors import FrameworkError, RunDirectoryError, shown
from framework.files.jsonl import JsonObject
from framework.results.console import Table
from framework.results.layout import REQUESTS, RESULT
from framework.results.reading import read_result
from framework_explain.account import HIT, OUTCOMES, REGRET, Account, Evictions, key_of
from framework_workloads.lines import iter_objects

if TYPE_CHECKING:
    from framework_report.records import Run
    from framework_report.study import Study

_KEYS = ("hit_tokens", *(key_of(outcome, "tokens") for outcome in OUTCOMES[HIT + 1 :]))
_LOSS = ("request", "depth", "blocks", "tokens", "evicted_for", "requests_ago", "references_ago", "admission")
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
    except FrameworkError:
        return ""


def read_account(directory: Path) -> Account:
    """The account that a run with observers=[explain] left.

    Blocks are known of the whole run alone: the first request's row holds them all.

    Raises:
        RunDirectoryError: no result, one of a run that did not explain its misses, or a value that no run writes; names
            file and line.
    """
    result, source = read_result(directory), directory / RESULT
    if key_of("new", "tokens") not in result:
        raise RunDirectoryError(f"{directory} does not say why it missed; run it again with observers=[explain]")
    columns = ["cached_tokens", *_KEYS[1:]]
    tokens, requests = list[list[int]](), list[int]()
    for where, row in _lines(directory / REQUESTS):
        if key_of("new", "tokens") in row:
            tokens.append([_count_in(row, column, where, absent=0) for column in columns])
            requests.append(_count_in(row, "request", where))
    blocks = np.zeros((len(tokens), len(OUTCOMES)), dtype=np.int64)
    if len(tokens):
        missed = [key_of(outcome, "blocks") for outcome in OUTCOMES[HIT + 1 :]]
        blocks[0] = [
            _count_in(result, "hit_blocks", source),
            *(_count_in(result, key, source, absent=0) for key in missed),
        ]
    lost = [_checked(row, where) for where, row in _lines(directory / REGRET)] if (directory / REGRET).exists() else []
    return Account(
        blocks=blocks,
        tokens=np.array(tokens, dtype=np.int64).reshape(-1, len(OUTCOMES)),
        evictions=Evictions.of_rows(lost),
        policy=str(result.get("eviction") or ""),
        preempted_tokens=_count_in(result, "missed_preempted_tokens", source, absent=0),
        num_forgotten=_count_in(result, "missed_forgotten_contents", source, absent=0),
        requests=requests,
    )


def _lines(path: Path) -> Iterator[tuple[str, JsonObject]]:
    """(file and line, object) of a run's JSON lines."""
    for number, row in iter_objects(path, RunDirectoryError, drop_partial_last=True):
        yield f"{path}:{number}", row


def _checked(row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """A row of regret.jsonl, as `Evictions.rows` gives it."""
    for key in _LOSS:
        _count_in(row, key, where, least=-1 if key == "evicted_for" else 0)
    for key in ("lru_tokens", "optimum_tokens", "turn"):
        _count_in(row, key, where, absent=0)
    for key in ("tenant", "category"):
        if not isinstance(row.get(key), str | None):
            raise RunDirectoryError(f"{where}: {key} must be a text or null, found {shown(row[key])}")
    return row


_LARGEST = 2**53


def _count_in(
    record: Mapping[str, Any], key: str, where: str | Path, *, least: int = 0, absent: int | None = None
) -> int:
    """A whole number of a run's file.

    Args:
        where: the file, and the line where it has lines, for the error.
        absent: taken where the record has none or null; None: it must have one.

    Raises:
        RunDirectoryError: anything else; names where, key and value.
    """
    value = record.get(key)
    if value is None and absent is not None:
        return absent
    if type(value) is not int or not least <= value <= _LARGEST:
        found = shown(value) if key in record else "none"
        raise RunDirectoryError(f"{where}: {key} must be a whole number of {least} to 2^53, found {found}")
    return value
