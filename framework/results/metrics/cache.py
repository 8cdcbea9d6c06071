"""Hits in the prefix cache, in tiers below it and of several kinds of KV, and what the optimum would have hit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from framework.misses.account import OUTCOMES, key_of
from framework.results.metric import Better, Metric, never, section, text

cache, tiers, optimum = section("prefix cache"), section("tiers"), section("optimum")

MOST_TIERS = 4
"""Tiers below the pool that results have keys for; a configuration lists no more."""


def tier(number: int) -> Iterator[Metric]:
    """What a run with tiers says of one of them; 0 is the pool."""
    name = "the pool" if not number else f"tier {number}"
    declared: list[tuple[str, str, Better, str, str, dict[str, Any]]] = [
        ("hit_blocks", "blocks", "higher", "hits in", "Blocks of requests' cached prefixes that lay in {name}.",
         {"of": "prompt_blocks"}),
        ("hit_tokens", "tokens", "higher", "tokens hit in", "Their tokens.", {"when": never}),
        ("num_blocks", "blocks", "", "capacity of", "Blocks that {name} holds at most.", {"when": never}),
        ("bytes_in", "bytes", "lower", "written to", "Whole blocks stored in {name}, in bytes of K and V.", {}),
        ("bytes_out", "bytes", "", "read from", "Whole blocks read from {name}, for requests and for the tier below.",
         {}),
        ("evictions", "blocks", "lower", "evictions from", "Blocks that the eviction policy of {name} gave up.", {}),
        ("unread_blocks", "blocks", "lower", "stored unread in",
         "Blocks stored in {name} that were never a hit there before they left it or the run ended.", {}),
        ("refused_blocks", "blocks", "lower", "no room in",
         "Stores dropped because every block of {name} was in use.", {"hide_zero": True}),
        ("peak_blocks", "blocks", "", "peak of", "Most blocks that {name} held at once.", {"when": never}),
        ("failed_loads", "blocks", "lower", "failed loads from",
         "Blocks whose bytes {name} did not have when a request was to get them: recomputed.", {"hide_zero": True}),
        ("failed_stores", "blocks", "lower", "failed stores in", "Blocks whose bytes {name} could not keep.",
         {"hide_zero": True}),
    ]  # fmt: skip
    for kind, group in (("window", "windows"), ("state", "states")) if number else ():
        declared.append((f"{kind}_hit_blocks", "blocks", "", f"{group} loaded from",
                         f"Blocks of {group} in {{name}} that requests went on from, of a model that mixes them with "
                         "full attention.", {"hide_zero": True}))  # fmt: skip
    for key, unit, better, title_, definition, more in declared[:2] if not number else declared:
        yield Metric(key=f"tier{number}_{key}", unit=unit, better=better, section="tiers", title=f"{title_} {name}",
                     definition=definition.format(name=name), **more)  # fmt: skip


def best_over_tiers(number: int) -> Iterator[Metric]:
    """What a cache-only replay says of the optimum's hits in one tier."""
    name = "the pool" if not number else f"tier {number}"
    yield optimum(f"tier{number}_optimum_hit_blocks", "blocks", "", f"best hits in {name}",
                  f"Blocks hit in {name} by the offline optimum over tiers, which hits most in the pool and in all "
                  "tiers down to each one at once; it may decline content.", of="prompt_blocks")  # fmt: skip
    yield optimum(f"tier{number}_pinned_optimum_hit_blocks", "blocks", "", f"best pinned hits in {name}",
                  "The same when the request at hand holds its blocks in the pool.", of="prompt_blocks")  # fmt: skip


_CAUSES = {
    "new": "content that was never in the cache",
    "evicted": "content that a policy evicted for want of room",
    "unreachable": "content that is there behind a block of its prefix that is not",
    "declined": "content that the policy would not keep, or that there was no room to keep",
    "in flight": "content that another request was computing and did not share yet",
    "end of prompt": "the last token, and a last block that is not full",
    "other namespace": "content that is there under another salt, adapter or tenant",
    "tier": "content that lay below the pool, and was dropped there or not loaded",
}


