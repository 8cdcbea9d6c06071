"""The kind of plugin that this package opens: readers of traces."""

from framework.registry import Kind

TRACE = Kind(
    "trace",
    "framework_workloads.trace.format:TraceReader",
    is_group=False,
    chosen="workload.format={name}",
    command="python -m framework trace describe FILE --format {name}",
)
