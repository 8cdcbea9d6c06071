"""What a step of `run.py` found, in a few words: for the line that is printed when it ends, and for `compare.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]


def headline(part: str, step: dict[str, Any]) -> str:
    """One clause; empty where the step has nothing that sums it up."""
    rows, summary = step.get("rows", []), _SUMMARIES.get(part)
    if "counts" in step:
        counts = step["counts"]
        return f"{counts['tests']} tests, {counts['failures'] + counts['errors']} failed, {counts['skipped']} skipped"
    return summary(rows) if summary is not None and rows else ""


def _ceilings(rows: Sequence[Row]) -> str:
    return "; ".join(
        f"{dtype} {found['bytes_per_s'] / 1e9:.4g} GB/s, {found['flops_per_s'] / 1e12:.4g} TFLOP/s"
        for row in rows
        for dtype, found in row.get("ceilings", {}).items()
    )


def _replays(rows: Sequence[Row]) -> str:
    judged = [row for row in rows if "ok" in row]
    graphs = sum(bool(row.get("replayed")) for row in judged)
    return f"{sum(row['ok'] for row in judged)} of {len(judged)} within the allowed error, {graphs} from a CUDA graph"


def _kernels(rows: Sequence[Row]) -> str:
    compiled = [row for row in rows if row.get("status") == "ok" and "spills" in row]
    failed = sum(row.get("status") == "failed" for row in rows)
    return f"{len(compiled)} kernels compiled, {sum(row['spills'] > 0 for row in compiled)} spill, {failed} failed"


def _cells(rows: Sequence[Row]) -> str:
    shares = [row["share_of_ceiling"] for row in rows if row.get("share_of_ceiling") is not None]
    without = len(rows) - len(shares)
    rest = f", {without} without a time" if without else ""
    return f"{len(shares)} cells, {min(shares):.0%} to {max(shares):.0%} of the ceiling{rest}" if shares else rest[2:]


def _served(rows: Sequence[Row]) -> str:
    return "; ".join(
        f"{row['output_tokens_per_s']:.4g} tokens/s, {row['timed_compiles']} kernels compiled in the timed pass"
        for row in rows
        if "output_tokens_per_s" in row
    )


def _tiers(rows: Sequence[Row]) -> str:
    links = [
        f"{row['link']}: {'any' if rate is None else format(rate / 1e9, '.3g')} GB/s {key.removesuffix('_bytes_per_s')}"
        for row in rows
        for key, rate in row.items()
        if key in ("read_bytes_per_s", "write_bytes_per_s")
    ]
    slower = [f"copies {row['copies']}: steps {row['slowdown']:+.1%}" for row in rows if "slowdown" in row]
    return ", ".join(links + slower)


def _gains(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row['rows']} rows behind {row['shared']:,}: {row['gain']:.2f} times" for row in rows)


_SUMMARIES: dict[str, Callable[[Sequence[Row]], str]] = {
    "machine": _ceilings,
    "replay": _replays,
    "precompile": _kernels,
    "grid": _cells,
    "shared": _gains,
    "serve": _served,
    "tiers": _tiers,
}
