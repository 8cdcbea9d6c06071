"""Prefill and decode apart: when KV moves, and each known fault of it, seen by the kit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fleet_helpers import rows, run

from framework.engine.request import Sequence
from framework.errors import ConfigError
from framework_fleet.handoff import Handoff, Handoffs, Receiver, Sender
from framework_fleet.replica import Replica
from framework_fleet.testing import handoff as kit
from framework_testing.driver import Violation


def test_a_prompt_is_computed_copied_and_decoded_one_after_the_other() -> None:
    """18 tokens are 5 blocks: 0.1 s of prefill, 5 bytes at 10 a second, then a step for each of 6 tokens."""
    [sent], [request] = kit.drive(Handoffs, kit.prompts(1, 18, 0.0), bytes_per_s=10)
    assert sent.prefilled is not None
    assert (sent.prefilled.finished_s, sent.prefill_replica, sent.replica) == (pytest.approx(0.1), 0, 1)
    assert request.first_token_s == pytest.approx(0.1 + 0.5 + 0.1)
    assert request.finished_s == pytest.approx(0.1 + 0.5 + 0.6)
    assert len(request.completions[0].tokens) == 6


def test_copies_of_one_replica_follow_one_another() -> None:
    """Both prompts are computed at 0.1 s; each copy takes 0.5 s of the sender's port."""
    _, found = kit.drive(Handoffs, kit.prompts(2, 18, 0.0), decodes=2, bytes_per_s=10)
    assert sorted(one.first_token_s for one in found) == pytest.approx([0.7, 1.2])


def test_a_decoder_reads_what_it_lacks_alone() -> None:
    """The second prompt shares 16 tokens, four of five blocks, with the first, which is decoded when it comes."""
    counted = list[Handoffs]()

    def make(*arguments: float) -> Handoffs:
        counted.append(Handoffs(*arguments))
        return counted[-1]

    kit.drive(make, kit.prompts(2, 18, 2.0, shared=16), bytes_per_s=10)
    assert (counted[0].num_copies, counted[0].num_blocks) == (2, 5 + 1)


def test_a_client_gives_up_what_has_no_first_token_in_time() -> None:
    _, found = kit.drive(Handoffs, kit.prompts(2, 18, 0.0), decodes=2, bytes_per_s=10, patience_s=0.8)
    assert sorted((one.status.value, one.finished_s) for one in found) == [
        ("cancelled", pytest.approx(0.8)), ("finished", pytest.approx(1.2)),
    ]  # fmt: skip


