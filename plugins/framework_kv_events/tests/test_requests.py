"""Which requests a stream of KV events shows, and what became of their blocks."""

from __future__ import annotations

from typing import Any

from kv_event_lines import removed, stored

from framework_kv_events.schema import AllBlocksCleared, Event, EventBatch
from framework_kv_events.workload import RequestFinder, SeenRequest


def found(*batches: tuple[float, list[Event]], **options: Any) -> tuple[list[SeenRequest], RequestFinder]:
    finder, requests = RequestFinder(**options), list[SeenRequest]()
    for ts, events in batches:
        requests += finder.take(EventBatch(ts, events))
    return [*requests, *finder.finish()], finder


def shape(requests: list[SeenRequest]) -> list[tuple[str, str, int]]:
    return [("".join(map(str, one.prompt)), "".join(map(str, one.output)), one.hits) for one in requests]


def test_what_extends_an_idle_request_is_another_one() -> None:
    requests, _ = found((0, [stored("ab")]), (5, [stored("c", "b")]))
    assert shape(requests) == [("ab", "", 0), ("abc", "", 2)]
    in_steps, _ = found((0, [stored("ab")]), (5, [stored("c", "b")]), clock="steps")
    assert shape(in_steps) == [("ab", "c", 0)], "four blocks fill in 16 steps"


def test_a_report_of_hits_begins_a_request_and_stores_nothing() -> None:
    requests, finder = found((0, [stored("abc")]), (5, [stored("ab"), stored("x", "b")]), (9, [stored("ab")]),
                             report_hits=True)  # fmt: skip
    assert shape(requests) == [("abc", "", 0), ("abx", "", 2), ("ab", "", 2)]
    assert finder.counts.stored_blocks == 4
    assert finder.counts.hit_blocks == 4


def test_of_two_requests_that_end_at_one_block_the_latest_or_that_of_the_session_goes_on() -> None:
    batches = (0, [stored("ab")]), (5, [stored("ab"), stored("ab"), stored("x", "b")])
    requests, _ = found(*batches, report_hits=True)
    assert shape(requests)[1:] == [("ab", "", 2), ("abx", "", 2)]
    first, second = stored("ab", session_id="1"), stored("ab", session_id="2")
    requests, _ = found((0, [stored("ab")]), (5, [first, second, stored("x", "b", session_id="1")]), report_hits=True)
    assert shape(requests)[1:] == [("abx", "", 2), ("ab", "", 2)]


def test_stores_are_first_lost_or_duplicated() -> None:
    _, finder = found((0, [stored("ab")]), (5, [removed("b")]), (9, [stored("b", "a")]), (20, [stored("b", "a")]))
    counts = finder.counts
    assert (counts.first_blocks, counts.lost_blocks, counts.duplicate_blocks) == (2, 1, 1)
    assert (counts.removed_blocks, counts.peak_blocks, finder.num_blocks) == (1, 2, 2)


def test_a_prompt_whose_last_block_was_there_ends_with_it() -> None:
    requests, _ = found((0, [stored("ab")]), (20, [stored("b", "a")]))
    assert [one.ends_full for one in requests] == [False, True]


def test_other_media_and_groups_are_counted_apart() -> None:
    _, finder = found((0, [stored("ab"), stored("ab", medium="CPU"), stored("c", group_idx=1), removed("a", "CPU")]))
    assert finder.num_blocks == 2
    assert finder.counts.stored_by_medium == {"GPU": 3, "CPU": 2}
    assert finder.counts.removed_blocks == 0
    assert finder.counts.num_requests == 1


def test_a_clear_empties_the_pool_and_what_comes_again_was_lost() -> None:
    _, finder = found((0, [stored("ab")]), (5, [AllBlocksCleared()]), (9, [stored("ab")]))
    assert (finder.counts.lost_blocks, finder.num_blocks) == (2, 2)


def test_a_stream_that_begins_in_the_middle_starts_paths_where_it_knows_them() -> None:
    requests, _ = found((0, [stored("c", "b")]))
    assert shape(requests) == [("bc", "", 1)]


def test_requests_come_in_the_order_in_which_they_began() -> None:
    requests, _ = found((0, [stored("a")]), (1, [stored("b")]), (1.5, [stored("c", "a")]), (30, [stored("z")]))
    assert shape(requests) == [("a", "c", 0), ("b", "", 0), ("z", "", 0)]


def test_a_stream_whose_parents_lead_in_circles_comes_to_an_end() -> None:
    requests, _ = found(
        (0, [stored("a", "b")]), (50, [stored("b", "a")]), (99, [stored("x", "a")]), (200, [stored("y", "y")])
    )
    assert shape(requests)[2:] == [("bax", "", 2), ("yy", "", 1)]
