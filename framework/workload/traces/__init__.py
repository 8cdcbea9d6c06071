"""Readers of request traces, each an installed format, and the writer of our own."""

from framework.interfaces.workload import WorkloadRequest
from framework.workload.traces.reader import Trace, detect_format, formats, open_trace

__all__ = ["Trace", "WorkloadRequest", "detect_format", "formats", "open_trace"]
