"""Time and memory of replays over the trace's length. The documented commands, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.shared import AGENTIC, ROOT, columns, finish, panels, parse, save, trace_path

REQUESTS = (1_183, 2_366, 4_732)
"""The trace's first quarter and half, and all of it."""
QUICK_REQUESTS = (32, 64)
BLOCK_SIZE = 64
NUM_BLOCKS = 100_000
MODES = {"cache-only": ("mode=cache_only", "mode.optimum=false"), "full replay": ("mode=replay",)}
COMMAND = (
    "workload=trace", "+allocator=prefix", "+eviction=lru", f"cache.num_blocks={NUM_BLOCKS}",
    f"cache.block_size={BLOCK_SIZE}", "engine.max_model_len=1000000", "run.progress=false",
)  # fmt: skip
GIB = 2**30


def main(arguments: Sequence[str] | None = None) -> int:
    """Every length in both modes, one after the other, so that no run disturbs another."""
    options = parse(__doc__, "scaling", arguments)
    path = trace_path(AGENTIC)
    lengths = QUICK_REQUESTS if options.quick else REQUESTS
    rows = [measured(path, mode, count) for mode in MODES for count in lengths]
    finish(options, {"scaling": rows}, {"scaling": _table(rows)}, [path], words=list(COMMAND))
    x = ("block_references", 1e6, "block references, millions")
    shown = ("cpu_s", 1, "CPU, s"), ("peak_bytes", 2**20, "peak memory, MiB")
    save(panels(rows, "mode", x, *shown, xlim=(0, None), ylim=(0, None)), options, "scaling")
    return 0


def measured(path: Path, mode: str, count: int) -> dict[str, Any]:
    """A replay of the first `count` requests: its counts, CPU time and peak memory."""
    result, costs = replayed([*COMMAND, *MODES[mode], f"workload.path={path}", f"workload.limit={count}"])
    assert result["num_requests"] == count, result
    assert not result.get("num_rejected"), result
    return {
        "mode": mode,
        "requests": count,
        "block_references": result["prompt_blocks"],
        "hit_blocks": result["hit_blocks"],
        "evictions": result["num_evictions"],
        "output_tokens": result.get("output_tokens", ""),
        **costs,
    }


def replayed(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """What `python -m framework.run` with these words says, in a process of its own, and its CPU time and peak
    memory."""
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-m", "framework.run", *words, f"run.dir={folder}/run"],
            cwd=ROOT, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            sys.exit(f"python -m framework.run {' '.join(words)} ended with status {child.returncode}")
        result = json.loads((Path(folder) / "run" / "result.json").read_text())
    return result, {"cpu_s": usage.ru_utime + usage.ru_stime, "peak_bytes": usage.ru_maxrss * 1024}


# What a reader sees


def _table(rows: Sequence[dict[str, Any]]) -> str:
    return columns(rows, {
        "mode": "{mode}", "requests": "{requests:,}", "block references": "{block_references:,}",
        "hit blocks": "{hit_blocks:,}", "evictions": "{evictions:,}", "CPU, s": "{cpu_s:.1f}",
        "peak, MiB": lambda row: f"{row['peak_bytes'] / 2**20:.0f}",
        "of 1 GiB": lambda row: f"{100 * row['peak_bytes'] / GIB:.0f} %",
    })  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
