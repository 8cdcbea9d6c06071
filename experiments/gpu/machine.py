"""First part of a GPU run: the device, its driver and clocks, and its measured ceilings. One JSON line.

python experiments/gpu/machine.py [--dry-run]
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import torch

from framework.kernel.grid import measure

QUERIES = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit", "temperature.gpu")


def smi() -> dict[str, str]:
    """What nvidia-smi says of the first device now; empty where it cannot be asked."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERIES)}", "--format=csv,noheader", "-i", "0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found = done.stdout.strip().split("\n")[0].split(", ")
    return dict(zip(QUERIES, found, strict=True)) if done.returncode == 0 and len(found) == len(QUERIES) else {}


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


def main() -> int:
    """Print it."""
    dry = "--dry-run" in sys.argv[1:]
    facts = {**properties(), **smi()}
    dtypes = ("float32",) if dry else ("bfloat16", "float16", "float32")
    facts["ceilings"] = {
        dtype: asdict(measure("cpu" if dry else "cuda", dtype, 0.01 if dry else 1.0)) for dtype in dtypes
    }
    print(json.dumps(facts), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
