"""Compile the Triton kernels of one chip in several processes; registers and spills of each. One JSON line a kernel.

    python experiments/gpu/precompile.py [--arch sm_90] [--processes 12] [--only decode/] [--dry-run]

What the compiler makes here, ahead of time, is not what a launch looks up in its cache: this shows that every shipped
kernel compiles under the installed triton, and what it takes. Exit status 1 where one does not.
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

from framework_builtin.backend.triton_kernels.aot import Variant, as_dict, compile_variant, shipped_variants


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
    with ProcessPoolExecutor(min(options.processes, len(variants)), mp_context=context) as pool:
        for done in as_completed([pool.submit(compile_one, variant) for variant in variants]):
            row = done.result()
            failed += row["status"] != "ok"
            print(json.dumps(row), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