def test_a_replica_reports_what_its_pool_holds_for_requests_and_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is kept for a reader is in use; one whose request has ended is not."""
    found = list[tuple[bool, int, int, int]]()
    step = Replica.step

    def watched(replica: Replica) -> None:
        step(replica)
        load = replica.reports[-1]
        found.append((replica.prefills, load.running, load.used_blocks, replica.engine.allocator.stats().used_blocks))

    monkeypatch.setattr(Replica, "step", watched)
    kit.drive(Handoffs, kit.prompts(2, 18, 0.0), decodes=2, bytes_per_s=10)
    assert [used for *_, used, _ in found] == [held for *_, held in found]
    assert (True, 0, 10, 10) in found, "both prompts are computed, and nobody has read them"
    assert [used for prefills, running, used, _ in found if not prefills and not running][-1] == 0


def test_a_run_counts_each_request_once(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", {"name": "fleet", "replicas": 4})
    mode = {"name": "fleet", "replicas": 4, "decoders": 2}
    apart = run(tmp_path / "apart", mode)
    same = ("num_requests", "num_finished", "prompt_tokens", "prompt_blocks", "output_tokens")
    assert {key: apart[key] for key in same} == {key: plain[key] for key in same}
    missed = sum(apart[f"missed_{cause}_tokens"] for cause in ("elsewhere", "evicted", "new"))
    assert missed + apart["hit_tokens"] == apart["prompt_tokens"]
    found = rows(tmp_path / "apart")
    assert {row["prefill_replica"] for row in found} == {0, 1}
    assert {row["replica"] for row in found} == {2, 3}
    assert sum(row["cached_tokens"] for row in found) == apart["hit_tokens"]
    run(tmp_path / "again", mode)
    assert (tmp_path / "again/events.jsonl").read_bytes() == (tmp_path / "apart/events.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("mode", "more", "says"),
    [
        ({"replicas": 2, "decoders": 2}, {}, "leaves no replica that prefills"),
        ({"replicas": 2, "decoders": 1, "bounds": True}, {}, "mode.bounds=false"),
        ({"replicas": 2, "decoders": 1}, {"below": {"name": "tiers", "tiers": [{"num_blocks": 9}]}}, "below=none"),
    ],
)
def test_what_goes_not_with_decoders_is_refused(
    mode: dict[str, Any], more: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        run(tmp_path, {"name": "fleet", **mode}, **more)


# Faults


class FreesUnderTheLink(Receiver):
    """A request that ends while a link writes to its blocks frees them at once."""

    def dropped(self, handoff: Handoff, *, returning: bool) -> None:
        assert handoff.target is not None
        self._free(handoff.target, returning=returning)


class ReadsWhatIsGone(Receiver):
    """Nobody looks whether the lease has ended."""

    def readable(self, handoff: Handoff) -> bool:
        return True


class KeepsForNobody(Receiver):
    """A request that ends before its read says so to nobody."""

    def forget(self, number: int) -> None:
        self.coming.pop(number, None)


class HoldsOn(Receiver):
    """Requests whose prompt is there keep their blocks while those that run want some: full decode buffers."""

    def give_up(self) -> bool:
        return False


class FreesOnEnd(Sender):
    """A prompt's blocks are freed with its request, as if nobody read them."""

    def ending(self, seq: Sequence) -> bool:
        super().ending(seq)
        return False

    def poll(self) -> None:
        self._released.clear()


class ForgetsToFree(Sender):
    """What was read is not given back."""

    def poll(self) -> None:
        self._released.clear()


class EndsUnderARead(Handoffs):
    """A lease ends whatever is being read."""

    def may_expire(self, handoff: Handoff) -> bool:
        return True


class WakesNobody(Handoffs):
    """A replica that waits for a link does not hear of its end."""

    def __init__(self, *arguments: float) -> None:
        super().__init__(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, (lambda index, at_s: None) if name == "wake" else value)


def of(part: type[Sender | Receiver]) -> type[Handoffs]:
    """Handoffs with this part."""
    return type(part.__name__, (Handoffs,), {"sender" if issubclass(part, Sender) else "receiver": part})


MUTANTS: dict[type[Handoffs], tuple[str, str]] = {
    of(FreesUnderTheLink): ("check_no_block_is_reused_while_a_link_writes", "F1: blocks of replica 1 were written"),
    EndsUnderARead: ("check_no_lease_ends_under_a_read", "F1: blocks of replica 0 were read"),
    of(ReadsWhatIsGone): ("check_no_lease_ends_under_a_read", "F1: a link begins to read"),
    of(FreesOnEnd): ("check_every_prompt_is_decoded", "F1: a link begins to read"),
    of(KeepsForNobody): ("check_what_nobody_reads_is_given_back", "F2: all requests have ended"),
    of(ForgetsToFree): ("check_every_prompt_is_decoded", "I45"),
    of(HoldsOn): ("check_full_pools_do_not_stand_still", "F3: requests must finish"),
    WakesNobody: ("check_every_prompt_is_decoded", "F3: replicas wait for one another"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.__name__)
def test_each_fault_is_seen_by_its_check(mutant: type[Handoffs]) -> None:
    check, says = MUTANTS[mutant]
    with pytest.raises(Violation, match=f"{mutant.__name__}.*{says}"):
        getattr(kit, check)(mutant)


@pytest.mark.parametrize("check", kit.handoff_checks)
def test_handoffs_pass_their_kit(check: Any) -> None:
    check(Handoffs)
