"""The result keys of KV events: of what a run sent, and of a recorded stream that it replayed."""

from __future__ import annotations

from framework.results.metric import Metric, never, section, text

event = section("KV events")

METRICS: tuple[Metric, ...] = (
    event("kv_event_batches", "batches", "", "batches",
          "Batches of KV events passed on: steps in which the cache changed."),
    event("kv_event_removed_blocks", "blocks", "", "blocks removed", "Blocks in BlockRemoved events."),
    event("kv_event_dropped_batches", "batches", "lower", "batches lost",
          "Batches that were not sent because 100,000 others waited; subscribers see the gap.", hide_zero=True),
    event("kv_event_failed_batches", "batches", "lower", "batches failed",
          "Batches or replies that could not be sent.", hide_zero=True),
    event("recorded_hit_rate", "share", "higher", "recorded hit rate",
          "`recorded_hit_blocks` / `recorded_prompt_blocks`.", note="in the engine"),
    event("recorded_hit_blocks", "blocks", "higher", "recorded blocks hit",
          "Full blocks of prompts, as far as the events show them, that were there when their request began.",
          of="recorded_prompt_blocks"),
    event("recorded_prompt_blocks", "blocks", "", "recorded prompt blocks",
          "Full blocks of prompts that the events show."),
    event("recorded_stored_blocks", "blocks", "", "recorded blocks stored",
          "Blocks stored, reports of hits not counted."),
    event("recorded_lost_blocks", "blocks", "lower", "recorded blocks lost",
          "Blocks stored that had been there and were removed: computed again.", of="recorded_stored_blocks"),
    event("recorded_duplicate_blocks", "blocks", "lower", "recorded blocks duplicated",
          "Blocks stored whose content another block held already.", of="recorded_stored_blocks"),
    event("recorded_removed_blocks", "blocks", "", "recorded blocks removed", "Blocks removed; clears not counted."),
    event("recorded_peak_blocks", "blocks", "", "recorded peak",
          "Most contents that were there at the end of a batch."),
    event("recorded_final_blocks", "blocks", "", "recorded blocks at the end",
          "Contents that were there at the end of the stream.", when=never),
    event("recorded_stored_by_medium", "table", "", "recorded stores by medium", "Blocks stored in each medium.",
          when=never),
    event("recorded_gaps", "gaps", "lower", "recorded gaps", "Gaps in the numbers of batches.", hide_zero=True),
    event("recorded_missing_batches", "batches", "lower", "recorded batches missing",
          "Batches in those gaps; after one, the pool is rebuilt from what comes.", hide_zero=True),
    text("KV events", "kv_event_endpoint", "sent from", "Address that KV events were sent from."),
    text("KV events", "kv_event_error", "first failure", "Why the first batch or reply could not be sent."),
)  # fmt: skip
