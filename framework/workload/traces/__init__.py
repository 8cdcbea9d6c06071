"""Readers of request traces, one record type for all formats, and the writer of our own."""

from framework.workload.traces.events import EventWriter, read_events, write_events
from framework.workload.traces.own_format import write_trace
from framework.workload.traces.reader import FORMATS, Trace, detect_format, open_trace
from framework.workload.traces.record import TraceRequest

__all__ = [
    "FORMATS",
    "EventWriter",
    "Trace",
    "TraceRequest",
    "detect_format",
    "open_trace",
    "read_events",
    "write_events",
    "write_trace",
]
