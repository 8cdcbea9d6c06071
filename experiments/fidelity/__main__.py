"""Equality of the replay with engines: one stream through vLLM's own scheduler and cache, and through mode=replay.

Needs the engines' packages: `make engines`, then `.engines/bin/python -m experiments.fidelity`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from experiments.fidelity.compare import differences, in_replay, in_vllm
from experiments.fidelity.streams import Talk, grown, of_trace, sampled
from experiments.shared import AGENTIC, CONVERSATION, columns, finish, kept, parse, table, trace_path

POLICIES = ("lru", "s3fifo", "sieve", "arc", "hazard", "workload_aware")
LIMITS: dict[str, dict[str, Any]] = {
    "conversation": {"num_blocks": 2_000, "block_size": 512, "max_batch_tokens": 8_192, "max_batch_requests": 32},
    "agentic": {"num_blocks": 4_500, "block_size": 64, "max_batch_tokens": 8_192, "max_batch_requests": 16},
    "synthetic": {"num_blocks": 200, "block_size": 16, "max_batch_tokens": 256, "max_batch_requests": 6},
    "synthetic, preempting": {
        "num_blocks": 60, "block_size": 16, "max_batch_tokens": 8_192, "max_batch_requests": 40, "watermark": 0.05,
    },
}  # fmt: skip

DUPLICATES = ("keep", "merge")
"""What becomes of a content that is computed again: as in vLLM, and as by default here."""

Rows = list[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """All streams, policies and both choices: rows, tables, provenance."""
    options = parse(__doc__, "fidelity", arguments)
    if importlib.util.find_spec("vllm") is None:
        sys.exit("vLLM is not installed here: make engines, then .engines/bin/python -m experiments.fidelity")
    from experiments.fidelity import cost

    paths = [trace_path(CONVERSATION), trace_path(AGENTIC)]
    streams = _streams(options.quick)
    policies = POLICIES[:2] if options.quick else POLICIES
    cells = options.out / "cells"

    def cell(name: str, policy: str | None) -> Rows:
        """The rows of one stream and policy; those of a run that was ended early are not made again."""
        what = name, policy, LIMITS[name], options.quick, version("vllm")
        return list(kept(cells, what, lambda: {"rows": _rows(name, streams[name], policy)})["rows"])

    rows = [row for name in streams for policy in policies for row in cell(name, policy)]
    stock = [row for name in streams for row in cell(name, None)]
    costs = cost.rows_of(
        of_trace(paths[0], 20 if options.quick else 60, longest=32), policies, 3 if options.quick else 7
    )
    tables = {"vllm": _equal(rows), "stock": _stocks(stock), "choices": _choices(rows), "cost": _costs(costs)}
    finish(options, {"vllm": rows, "stock": stock, "cost": costs}, tables, paths,
           vllm=version("vllm"), limits=LIMITS, pool_of_the_cost=cost.NUM_BLOCKS)  # fmt: skip
    return 0


def _streams(quick: bool) -> dict[str, list[Talk]]:
    size, longest = (60, 16) if quick else (400, 48)
    made_up = [*grown(size // 3), *sampled(size // 30, width=4)]
    return {
        "conversation": of_trace(trace_path(CONVERSATION), size, longest=longest),
        "agentic": of_trace(trace_path(AGENTIC), size // 5, longest=longest),
        "synthetic": made_up,
        "synthetic, preempting": made_up,
    }


def _rows(name: str, talks: Sequence[Talk], policy: str | None) -> Rows:
    """The stream in vLLM, and here with each of DUPLICATES.

    Without a policy: vLLM without us, and with `lru` through the connector.
    """
    from experiments.fidelity.vllm_side import hash_scheme

    print(f"{name}, {policy}", file=sys.stderr, flush=True)
    limits = LIMITS[name]
    if policy is None:
        found = differences(in_vllm(talks, None, **limits), in_vllm(talks, "lru", **limits))
        return [{"stream": name, "requests": len(talks), **found}]
    theirs = in_vllm(talks, policy, **limits)
    rows = []
    for duplicates in DUPLICATES:
        ours = in_replay(talks, policy, hash_scheme(), duplicates=duplicates, **limits)
        made = {"stream": name, "requests": len(talks), "policy": policy, "duplicates": duplicates}
        rows.append({**made, **differences(theirs, ours)})
    return rows


_DIFFER = ("steps_that_differ", "requests_that_hit_differently", "preemptions_that_differ", "evictions_that_differ")


def _equal(rows: Rows) -> str:
    return columns([row for row in rows if row["duplicates"] == "keep"], {
        "stream": "{stream}", "requests": "{requests:,}", "policy": "{policy}", "steps": "{num_steps:,}",
        "hit tokens": "{hit_tokens:,}", "preemptions": "{preemptions}", "evictions": "{evictions:,}",
        "differences": lambda row: sum(row[key] for key in _DIFFER),
    })  # fmt: skip


def _stocks(rows: Rows) -> str:
    return columns(rows, {
        "stream": "{stream}", "requests": "{requests:,}", "evictions": "{evictions:,}", "hit tokens": "{hit_tokens:,}",
        "evictions that differ": "{evictions_that_differ}",
        "other differences": lambda row: sum(row[key] for key in _DIFFER[:3]),
    })  # fmt: skip


def _choices(rows: Rows) -> str:
    """Hit tokens here by choice."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cells.setdefault((row["stream"], row["policy"]), {})[row["duplicates"]] = f"{row['hit_tokens_here']:,}"
    header = ("stream", "policy", "duplicates=keep, as vLLM", "duplicates=merge, our default")
    return table(header, [(*key, *(found[one] for one in DUPLICATES)) for key, found in cells.items()])


def _costs(rows: Rows) -> str:
    return columns(rows, {
        "policy": "{policy}", "extra µs a block": "{extra_us_a_block:.1f}", "least": "{least:.1f}",
        "most": "{most:.1f}", "vLLM itself, µs a block": "{vllm_us_a_block:.1f}", "blocks": "{blocks:,}",
        "rounds": "{rounds}",
    })  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
