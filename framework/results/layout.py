"""Names of the files in a run directory and in a sweep's folder."""

CONFIG, PROVENANCE, RESULT = "config.yaml", "provenance.json", "result.json"
METRICS, EVENTS, REQUESTS = "metrics.jsonl", "events.jsonl", "requests.jsonl"
KERNEL, ROOFLINE = "kernel.jsonl", "roofline.png"
JOB, FAILURE = "job.json", "failure.json"
ROOFLINE_SVG, RECORDING = "roofline.svg", "recording.jsonl"
SWEEP, JOURNAL = "multirun.yaml", "search.journal"
LOCK, MARK = "lock", ".run-directory"
REPORT = ".report"  # lies where a report was written, whose files the next report replaces
OF_A_RUN = (
    RESULT, FAILURE, CONFIG, PROVENANCE, METRICS, EVENTS, REQUESTS, KERNEL, ROOFLINE, ROOFLINE_SVG, RECORDING,
)  # fmt: skip
"""What a run writes, and what the next one in the same directory removes, with the files that plugins declare; the
result first."""
