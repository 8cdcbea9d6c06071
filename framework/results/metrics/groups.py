"""Hits, losses and bytes of caches with several kinds of KV."""

from __future__ import annotations

from collections.abc import Iterator

from framework.results.metric import Metric, section, text

cache = section("prefix cache")


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
