"""A follower of numbered batches: gaps, repetitions, restarts."""

from __future__ import annotations

from collections.abc import Iterator

from framework.kv_events.follower import Follower, Numbered
from framework.kv_events.schema import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch


def stored(name: str) -> BlockStored:
    return BlockStored(block_hashes=[name], parent_block_hash=None, token_ids=[], block_size=1, medium="GPU")


SENT = [(number, EventBatch(float(number), [stored(name)])) for number, name in enumerate("abcde")]


def test_a_gap_is_asked_for_again() -> None:
    asked = []

    def again(number: int) -> Iterator[Numbered]:
        asked.append(number)
        return iter(SENT[number:])

    follower = Follower(replay=again)
    assert follower.take(*SENT[0])
    assert follower.take(*SENT[3])
    assert asked == [1]
    assert follower.index.blocks() == {*"abcd"}
    assert (follower.num_gaps, follower.num_recovered, follower.num_lost) == (1, 2, 0)


def test_what_cannot_be_had_again_makes_the_index_unknown_until_a_clear() -> None:
    follower = Follower(replay=lambda number: iter(SENT[2:]))
    assert follower.take(*SENT[0])
    assert not follower.take(*SENT[4]), "1 is lost"
    assert follower.index.blocks() == set()
    events = [stored("x"), AllBlocksCleared(), stored("y"), BlockRemoved(block_hashes=["y"], medium="GPU"), stored("z")]
    assert follower.take(5, EventBatch(5.0, events))
    assert follower.index.blocks() == {"z"}, "what came before the clear does not count"


def test_a_replay_that_fails_is_a_loss_and_no_error() -> None:
    def silent(number: int) -> Iterator[Numbered]:
        raise TimeoutError("nobody answers")

    follower = Follower(replay=silent)
    assert not follower.take(*SENT[2])
    assert follower.num_lost == 2


def test_what_was_known_changes_nothing() -> None:
    follower = Follower()
    for entry in (*SENT[:3], SENT[1], SENT[2]):
        assert follower.take(*entry)
    assert follower.num_repeated == 2
    assert all(count == 1 for count in follower.index.copies["GPU", None].values())


def test_a_publisher_that_begins_anew_has_an_empty_cache() -> None:
    follower = Follower()
    for entry in SENT:
        follower.take(*entry)
    assert follower.take(0, EventBatch(100.0, [stored("new")]))
    assert follower.index.blocks() == {"new"}
    assert follower.num_restarts == 1


def test_every_batch_is_passed_on_once_and_in_order_known_or_not() -> None:
    seen: list[int] = []
    follower = Follower(replay=lambda number: iter(SENT[number:]), on_batch=lambda number, batch: seen.append(number))
    for entry in (SENT[0], SENT[0], SENT[3], SENT[2], (9, EventBatch(9.0, []))):
        follower.take(*entry)
    assert seen == [0, 1, 2, 3, 4, 9]
    assert not follower.known
