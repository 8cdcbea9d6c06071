"""Which blocks a cache holds, from its events, and whether that is known where batches are lost or repeated."""

from __future__ import annotations

from collections.abc import Iterator

from kv_event_lines import removed, stored

from framework_kv_events.index import BlockIndex, Follower
from framework_kv_events.schema import AllBlocksCleared, EventBatch, Numbered


def test_media_are_kept_apart() -> None:
    index = BlockIndex()
    index.apply([stored("abc"), stored("ab", medium="CPU"), removed("a")])
    assert index.blocks("GPU") == {"b", "c"}
    assert index.blocks("CPU") == {"a", "b"}
    assert index.find("abc") == 3
    assert index.find("abc", "CPU") == 2
    assert index.find("abc", "GPU") == 0
    index.apply([removed("c"), removed("c")])
    assert index.num_unknown_removals == 1
    index.apply([AllBlocksCleared()])
    assert index.blocks() == set()


def test_a_report_of_hits_stores_nothing_where_reports_are_expected() -> None:
    for report, copies in ((True, 1), (False, 2)):
        index = BlockIndex(report_hits=report)
        index.apply([stored("ab"), stored("a")])
        assert index.copies["GPU", None]["a"] == copies
        index.apply([stored("ac"), stored("b", "a")])
        assert index.copies["GPU", None]["b"] == 2, "with a parent, or with something new, it is no report"


SENT = [(number, EventBatch(float(number), [stored(name)])) for number, name in enumerate("abcde")]


def test_what_cannot_be_had_again_makes_the_index_unknown_until_a_clear() -> None:
    follower = Follower(replay=lambda number: iter(SENT[2:]))
    assert follower.take(*SENT[0])
    assert not follower.take(*SENT[4]), "1 is lost"
    assert follower.index.blocks() == set()
    events = [stored("x"), AllBlocksCleared(), stored("y"), removed("y"), stored("z")]
    assert follower.take(5, EventBatch(5.0, events))
    assert follower.index.blocks() == {"z"}, "what came before the clear does not count"


def test_a_replay_that_fails_is_a_loss_and_no_error() -> None:
    def silent(number: int) -> Iterator[Numbered]:
        raise TimeoutError("nobody answers")

    follower = Follower(replay=silent)
    assert not follower.take(*SENT[2])
    assert follower.num_lost == 2


def test_a_publisher_that_begins_anew_has_an_empty_cache() -> None:
    follower = Follower()
    for entry in SENT:
        follower.take(*entry)
    assert follower.take(0, EventBatch(100.0, [stored("n")]))
    assert follower.index.blocks() == {"n"}


def test_every_batch_takes_effect_once_and_in_order_known_or_not() -> None:
    seen: list[int] = []
    follower = Follower(replay=lambda number: iter(SENT[number:]), on_batch=lambda number, batch: seen.append(number))
    for entry in (SENT[0], SENT[0], SENT[3], SENT[2]):
        assert follower.take(*entry)
    assert follower.index.copies["GPU", None] == dict.fromkeys("abcd", 1)
    assert (follower.num_gaps, follower.num_recovered, follower.num_lost) == (1, 2, 0)
    assert not follower.take(9, EventBatch(9.0, []))
    assert seen == [0, 1, 2, 3, 4, 9]
