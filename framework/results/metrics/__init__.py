"""The declarations of result keys, a file for what belongs together."""

from framework.results.metrics import cache, events, kernel, memory, requests, run

DECLARED = (
    *run.METRICS, *cache.METRICS, *requests.METRICS, *memory.METRICS, *events.METRICS, *kernel.METRICS,
)  # fmt: skip
"""In the order of docs/results.md and of the table a run ends with."""
