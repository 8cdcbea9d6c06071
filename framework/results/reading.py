"""Reading a run's JSON files, and whether a result means that the run failed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.errors import RunDirectoryError, shown
from framework.files.jsonl import JsonObject, read_object
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


def _read_object(path: Path) -> JsonObject:
    if not path.exists():
        raise RunDirectoryError(f"{path} is missing: the run did not finish")
    return read_object(path, RunDirectoryError)


FAILED_REQUESTS, FAULTY = "failed_requests", "faulty"
"""What a run's status is that came to its end and is no good result: requests failed, or something else went wrong."""


def status_at_the_end(measured: Mapping[str, Any]) -> str:
    """The status of a run that came to its end and measured this: `ok` only where nothing went wrong."""
    if _failed_requests(measured):
        return FAILED_REQUESTS
    return FAULTY if what_went_wrong(measured) else "ok"


def what_went_wrong(result: Mapping[str, Any]) -> str:
    """A run that ended is still a failure when a request failed, none was served, or tokens are wrong."""
    reasons = []
    if result.get("status", "ok") not in ("ok", FAILED_REQUESTS, FAULTY):
        listed = result.get("reasons")
        why = f": {listed[0]}" if isinstance(listed, list) and listed else ""
        reasons.append(f"the run's status is {result['status']!r}{why}")
    if failed := _failed_requests(result):
        reasons.append(failed)
    elif result.get("first_failure") and not result.get("num_failed"):
        reasons.append(f"a plugin failed: {result['first_failure']}")
    reasons += [f"{one.fails}: {result[one.key]}" for one in catalogue().values() if one.fails and result.get(one.key)]
    if result.get("loss_exceeded"):
        lost, declared = result.get("attention_error"), result.get("attention_error_declared")
        more = f"lost more than the backend declares: {_short(lost)} of the largest value, declared {_short(declared)}"
        reasons.append(
            f"the attention of {result['loss_exceeded']} requests {'is not finite' if declared is None else more}"
        )
    if result.get("dense_mismatches"):
        reasons.append(f"{result['dense_mismatches']} requests differ from the dense model")
    if result.get("status") in (FAILED_REQUESTS, FAULTY) and not reasons:
        reasons.append(f"the run's status is {result['status']!r}")
    return " and ".join(reasons)


def _short(value: Any) -> str:
    return f"{value or 0:.2g}" if isinstance(value, int | float | None) else shown(value)


def _failed_requests(result: Mapping[str, Any]) -> str:
    if result.get("num_failed"):
        first = f" (the first: {result['first_failure']})" if result.get("first_failure") else ""
        return f"{result['num_failed']} requests failed{first}"
    if result.get("num_rejected") and not result.get("num_finished") and not result.get("num_cancelled"):
        return f"all {result['num_rejected']} requests were rejected; requests.jsonl says why"
    return ""
