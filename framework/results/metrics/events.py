"""KV events passed on."""

from __future__ import annotations

from framework.results.metric import Metric
from framework.results.metrics.declare import section, text

event = section("KV events")

METRICS: tuple[Metric, ...] = (
    event("kv_event_batches", "batches", "", "batches",
          "Batches of KV events passed on: steps in which the cache changed."),
    event("kv_event_stored_blocks", "blocks", "", "blocks stored",
          "Blocks in BlockStored events, those reported as hits included where kv_events.report_hits asks for them."),
    event("kv_event_removed_blocks", "blocks", "", "blocks removed", "Blocks in BlockRemoved events."),
    event("kv_event_clears", "events", "", "clears", "AllBlocksCleared events.", hide_zero=True),
    event("kv_event_dropped_batches", "batches", "lower", "batches lost",
          "Batches that were not sent because kv_events.max_queue_size others waited; subscribers see the gap.",
          hide_zero=True),
    event("kv_event_failed_batches", "batches", "lower", "batches failed", "Batches or replies that could not be sent.",
          hide_zero=True),
    text("KV events", "kv_event_endpoint", "sent from", "Address that KV events were sent from."),
    text("KV events", "kv_event_error", "first failure", "Why the first batch or reply could not be sent."),
)  # fmt: skip
