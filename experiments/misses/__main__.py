"""The anatomy of misses: what LRU, hazard and the optimum miss on whole traces, and why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

from experiments.shared import AGENTIC, CONVERSATION, finish, parse, trace_path
from framework.registry.components import build_component
from framework_cache_only.paths import RequestPaths, build_paths
from framework_cache_only.reference import replay
from framework_explain.account import AGES, Account, age_of
from framework_explain.replayed_misses import LossLog, explain
from framework_workloads.trace import open_trace

SIZES = {CONVERSATION: (3_000, 10_000, 30_000), AGENTIC: (1_000, 3_000, 10_000)}
POLICIES = ("lru", "hazard", "optimum")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment."""
    options = parse(__doc__, "misses", arguments)
    rows, sums = list[dict[str, Any]](), list[dict[str, Any]]()
    for name, sizes in SIZES.items():
        paths = build_paths(islice(open_trace(trace_path(name)), 500 if options.quick else None))
        for num_blocks in sizes[: 1 if options.quick else None]:
            for policy in POLICIES:
                account = account_of(paths, policy, num_blocks)
                place = {"trace": name.split(".")[0], "num_blocks": num_blocks, "policy": policy}
                rows.append(place | anatomy(account))
                for group, labels in account.evictions.sums().items():
                    sums += [place | {"by": group, "group": label, **row} for label, row in labels.items()]
    finish(options, {"anatomy": rows, "regret": sums}, {}, map(trace_path, SIZES))
    return 0


def account_of(paths: RequestPaths, name: str, num_blocks: int) -> Account:
    """The cache-only replay of one policy."""
    shared = {"num_blocks": num_blocks, "block_size": paths.block_tokens, "seed": 0}
    policy, log = build_component("eviction", name, shared), LossLog()
    counts = replay(paths, policy, num_blocks, bypass=policy.bypass, losses=log)
    return explain(paths, counts.request_hits, log, num_blocks=num_blocks, policy=name)


def anatomy(account: Account) -> dict[str, Any]:
    """One row: blocks by outcome, and of the evicted tokens, their ages and who would have kept them."""
    blocks, lost = account.totals("blocks"), account.evictions
    assert lost.lru_tokens is not None
    assert lost.optimum_tokens is not None
    ages = {f"age_{age_of(low)}": int(lost.tokens[(lost.requests_ago >= low) & (lost.requests_ago < high)].sum())
            for low, high in zip((0, *AGES), (*AGES, 10**9), strict=True)}  # fmt: skip
    return {
        **{f"{outcome.replace(' ', '_')}_blocks": count for outcome, count in blocks.items()
           if outcome in ("hit", "new", "evicted", "unreachable", "declined")},
        "evicted_tokens": int(lost.tokens.sum()), "lru_kept_tokens": int(lost.lru_tokens.sum()),
        "optimum_kept_tokens": int(lost.optimum_tokens.sum()), **ages, "sentence": account.sentence(),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
