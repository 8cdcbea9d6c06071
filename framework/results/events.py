"""Names of the events of `events.jsonl`, in logs of either version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def event_kind(event: Mapping[str, Any]) -> str:
    """What happened: `publish` or `evict` of a block, `admit` and the like of a request, `log` for the first line.

    Version 1, which had no first line, called a published block "admit", as it does an admitted request.
    """
    kind = str(event.get("event", ""))
    return "publish" if kind == "admit" and "block" in event else kind
