"""What mode=kernel writes to a result."""

from framework.results.metric import section, text

kernel = section("kernel")

METRICS = (
    kernel("num_cells", "cells", "", "cells", "Points of the grid: shape, batch, context and kind of work."),
    kernel("cells", "table", "", "cells by status", "How many cells ended how."),
    kernel("ceilings", "table", "", "ceilings", "Bytes/s and FLOP/s of this device, measured in this run."),
    kernel("share_of_ceiling_max", "share", "higher", "best share of its ceiling", "Of all cells, the largest "
           "achieved share of what the ceilings allow.", wall=True),
    kernel("share_of_ceiling_min", "share", "higher", "worst share of its ceiling", "Of all cells, the smallest.",
           wall=True),
    kernel("time_s", "s", "lower", "time", "Geometric mean over cells of the median time of one call.", wall=True),
    kernel("bandwidth_bytes_per_s", "bytes/s", "higher", "bandwidth", "Geometric mean over cells of the least bytes "
           "needed over the time.", wall=True),
    kernel("screen", "table", "", "compiled ahead of time", "Registers, spills and instructions of each compiled "
           "kernel."),
    text("kernel", "device_model", "device model", "The accelerator or processor."),
    text("kernel", "torch", "torch", "Version of torch."),
    text("kernel", "triton", "triton", "Version of triton."),
    text("kernel", "date", "date", "When the run began, UTC."),
)  # fmt: skip
