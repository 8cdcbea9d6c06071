"""Kernel times of one backend over the grid, most telling cells first. One JSON line a cell.

    python experiments/gpu/grid.py BACKEND [--dry-run]

A row carries the driver, the clocks just after it was timed, L2, multiprocessors, and, of Triton, the registers and
spills of the kernels launched. A grid that is stopped has printed every cell that it had done.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from machine import properties, smi

from framework import registry
from framework.config.sections import KernelOptions
from framework.kernel.cells import for_device
from framework.kernel.grid import Grid

_NOTES = {
    "flash_attn": "without FA3, pages below 256 take FA4: it has no split-KV on sm_90, a weak yardstick in decode",
}


def stages(dry: bool) -> list[dict[str, Any]]:
    """Options of `kernel`, in the order in which they are measured."""
    if dry:
        return [{"batch": (2,), "context": (64,), "prefill": (32,), "heads": ("4/2/64",), "budget_s": 0.01}]
    common = {"heads": ("32/8/128",), "budget_s": 0.3}
    return [
        {**common, "batch": (32, 128, 256), "context": (8192,), "prefill": ()},
        {**common, "batch": (1, 32, 128), "context": (2048, 32768), "prefill": ()},
        {**common, "batch": (), "context": (), "prefill": (2048, 8192, 32768)},
        {**common, "batch": (32, 128), "context": (8192,), "prefill": (8192,), "block_size": (64, 256)},
        {**common, "batch": (32, 128), "context": (8192,), "prefill": (), "kv_dtype": ("float8_e4m3fn", "int8")},
        {
            **common,
            "batch": (128,),
            "context": (8192,),
            "prefill": (8192,),
            "heads": ("32/4/128", "64/8/64", "16/8/256"),
        },
    ]


def launched() -> dict[str, list[int]]:
    """Registers and spills of each Triton kernel that this process has launched, by kernel, over its variants."""
    try:
        from framework_builtin.backend.triton_kernels import decode, prefill
        from framework_builtin.backend.triton_kernels.kernels import compiled

        kernels = {"decode": compiled(decode.decode), "prefill": compiled(prefill.prefill)}
    except ImportError:
        return {}
    found: dict[str, list[int]] = {}
    for name, kernel in kernels.items():
        caches = getattr(kernel, "device_caches", {})
        binaries = [binary for entry in list(caches.values()) for binary in getattr(entry[0], "values", list)()]
        for what in ("n_regs", "n_spills"):
            values = {getattr(binary, what, None) for binary in binaries} - {None}
            if values:
                found[f"{name}_{what}"] = sorted(values)
    return found


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
        grid = Grid(make, options.backend, device, for_device(KernelOptions(**words), device, 16), "NHD", origin)
        for row in grid.run():
            statuses.add(row["status"])
            print(json.dumps({**row, **smi(), **launched()}), flush=True)
    return 1 if "failed" in statuses else 0 if statuses - {"unavailable"} else 4


if __name__ == "__main__":
    sys.exit(main())
