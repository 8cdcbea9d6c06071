"""Trace formats, and what opens a trace of any installed format."""

from framework_workloads.trace.reader import Trace, detect_format, formats, open_trace

__all__ = ["Trace", "detect_format", "formats", "open_trace"]
