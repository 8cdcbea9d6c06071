"""Names of the files in a run directory and in a sweep's folder."""

from framework import registry

CONFIG, PROVENANCE, RESULT = "config.yaml", "provenance.json", "result.json"
METRICS, EVENTS, REQUESTS = "metrics.jsonl", "events.jsonl", "requests.jsonl"
JOB, FAILURE = "job.json", "failure.json"
RECORDING = "recording.jsonl"
SWEEP, JOURNAL = "multirun.yaml", "search.journal"
LOCK, MARK = "lock", ".run-directory"
REPORT = ".report"  # lies where a report was written, whose files the next report replaces
_OF_A_RUN = (RESULT, FAILURE, CONFIG, PROVENANCE, METRICS, EVENTS, REQUESTS, RECORDING)


def files_of_a_run() -> tuple[str, ...]:
    """What a run writes, and what the next one in the same directory removes; the result first."""
    return (*_OF_A_RUN, *registry.declared("files"))
