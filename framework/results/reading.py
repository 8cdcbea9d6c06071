"""Reading a run's JSON files, and whether a result means that the run failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.errors import RunDirectoryError
from framework.results.catalogue import catalogue
from framework.results.layout import RESULT


def read_result(directory: str | Path) -> dict[str, Any]:
    """The `result.json` of a run.

    Raises:
        RunDirectoryError: none there (the run did not finish), or not readable.
    """
    return _read_object(Path(directory) / RESULT)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file, or None where there is none that can be read."""
    try:
        return _read_object(path)
    except RunDirectoryError:
        return None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as fault:
        raise RunDirectoryError(f"{path} is missing: the run did not finish") from fault
    except (OSError, ValueError, RecursionError) as fault:
        raise RunDirectoryError(f"{path} cannot be read: {fault}") from fault
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path} holds {type(value).__name__}, not an object")
    return value


def what_went_wrong(result: Mapping[str, Any]) -> str:
    """A run that ended is still a failure when a request failed, none was served, or tokens are wrong."""
    reasons = []
    if result.get("status", "ok") != "ok":
        listed = result.get("reasons")
        why = f": {listed[0]}" if isinstance(listed, list) and listed else ""
        reasons.append(f"the run's status is {result['status']!r}{why}")
    if result.get("num_failed"):
        first = f" (the first: {result['first_failure']})" if result.get("first_failure") else ""
        reasons.append(f"{result['num_failed']} requests failed{first}")
    elif result.get("num_rejected") and not result.get("num_finished") and not result.get("num_cancelled"):
        reasons.append(f"all {result['num_rejected']} requests were rejected; requests.jsonl says why")
    reasons += [f"{one.fails}: {result[one.key]}" for one in catalogue().values() if one.fails and result.get(one.key)]
    if result.get("loss_exceeded"):
        lost, declared = result.get("attention_error"), result.get("attention_error_declared")
        more = f"lost more than the backend declares: {lost:.2g} of the largest value, declared {declared or 0:.2g}"
        reasons.append(
            f"the attention of {result['loss_exceeded']} requests {'is not finite' if declared is None else more}"
        )
    if result.get("dense_mismatches"):
        reasons.append(f"{result['dense_mismatches']} requests differ from the dense model")
    return " and ".join(reasons)
