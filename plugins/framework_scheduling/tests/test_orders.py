"""Each order against examples that follow from its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from framework.errors import InvalidArgument
from framework.guard.scheduling import GuardedScheduling
from framework.interfaces.scheduling import QueueView, RunningRequest, Scheduling, WaitingRequest
from framework.types import BlockHash, Hint, RequestId, RequestInfo
from framework_scheduling.cached import DfsWeight, LongestPrefix, SessionAffinity, WindowedLookahead
from framework_scheduling.clients import Edf, Fair
from framework_scheduling.length import Ewsjf, ShortestJob, ShortestRest

SIZE = 16


def waiting(number: int, num_tokens: int = 160, hit: int = 0, blocks: str = "", at_s: float = 0.0, **says: Any) -> Any:
    """A request of which `hit` tokens are cached; each letter of `blocks` names one full block of its prompt."""
    hashes = [BlockHash(blocks[: end + 1].encode()) for end in range(len(blocks))]
    info = RequestInfo(id=RequestId(number), max_total_tokens=num_tokens + 8, **says)
    return WaitingRequest(info, number, num_tokens, at_s, lambda: (hit, hashes))


def view(now_s: float = 0.0, used: int = 0, running: Sequence[RunningRequest] = ()) -> QueueView:
    made = QueueView(100, SIZE, lambda: (100 - used, 0, used), lambda: running)
    made.now_s = now_s
    return made


def numbers(order: Scheduling, requests: Sequence[WaitingRequest], seen: QueueView | None = None) -> list[int]:
    chosen = order.order(requests, seen or view())
    return [request.number for request in (requests if chosen is None else chosen)]


def test_no_order_of_its_own_is_the_order_of_arrival() -> None:
    assert Scheduling().order([waiting(0), waiting(1)], view()) is None


def test_longest_prefix_takes_most_cached_tokens_first_and_the_older_among_equals() -> None:
    requests = [waiting(0, hit=64), waiting(1, hit=128), waiting(2, hit=64), waiting(3, hit=144)]
    assert numbers(LongestPrefix(), requests) == [3, 1, 0, 2]


def test_longest_prefix_is_first_come_first_served_above_128_waiting() -> None:
    few = [waiting(at, hit=SIZE * (at % 9)) for at in range(128)]
    assert numbers(LongestPrefix(), few)[0] == 8
    assert numbers(LongestPrefix(), [*few, waiting(128)]) == list(range(129))


def test_longest_prefix_lets_one_of_those_that_share_a_prefix_go_ahead() -> None:
    """Two shared blocks are 32 tokens; 48 cached tokens are more than are compared."""
    cold = [waiting(0, blocks="abc"), waiting(1, blocks="abd"), waiting(2, blocks="axy")]
    assert numbers(LongestPrefix(), [*cold, waiting(3, hit=48, blocks="abz"), waiting(4, hit=16, blocks="qrs")]) == [
        3, 4, 0, 2, 1,
    ]  # fmt: skip


def test_dfs_weight_goes_where_most_requests_wait_and_deeper_ones_first() -> None:
    requests = [
        waiting(0, hit=16, blocks="xq"),
        waiting(1, hit=16, blocks="aq"),
        waiting(2, hit=32, blocks="ab"),
        waiting(3, hit=32, blocks="ac"),
        waiting(4, hit=32, blocks="ac"),
        waiting(5, hit=0, blocks="zz"),
    ]
    # Below a: c has two, b one, then a's own request; then x; then those on the root.
    assert numbers(DfsWeight(), requests) == [3, 4, 2, 1, 0, 5]


def test_windowed_lookahead_moves_nothing_behind_its_window() -> None:
    requests = [waiting(0), waiting(1, hit=16), waiting(2, hit=32), waiting(3, hit=64)]
    assert numbers(WindowedLookahead(window=3), requests) == [2, 1, 0, 3]


def test_windowed_lookahead_waits_until_the_pool_is_used() -> None:
    requests = [waiting(0), waiting(1, hit=16)]
    order = WindowedLookahead(threshold=0.5)
    assert numbers(order, requests, view(used=49)) == [0, 1]
    assert numbers(order, requests, view(used=50)) == [1, 0]


def test_session_affinity_promotes_one_request_of_a_session_that_ran_lately() -> None:
    order = SessionAffinity(window=4, min_blocks=2, max_wait_s=5.0, ttl_s=60.0)
    for session, at_s in (("a", 1.0), ("b", 2.0)):
        order.admitted(waiting(0, session=session), view(at_s))
    requests = [
        waiting(1, at_s=9.0),
        waiting(2, hit=16, session="b"),  # one block: too few
        waiting(3, hit=32, session="a"),
        waiting(4, hit=32, session="b"),  # as many as a's, admitted later
        waiting(5, hit=96, session="a"),  # behind the window
    ]
    assert numbers(order, requests, view(10.0)) == [4, 1, 2, 3, 5]
    assert numbers(order, requests, view(61.5)) == [4, 1, 2, 3, 5], "a is forgotten, b is not yet"
    assert numbers(order, requests, view(62.5)) == [1, 2, 3, 4, 5]


def test_shortest_job_asks_for_length_alone_and_shortest_rest_for_what_is_left() -> None:
    requests = [waiting(0, 320, hit=304), waiting(1, 160), waiting(2, 161, hit=144), waiting(3, 32)]
    assert numbers(ShortestJob(), requests) == [3, 1, 2, 0]
    # Blocks left: 1, 10, 2, 2.
    assert numbers(ShortestRest(), requests) == [0, 2, 3, 1]


def test_ewsjf_multiplies_wait_by_length_and_serves_a_class_in_order_of_arrival() -> None:
    order, now = Ewsjf(), view(10.0)
    short, long = waiting(0, 100, at_s=8.0), waiting(1, 1000, at_s=0.0)
    assert order.score(short, now) == pytest.approx(2.0 * (1 + 0.5 * 4.61512051684126) * 200)
    assert order.score(long, now) == pytest.approx(10.0 * (1 + 0.5 * 6.90875477931522) * 200 / 6)
    later = waiting(2, 199, at_s=8.0)  # scores more than 0, of the same class
    assert numbers(order, [long, short, later], now) == [1, 0, 2]
    assert order.score(later, now) > order.score(short, now)


def test_fair_serves_the_tenant_with_the_smallest_counter() -> None:
    order = Fair()
    requests = [waiting(at, 100, tenant="a") for at in range(3)] + [waiting(3, 100, tenant="b")]
    assert numbers(order, requests) == [0, 3, 1, 2]
    order.admitted(requests[0], view())
    answers = RunningRequest(requests[0].info, 0, 150, 150, 50)
    # a: 100 of its prompt and twice 50 generated; b catches up with two requests.
    more = [*requests[1:], waiting(4, 100, tenant="b"), waiting(5, 100, tenant="b")]
    assert numbers(order, more, view(running=[answers])) == [3, 4, 1, 5, 2]
    order.ended(answers, view())
    assert numbers(order, more) == [3, 4, 1, 5, 2]


def test_fair_does_not_save_up_idle_time() -> None:
    order = Fair()
    for at in range(5):
        one = waiting(at, 100, tenant="a")
        assert numbers(order, [one, waiting(9, tenant="a")]) == [at, 9]
        order.admitted(one, view())
    # b was never here: it begins with a's counter, not with 500 tokens to its credit.
    requests = [waiting(9, 100, tenant="a"), waiting(10, 100, tenant="b"), waiting(11, 100, tenant="b")]
    assert numbers(order, requests) == [9, 10, 11]


def test_edf_takes_the_earliest_deadline_and_requests_without_one_last() -> None:
    requests = [
        waiting(0),
        waiting(1, at_s=5.0, hint=Hint(deadline_s=2.0)),
        waiting(2, at_s=0.0, hint=Hint(deadline_s=6.0)),
        waiting(3, hint=Hint(continues=1.0)),
    ]
    assert numbers(Edf(), requests) == [2, 1, 0, 3]


@pytest.mark.parametrize(
    "made",
    [
        lambda: Fair(input_weight=-1.0),
        lambda: Fair(output_weight=float("nan")),
        lambda: LongestPrefix(most_waiting=-1),
        lambda: GuardedScheduling(LongestPrefix(max_passed=0)),
        lambda: GuardedScheduling(ShortestJob(max_wait_s=float("nan"))),
    ],
)
def test_an_option_out_of_its_range_is_refused_as_what_was_asked(made: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument, match="must be"):
        made()
