"""Loops: when each request of a workload is sent."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

import pytest

from framework.errors import ConfigError, WorkloadError
from framework.interfaces.workload import WorkloadRequest
from framework_fleet.loop import ClosedLoop, OpenLoop, chained


def request(key: str = "", arrival_s: float = 0.0, **facts: Any) -> WorkloadRequest:
    return WorkloadRequest(key=key, arrival_s=arrival_s, **{"input_tokens": 8, "output_tokens": 10, **facts})


def sent(loop: OpenLoop, takes_s: float) -> list[tuple[str, float]]:
    """(key, when) of each request where every one is answered in `takes_s`, whatever else runs."""
    found, under_way = list[tuple[str, float]](), list[tuple[float, int]]()
    while loop.next_s < inf or under_way:
        if under_way and min(under_way)[0] <= loop.next_s:
            end_s, place = min(under_way)
            under_way.remove((end_s, place))
            loop.ended(place, end_s)
        else:
            place, one = loop.pop()
            found.append((one.key, one.arrival_s))
            under_way.append((one.arrival_s + takes_s, place))
    return found


def test_an_open_loop_sends_at_the_times_of_the_trace_and_reads_one_ahead() -> None:
    read: list[str] = []

    def requests() -> Iterable[WorkloadRequest]:
        for key, at_s in (("a", 1.0), ("b", 2.0), ("c", 2.0)):
            read.append(key)
            yield request(key, at_s, after=("a",) if key == "b" else ())

    loop = OpenLoop(requests())
    assert (loop.next_s, read) == (1.0, ["a"])
    assert sent(loop, takes_s=60.0) == [("a", 1.0), ("b", 2.0), ("c", 2.0)]


def test_the_next_turn_leaves_after_the_answer_and_the_think_time() -> None:
    turns = [request("a", 5.0), request("b", 6.0, after=("a",), delay_s=2.0), request("c", 7.0, after=("b",))]
    assert sent(ClosedLoop(turns), takes_s=3.0) == [("a", 5.0), ("b", 10.0), ("c", 13.0)]


def test_a_parent_waits_for_the_join_of_its_sub_agents() -> None:
    graph = [
        request("parent"),
        request("sub-1", after=("parent",), delay_s=1.0),
        request("sub-2", after=("parent",), delay_s=4.0),
        request("join", after=("sub-1", "sub-2"), delay_s=0.5),
    ]
    assert sent(ClosedLoop(graph), takes_s=10.0) == [("parent", 0.0), ("sub-1", 11.0), ("sub-2", 14.0), ("join", 24.5)]


def test_a_request_may_stand_before_what_it_waits_for_and_leaves_no_earlier_than_it_may() -> None:
    rows = [request("late", after=("early",), not_before_s=30.0), request("early", 1.0)]
    assert sent(ClosedLoop(rows), takes_s=2.0) == [("early", 1.0), ("late", 30.0)]


@pytest.mark.parametrize("closed", [False, True])
def test_no_more_requests_are_under_way_than_the_client_lets(closed: bool) -> None:
    rows = [request(str(number), float(number)) for number in range(4)]
    loop = (ClosedLoop if closed else OpenLoop)(rows, 2)
    assert sent(loop, takes_s=5.0) == [("0", 0.0), ("1", 1.0), ("2", 5.0), ("3", 6.0)]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([request("a"), request("b", after=("c",))], "comes after 'c', which no request"),
        ([request("a", after=("b",)), request("b", after=("a",))], "'a' waits, over others, for itself"),
        ([request("a", after=("a",))], "'a' waits, over others, for itself"),
        ([request("a"), request("a")], "two requests have the key 'a'"),
    ],
)
def test_an_order_that_cannot_be_is_refused(rows: list[WorkloadRequest], says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        ClosedLoop(rows)


def test_the_think_time_of_a_trace_of_times_is_the_gap_less_the_recorded_answer() -> None:
    rows = [request(arrival_s=at_s, session=name) for name, at_s in (("x", 0.0), ("y", 1.0), ("x", 9.0), ("y", 3.0))]
    made = list(chained(rows, answer_s_per_token=0.5))
    assert [one.after for one in made] == [(), (), (made[0].key,), (made[1].key,)]
    assert [one.delay_s for one in made] == [0.0, 0.0, 4.0, 0.0]
    assert sent(ClosedLoop(made), takes_s=2.0)[2:] == [(made[3].key, 3.0), (made[2].key, 6.0)]


def test_a_trace_of_times_without_sessions_has_no_closed_loop() -> None:
    with pytest.raises(ConfigError, match="neither `after` nor sessions"):
        list(chained([request("a")], 0.0))
