"""The table that a cache-only run ends with."""

import io

from framework.results.console import print_result


def test_a_cache_only_run_leads_with_its_hit_rate_and_the_gap_to_the_optimum() -> None:
    result = {
        "status": "ok", "mode": "replay", "executor": "cache_only", "eviction": "lru", "workload": "trace", "seed": 0,
        "num_blocks": 10_000, "block_size": 512, "num_requests": 12_031, "hit_rate": 0.2, "gap_to_optimum": 0.3248,
        "optimum_hit_blocks": 84_953, "prompt_blocks": 288_500, "num_evictions": 9, "replay_core": "python",
    }  # fmt: skip
    file = io.StringIO()
    print_result(result, file=file)
    lines = file.getvalue().splitlines()
    assert lines[0] == "replay cache_only: trace lru"
    shares = [line.split("  ")[1].strip() for line in lines if "%" in line]
    assert shares == ["hit rate", "gap to the optimum by blocks"], lines
    assert next(line.strip() for line in lines if line.strip().startswith("requests")) == "requests", "the heading"
    assert not [line for line in lines if " - of " in line or "other" in line or "peak" in line], lines
