"""Readers of request traces, each an installed format, and the writer of our own."""

from framework.interfaces.workload import WorkloadRequest
from framework.workload.traces.own_format import write_trace
from framework.workload.traces.reader import Trace, detect_format, formats, open_trace

TraceRequest = WorkloadRequest
"""The name of a trace's request in version 0.1."""

__all__ = ["Trace", "TraceRequest", "WorkloadRequest", "detect_format", "formats", "open_trace", "write_trace"]
