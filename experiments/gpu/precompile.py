"""Compile the Triton kernels of one chip in several processes. One JSON line a kernel, then one a shape of attention.

    python experiments/gpu/precompile.py [--arch sm_90] [--processes 12] [--only decode/] [--dry-run]

First all that `grid` and `serve` launch, into the cache that launches look into (TRITON_CACHE_DIR): there they compile
nothing any more. Then every shipped kernel, with registers and spills. Exit status 1 where one does not compile.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from framework.interfaces.backend import AttentionSpec
from framework_builtin.backend.triton_kernels.aot import as_dict, compile_variant
from framework_builtin.backend.triton_kernels.precompile import precompile
from framework_builtin.backend.triton_kernels.variants import Variant, shipped_variants

LAUNCHED: tuple[dict[str, Any], ...] = (
    {"num_heads": 32}, {"num_heads": 16}, {"num_heads": 32, "block_size": 64}, {"num_heads": 32, "block_size": 256},
    {"num_heads": 32, "kv_dtype": "float8_e4m3fn"}, {"num_heads": 32, "kv_dtype": "int8"},
    {"num_heads": 32, "num_kv_heads": 4}, {"num_heads": 64, "head_dim": 64}, {"num_heads": 16, "head_dim": 256},
)  # fmt: skip
"""Shapes that `grid` (in its order) and `serve` (16 heads: Qwen3-0.6B) launch, beside the usual 8 kv heads of 128."""


def fill(changes: dict[str, Any], arch: str) -> dict[str, Any]:
    """Compile what one shape launches, into the cache; how much that was, or the compiler's last line."""
    start = time.perf_counter()
    usual: dict[str, Any] = {"num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16", "block_size": 16}
    try:
        counts = precompile(AttentionSpec(**(usual | changes)), arch)
        found: dict[str, Any] = {"status": "ok", "compiled": len(counts.compiled), "found": len(counts.found)}
    except Exception as error:
        found = {"status": "failed", "reason": f"{type(error).__name__}: {str(error).strip()[-300:]}"}
    return {"launches_of": usual | changes, **found, "compile_s": round(time.perf_counter() - start, 2)}


def compile_one(variant: Variant) -> dict[str, Any]:
    """Its resources, or the compiler's last line."""
    start = time.perf_counter()
    try:
        found: dict[str, Any] = {"status": "ok", **as_dict(compile_variant(variant))}
    except Exception as error:
        found = {"status": "failed", "reason": f"{type(error).__name__}: {str(error).strip()[-300:]}"}
    return {"kernel": variant.name, **found, "compile_s": round(time.perf_counter() - start, 2)}


def main() -> int:
    """Compile all; the first rows are printed first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--only", default="")
    parser.add_argument("--dry-run", action="store_true", help="one kernel")
    options = parser.parse_args()
    os.environ.pop("TRITON_INTERPRET", None)
    variants = [variant for variant in shipped_variants((options.arch,)) if options.only in variant.name]
    variants = variants[-1:] if options.dry_run else variants
    context, failed = multiprocessing.get_context("spawn"), 0
    shapes = () if options.dry_run or options.only else LAUNCHED
    with ProcessPoolExecutor(min(options.processes, len(shapes) + len(variants)), mp_context=context) as pool:
        jobs = [pool.submit(fill, changes, options.arch) for changes in shapes]
        jobs += [pool.submit(compile_one, variant) for variant in variants]
        for done in as_completed(jobs):
            row = done.result()
            failed += row["status"] != "ok"
            print(json.dumps(row), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