def causes() -> Iterator[Metric]:
    """What a run with run.explain=true says of the prompt tokens that it missed."""
    for outcome in OUTCOMES[1:]:
        for unit in ("tokens", "blocks"):
            yield cache(key_of(outcome, unit), unit, "lower", f"missed, {outcome}" + (", blocks" * (unit == "blocks")),
                        f"Prompt {unit} that were no hit: {_CAUSES[outcome]}.", of=f"prompt_{unit}", hide_zero=True,
                        when=None if unit == "tokens" else never)  # fmt: skip
    yield cache("missed_preempted_tokens", "tokens", "lower", "computed again after preemption",
                "Tokens computed once more because their request was preempted, beside the prompt tokens.",
                hide_zero=True)  # fmt: skip
    yield cache("missed_forgotten_contents", "blocks", "", "contents forgotten",
                "Lost contents forgotten for want of room (4,194,304 are remembered): a miss of one counts as new.",
                hide_zero=True)  # fmt: skip


def by_kind() -> Iterator[Metric]:
    """Of each kind of group."""
    for kind, name in (("full", "full attention"), ("window", "windows"), ("chunk", "chunks"), ("state", "states")):
        yield cache(f"{kind}_hit_tokens", "tokens", "", f"hit of {name} alone",
                    f"Prompt tokens that the groups of {name} could have given, whatever the others have.",
                    of="prompt_tokens")  # fmt: skip
        yield cache(f"{kind}_lost_tokens", "tokens", "lower", f"lost to {name}",
                    f"Prompt tokens by which {name} shortened hits, full attention first, then the others by turns: "
                    "with the hits, these sum to all that could be hit.", of="prompt_tokens")  # fmt: skip


def served() -> Iterator[Metric]:
    """Of each group of KV that a served model has."""
    for kind, name in (("full", "full attention"), ("window", "windows"), ("state", "states")):
        yield cache(f"{kind}_bytes", "bytes", "", f"{name}: capacity", f"Usable blocks of {name}.")
        yield cache(f"{kind}_peak_used_bytes", "bytes", "lower", f"{name}: peak in use",
                    f"Most of the blocks of {name} that requests held at once.", of=f"{kind}_bytes")  # fmt: skip
        yield cache(f"{kind}_cached_bytes", "bytes", "", f"{name}: cached",
                    f"Blocks of {name} that are findable and unused at the end.", of=f"{kind}_bytes")  # fmt: skip
        yield cache(f"{kind}_evictions", "blocks", "", f"{name}: evicted", f"Blocks of {name} that were evicted.")


