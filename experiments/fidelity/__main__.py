"""Fidelity of replay to engines: the same streams through vLLM's scheduler and cache, SGLang's tree, and mode=replay.

Needs the engines' packages: `make engines`, then `.engines/bin/python -m experiments.fidelity`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from experiments.fidelity.compare import DEFAULTS, OF_VLLM, differences, in_replay, in_vllm
from experiments.fidelity.streams import Talk, grown, of_trace, sampled
from experiments.shared import AGENTIC, CONVERSATION, parse, publish, table, trace_path, write_provenance, write_rows

POLICIES = ("lru", "s3fifo", "sieve", "arc", "hazard", "workload_aware")
LIMITS: dict[str, dict[str, Any]] = {
    "conversation": {"num_blocks": 2_000, "block_size": 512, "max_batch_tokens": 8_192, "max_batch_requests": 32},
    "agentic": {"num_blocks": 6_000, "block_size": 64, "max_batch_tokens": 8_192, "max_batch_requests": 16},
    "synthetic": {"num_blocks": 200, "block_size": 16, "max_batch_tokens": 256, "max_batch_requests": 6},
    "synthetic, preempting": {
        "num_blocks": 60, "block_size": 16, "max_batch_tokens": 8_192, "max_batch_requests": 40, "watermark": 0.05,
    },
}  # fmt: skip

Rows = list[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """All streams, policies and both sets of choices: rows, tables, provenance."""
    options = parse(__doc__, "fidelity", arguments)
    if importlib.util.find_spec("vllm") is None:
        sys.exit("vLLM is not installed here: make engines, then .engines/bin/python -m experiments.fidelity")
    from experiments.fidelity import cost

    paths = [trace_path(CONVERSATION), trace_path(AGENTIC)]
    streams = _streams(options.quick)
    policies = POLICIES[:2] if options.quick else POLICIES
    rows = [row for name, talks in streams.items() for policy in policies for row in _rows(name, talks, policy)]
    stock = [_stock(name, talks) for name, talks in streams.items()]
    costs = cost.rows_of(
        of_trace(paths[0], 20 if options.quick else 120, longest=32), policies, 3 if options.quick else 7
    )
    write_rows(options.out / "vllm.csv", rows)
    write_rows(options.out / "stock.csv", stock)
    write_rows(options.out / "cost.csv", costs)
    write_provenance(options, paths, vllm=version("vllm"), limits=LIMITS, pool_of_the_cost=cost.NUM_BLOCKS)
    publish(options, {"vllm": _equal(rows), "stock": _stocks(stock), "choices": _choices(rows), "cost": _costs(costs)})
    return 0


def _streams(quick: bool) -> dict[str, list[Talk]]:
    size = 60 if quick else 1_500
    return {
        "conversation": of_trace(trace_path(CONVERSATION), size, longest=10**9 if not quick else 16),
        "agentic": of_trace(trace_path(AGENTIC), size // 4, longest=256 if not quick else 16),
        "synthetic": [*grown(size // 5), *sampled(size // 30, width=4)],
        "synthetic, preempting": [*grown(size // 5), *sampled(size // 30, width=4)],
    }


def _rows(name: str, talks: Sequence[Talk], policy: str) -> Rows:
    """The stream in vLLM, and here with vLLM's choices, with ours, and with one of each."""
    from experiments.fidelity.vllm_side import hash_scheme

    print(f"{name}, {policy}", file=sys.stderr, flush=True)
    limits = LIMITS[name]
    theirs = in_vllm(talks, policy, **limits)
    rows = []
    for choices in (OF_VLLM, {**OF_VLLM, "duplicates": "merge"}, {**OF_VLLM, "scheduling": "admit_first"}, DEFAULTS):
        ours = in_replay(talks, policy, hash_scheme(), choices=choices, **limits)
        rows.append({"stream": name, "requests": len(talks), "policy": policy, **choices, **differences(theirs, ours)})
    return rows


def _stock(name: str, talks: Sequence[Talk]) -> dict[str, Any]:
    """vLLM without us, and with `lru` through the connector."""
    stock, ours = in_vllm(talks, None, **LIMITS[name]), in_vllm(talks, "lru", **LIMITS[name])
    return {"stream": name, "requests": len(talks), **differences(stock, ours)}


_DIFFER = ("steps_that_differ", "requests_that_hit_differently", "preemptions_that_differ", "evictions_that_differ")


def _equal(rows: Rows) -> str:
    chosen = [row for row in rows if {key: row[key] for key in OF_VLLM} == OF_VLLM]
    header = ("stream", "requests", "policy", "steps", "hit tokens", "preemptions", "evictions", "differences")
    return table(header, [(*_counts(row), sum(row[key] for key in _DIFFER)) for row in chosen])


def _counts(row: dict[str, Any]) -> tuple[Any, ...]:
    return (
        row["stream"], f"{row['requests']:,}", row["policy"], f"{row['num_steps']:,}", f"{row['hit_tokens']:,}",
        row["preemptions"], f"{row['evictions']:,}",
    )  # fmt: skip


def _stocks(rows: Rows) -> str:
    header = ("stream", "requests", "evictions", "hit tokens", "evictions that differ", "other differences")
    return table(
        header,
        [
            (row["stream"], f"{row['requests']:,}", f"{row['evictions']:,}", f"{row['hit_tokens']:,}",
             row["evictions_that_differ"], sum(row[key] for key in _DIFFER[:3]))
            for row in rows
        ],
    )  # fmt: skip


def _choices(rows: Rows) -> str:
    """Hit tokens here by choice, where any choice makes a difference."""
    cells: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        cells.setdefault((row["stream"], row["policy"]), [f"{row['hit_tokens']:,}"]).append(
            f"{row['hit_tokens_here']:,}"
        )
    header = ("stream", "policy", "vLLM", "its choices", "merge", "admit_first", "both, our defaults")
    return table(header, [(*key, *values) for key, values in cells.items()])


def _costs(rows: Rows) -> str:
    header = ("policy", "extra µs a block", "least", "most", "vLLM itself, µs a block", "blocks", "rounds")
    return table(
        header,
        [
            (row["policy"], f"{row['extra_us_a_block']:.1f}", f"{row['least']:.1f}", f"{row['most']:.1f}",
             f"{row['vllm_us_a_block']:.1f}", f"{row['blocks']:,}", row["rounds"])
            for row in rows
        ],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
