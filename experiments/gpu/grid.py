"""Kernel times of one backend over the grid, most telling cells first. One JSON line a cell.

    python experiments/gpu/grid.py BACKEND [--dry-run]

A row carries the device, its driver, and its clocks just after the cell was timed. A grid that is stopped has printed
every cell that it had done.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial
from typing import Any

import torch

from framework import registry
from framework_testing.kernel.cells import for_device
from framework_testing.kernel.grid import Grid
from framework_testing.kernel.plugin import KernelOptions

QUERIES = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit", "temperature.gpu")
_NOTES = {
    "flash_attn": "without FA3, pages below 256 take FA4: it has no split-KV on sm_90, a weak yardstick in decode",
}


def stages(dry: bool) -> list[dict[str, Any]]:
    """Options of `kernel`, in the order in which they are measured."""
    if dry:
        return [{"batch": (2,), "context": (64,), "prefill": (32,), "heads": ("4/2/64", "4/64+16"), "budget_s": 0.01}]
    common = {"heads": ("32/8/128",), "budget_s": 0.3}
    return [
        {**common, "batch": (32, 128, 256), "context": (8192,), "prefill": ()},
        {**common, "batch": (1, 32, 128), "context": (2048, 32768), "prefill": ()},
        {**common, "batch": (), "context": (), "prefill": (2048, 8192, 32768)},
        {**common, "batch": (32, 128), "context": (8192,), "prefill": (8192,), "block_sizes": (64, 256)},
        {**common, "batch": (32, 128), "context": (8192,), "prefill": (), "kv_dtype": ("float8_e4m3fn", "int8")},
        {
            **common,
            "batch": (128,),
            "context": (8192,),
            "prefill": (8192,),
            "heads": ("32/4/128", "64/8/64", "16/8/256"),
        },
        {**common, "batch": (32, 128), "context": (8192,), "prefill": (8192,), "heads": ("16/512+64", "128/512+64")},
    ]


def properties() -> dict[str, Any]:
    """What torch says of the first CUDA device; its runtime alone without one."""
    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0]}
    if not torch.cuda.is_available():
        return facts
    device = torch.cuda.get_device_properties(0)
    return facts | {
        "device": device.name,
        "arch": f"sm_{device.major}{device.minor}",
        "num_sms": device.multi_processor_count,
        "l2_bytes": device.L2_cache_size,
        "memory_bytes": device.total_memory,
    }


def smi() -> dict[str, str]:
    """What nvidia-smi says of the first device now; empty where it cannot be asked."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERIES)}", "--format=csv,noheader", "-i", "0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(QUERIES, done.stdout.strip().split("\n")[0].split(", "), strict=True))


def main() -> int:
    """Print rows; 1 when a cell is wrong, 4 when none can run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("--dry-run", action="store_true", help="one small cell each of decode and prefill, on the CPU")
    options = parser.parse_args()
    device = "cpu" if options.dry_run else "cuda"
    make = partial(registry.build, "backend", options.backend, {}, {})
    origin = {**properties(), **({"note": _NOTES[options.backend]} if options.backend in _NOTES else {})}
    statuses = set()
    for words in stages(options.dry_run):
        grid = Grid(make, options.backend, device, for_device(KernelOptions(**words), device, 16), "NHD", origin=origin)
        for row in grid.run():
            statuses.add(row["status"])
            print(json.dumps({**row, **smi()}), flush=True)
    return 1 if "failed" in statuses else 0 if statuses - {"unavailable"} else 4


if __name__ == "__main__":
    sys.exit(main())