METRICS: tuple[Metric, ...] = (
    cache("hit_rate", "share", "higher", "hit rate",
          "Prompt tokens served from the cache over prompt tokens, over the whole run; each request counted once, at "
          "its first admission; no warm-up left out.", note="of prompt tokens"),
    cache("hit_rate_blocks", "share", "higher", "hit rate by blocks", "Prompt blocks hit over prompt blocks."),
    cache("hit_rate_request_mean", "share", "higher", "hit rate by request",
          "Mean over requests of each one's hit tokens over prompt tokens."),
    cache("hit_tokens", "tokens", "higher", "prompt tokens hit", "Prompt tokens served from the cache.",
          of="prompt_tokens"),
    cache("prompt_tokens", "tokens", "", "prompt tokens", "Prompt tokens of all admitted requests."),
    cache("hit_blocks", "blocks", "higher", "prompt blocks hit", "Prompt blocks served from the cache.",
          of="prompt_blocks"),
    cache("prompt_blocks", "blocks", "", "prompt blocks",
          "Blocks of all admitted prompts, a partial last one included: the block references of a replay."),
    cache("num_evictions", "blocks", "lower", "evictions", "Cached blocks whose content was given up."),
    cache("admitted_blocks", "blocks", "", "blocks admitted", "Blocks whose content entered the cache."),
    cache("num_collisions", "blocks", "lower", "hash collisions",
          "Hits refused because a block of equal hash held other tokens.", hide_zero=True),
    *causes(),
    text("tiers", "tiering", "tiering", "Name of the rule that moved blocks between tiers."),
    *(metric for number in range(MOST_TIERS + 1) for metric in tier(number)),
    tiers("num_loads", "requests", "", "loads", "Times a request waited for blocks from tiers below the pool."),
    tiers("loaded_blocks", "blocks", "", "blocks loaded", "That came into the pool so.", when=never),
    tiers("load_wait_s", "s", "lower", "waiting for loads",
          "Time from the begin of each load until its request could go on, summed."),
    tiers("load_wait_steps", "steps", "lower", "steps waiting for loads",
          "The same in steps, of a replayed recording, whose clock counts steps."),
    text("tiers", "store_failure", "a store failed",
         "What a tier's store raised first; the run counts as failed."),
    text("tiers", "tier_failure", "first block lost",
         "Why the first block that a tier lost could not be stored or loaded; it was recomputed."),
    text("tiers", "tiers_off", "tiers turned off",
         "The tiering rule or a tier's policy broke its contract: what it did, and the run went on without tiers."),
    optimum("gap_to_optimum", "share", "lower", "gap to the optimum by blocks",
            "(The policy's misses - the optimum's) / the optimum's misses, in blocks; 0 is optimal.",
            note="more missed blocks"),
    optimum("optimum_hit_blocks", "blocks", "", "hits of the optimum",
            "Prompt blocks that the offline optimum of this capacity hits.", of="prompt_blocks"),
    optimum("gap_to_pinned_optimum", "share", "lower", "gap to the pinned optimum by blocks",
            "The same against the optimum whose request at hand holds its blocks, as an engine's does.",
            note="more missed blocks"),
    optimum("pinned_optimum_hit_blocks", "blocks", "", "hits of the pinned optimum",
            "Prompt blocks that the offline optimum hits when the request at hand holds its blocks.",
            of="prompt_blocks"),
    *(metric for number in range(MOST_TIERS + 1) for metric in best_over_tiers(number)),
    optimum("tier_value_share_min", "share", "higher", "least share of the best value",
            "Value of all hits over the most that any rule's are worth (pinned optimum over tiers), when a hit in a "
            "lower tier is worth no more than one above it: at the weights for which that is least."),
    optimum("tier_value_share_max", "share", "", "greatest share of the best value",
            "The same at the weights for which it is greatest; at any others it lies between the two."),
    optimum("offline_next_use_hit_rate", "share", "", "offline next use hits",
            "Hit rate of the same engine and trace when what is requested again last goes first: a reference, "
            "neither optimum nor bound where requests overlap."),
    optimum("gap_to_offline_next_use", "share", "lower", "gap to offline next use",
            "(The policy's missed prompt tokens - that replay's) / that replay's.", note="more misses"),
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
    *by_kind(),
    cache("junction_tokens", "tokens", "lower", "shared, not resumable",
          "Prompt tokens beyond the hit that full attention still had: computed again for want of a window or state.",
          of="prompt_tokens"),
    *served(),
    text("prefix cache", "kv_groups_off", "one table because", "Of a served model that mixes full attention and "
         "sliding windows: why all layers share one block table and keep all tokens."),
    cache("resident_bytes", "bytes", "", "resident", "Contents that can be found, mean over places of the trace."),
    cache("stranded_bytes", "bytes", "lower", "stranded", "Of these, what no hit could use: another group lacks what "
          "goes with it.", of="resident_bytes"),
    cache("checkpoint_bytes", "bytes", "", "states", "Of these, recurrent states.", of="resident_bytes"),
    cache("num_checkpoints", "blocks", "", "states kept", "Recurrent states that were published."),
    cache("bound_hit_tokens", "tokens", "", "bound of hits",
          "Prompt tokens that no sharing, rule or order could exceed with as many bytes; see framework.groups.optimum.",
          of="prompt_tokens"),
    cache("refused_requests", "requests", "lower", "refused", "Requests that needed more blocks than the memory has."),
)  # fmt: skip
