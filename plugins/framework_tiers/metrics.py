"""What a run with tiers writes to a result."""

from __future__ import annotations

from collections.abc import Iterator

from framework.results.metric import Metric, never, section, text

tiers, optimum = section("tiers"), section("optimum")

MOST_TIERS = 4
"""Tiers below the pool that results have keys for; a configuration lists no more."""


def _tier(number: int) -> Iterator[Metric]:
    """What a run with tiers says of one of them; 0 is the pool, of which it says its hits alone."""
    name, key = "the pool" if not number else f"tier {number}", f"tier{number}"
    yield tiers(f"{key}_hit_blocks", "blocks", "higher", f"hits in {name}",
                f"Blocks of requests' cached prefixes that lay in {name}.", of="prompt_blocks")  # fmt: skip
    if not number:
        return
    yield tiers(f"{key}_bytes_in", "bytes", "lower", f"written to {name}",
                f"Whole blocks stored in {name}, in bytes of K and V.")  # fmt: skip
    yield tiers(f"{key}_bytes_out", "bytes", "", f"read from {name}",
                f"Whole blocks read from {name}, for requests and for the tier below.")  # fmt: skip
    yield tiers(f"{key}_evictions", "blocks", "lower", f"evictions from {name}",
                f"Blocks that the eviction policy of {name} gave up.")  # fmt: skip
    yield tiers(f"{key}_unread_blocks", "blocks", "lower", f"stored unread in {name}",
                f"Blocks stored in {name} that were never a hit there before they left it or the run "
                "ended.")  # fmt: skip
    yield tiers(f"{key}_peak_blocks", "blocks", "", f"peak of {name}", f"Most blocks that {name} held at once.",
                when=never)  # fmt: skip
    yield tiers(f"{key}_failed_loads", "blocks", "lower", f"failed loads from {name}",
                f"Blocks whose bytes {name} did not have when a request was to get them: recomputed.",
                hide_zero=True)  # fmt: skip
    yield tiers(f"{key}_failed_stores", "blocks", "lower", f"failed stores in {name}",
                f"Blocks whose bytes {name} could not keep.", hide_zero=True)  # fmt: skip
    for kind in ("window", "chunk", "state"):
        yield tiers(f"{key}_{kind}_hit_blocks", "blocks", "", f"{kind}s loaded from {name}",
                    f"Blocks of {kind}s in {name} that requests went on from, of a model that mixes them with full "
                    "attention.", hide_zero=True)  # fmt: skip


def _best(number: int) -> Iterator[Metric]:
    """What a cache-only replay says of the optimum's hits in one tier."""
    name = "the pool" if not number else f"tier {number}"
    yield optimum(f"tier{number}_optimum_hit_blocks", "blocks", "", f"best hits in {name}",
                  f"Blocks hit in {name} by the offline optimum over tiers, which hits most in the pool and in all "
                  "tiers down to each one at once; it may decline content.", of="prompt_blocks")  # fmt: skip
    yield optimum(f"tier{number}_pinned_optimum_hit_blocks", "blocks", "", f"best pinned hits in {name}",
                  "The same when the request at hand holds its blocks in the pool.", of="prompt_blocks")  # fmt: skip


METRICS = (
    text("tiers", "tiering", "tiering", "Name of the rule that moved blocks between tiers."),
    *(metric for number in range(MOST_TIERS + 1) for metric in _tier(number)),
    tiers("num_loads", "requests", "", "loads", "Times a request waited for blocks from tiers below the pool."),
    tiers("loaded_blocks", "blocks", "", "blocks loaded", "That came into the pool so.", when=never),
    tiers("load_wait_s", "s", "lower", "waiting for loads",
          "Time from the begin of each load until its request could go on, summed."),
    text("tiers", "store_failure", "a store failed",
         "What a tier's store raised first; the run counts as failed.", fails="a tier's store failed"),
    text("tiers", "tier_failure", "first block lost",
         "Why the first block that a tier lost could not be stored or loaded; it was recomputed."),
    *(metric for number in range(MOST_TIERS + 1) for metric in _best(number)),
    optimum("tier_value_share_min", "share", "higher", "least share of the best value",
            "Value of all hits over the most that any rule's are worth (pinned optimum over tiers), when a hit in a "
            "lower tier is worth no more than one above it: at the weights for which that is least."),
    optimum("tier_value_share_max", "share", "", "greatest share of the best value",
            "The same at the weights for which it is greatest; at any others it lies between the two."),
)  # fmt: skip
