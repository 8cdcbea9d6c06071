"""What a replay that counts hits alone writes to a result."""

from __future__ import annotations

from framework.results.metric import section, text

optimum, measured = section("optimum"), section("speed", wall=True)

METRICS = (
    optimum("gap_to_optimum", "share", "lower", "gap to the optimum by blocks",
            "(The policy's misses - the optimum's) / the optimum's misses, in blocks; 0 is optimal.",
            note="more missed blocks"),
    optimum("optimum_hit_blocks", "blocks", "", "hits of the optimum",
            "Prompt blocks that the offline optimum of this capacity hits.", of="prompt_blocks"),
    optimum("pinned_optimum_hit_blocks", "blocks", "", "hits of the pinned optimum",
            "Prompt blocks that the offline optimum hits when the request at hand holds its blocks.",
            of="prompt_blocks"),
    text("optimum", "optimum_rules", "optimum's rules", "Rules that the optimum was bound by."),
    optimum("optimum_hit_rate", "share", "", "hit rate of the optimum",
            "Prompt tokens that the offline optimum of this capacity hits over prompt tokens."),
    optimum("optimum_hit_rate_blocks", "share", "", "the same by blocks", "Prompt blocks that it hits over prompt "
            "blocks."),
    optimum("infinite_hit_rate", "share", "", "hit rate without evictions",
            "Prompt tokens that a cache that never evicts hits over prompt tokens."),
    optimum("infinite_hit_blocks", "blocks", "", "hits without evictions",
            "Prompt blocks that a cache that never evicts hits.", of="prompt_blocks"),
    optimum("unique_blocks", "blocks", "", "distinct blocks", "Distinct blocks of the trace: its working set."),
    measured("count_s", "s", "lower", "counted in", "Wall time of counting hits, reading the trace excepted."),
    text("speed", "replay_core", "replay core", "Which core counted: see docs/traces.md."),
)  # fmt: skip
