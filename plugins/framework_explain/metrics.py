"""The result keys of a run that explains its misses."""

from __future__ import annotations

from collections.abc import Iterator

from framework.results.metric import Metric, never, section
from framework_explain.account import OUTCOMES, key_of

cache = section("prefix cache")

_CAUSES = {
    "new": "content that was never in the cache",
    "evicted": "content that a policy evicted for want of room",
    "unreachable": "content that is there behind a block of its prefix, or without a window or state, that is not",
    "declined": "content that the policy would not keep, or that there was no room to keep",
    "in flight": "content that another request was computing and did not share yet",
    "end of prompt": "the last token, and a last block that is not full",
    "other namespace": "content that is there under another salt, adapter or tenant, or for another image",
    "tier": "content that lay below the pool, and was dropped there or not loaded",
}


def causes() -> Iterator[Metric]:
    """What a run with observers=[explain] says of the prompt tokens that it missed."""
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


METRICS: tuple[Metric, ...] = (*causes(),)
