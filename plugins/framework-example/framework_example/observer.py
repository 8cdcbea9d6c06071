"""What Greed says of a run: blocks evicted, by the request that needed the room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from framework.interfaces.allocator import CacheEvent
from framework.interfaces.observer import Call, Observer, RunView
from framework.results.metric import Metric

FILE = "greed.jsonl"


class Greed(Observer):
    """The requests whose calls evicted most."""

    files = (FILE,)
    metrics = (
        Metric(
            key="greed_blocks",
            unit="blocks",
            better="lower",
            section="prefix cache",
            title="evicted by the greediest request",
            definition="Blocks that the calls of one request evicted, of the request that evicted most.",
        ),
    )

    def __init__(self, *, most: int = 10) -> None:
        self.most = most
        self.run: RunView | None = None
        self.evicted: Counter[int] = Counter()

    def start(self, run: RunView) -> None:
        self.run = run

    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        if call.request is not None:
            self.evicted[call.request] += sum(len(event.blocks) for event in events if event.kind == "evict")

    def results(self) -> Mapping[str, Any]:
        ranked = self.evicted.most_common(self.most)
        for request, blocks in ranked:
            if self.run is not None:
                self.run.write(FILE, {"request": request, "blocks": blocks})
        return {"greed_blocks": ranked[0][1] if ranked else 0}
