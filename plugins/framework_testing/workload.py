"""Conformance kit of workloads: the same requests each time, in order, each of them one that can be asked.

`workload_checks` are plain functions `check(make)`, cheap first; `make()` builds a fresh workload. They look at the
first `MANY` requests.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from itertools import islice

from framework.interfaces.workload import Workload, WorkloadRequest
from framework_testing.rules import checks_of, need, require_plain_facts, require_same_elsewhere

Make = Callable[[], Workload]

MANY = 256


def check_it_yields_requests(make: Make) -> None:
    """`requests` yields at least one request, and nothing else."""
    workload = make()
    yielded = list(islice(workload.requests(), MANY))
    need(workload, bool(yielded), "yields no request")
    for request in yielded:
        need(workload, isinstance(request, WorkloadRequest), "yields something else than a request", repr(request))


def check_each_call_begins_anew(make: Make) -> None:
    """Two passes that run at the same time, and a fresh workload's, yield equal requests."""
    workload = make()
    first, second = workload.requests(), workload.requests()
    other = make().requests()
    for number, (a, b, c) in enumerate(islice(zip(first, second, other, strict=True), MANY)):
        need(workload, a == b, f"request {number} of a second pass differs", f"{a}\n{b}")
        need(workload, a == c, f"request {number} of a second workload of the same options differs", f"{a}\n{c}")


def check_requests_come_in_order_of_arrival(make: Make) -> None:
    """Arrivals never go back: a replay takes requests as they come."""
    workload, last = make(), 0.0
    for number, request in enumerate(islice(workload.requests(), MANY)):
        need(workload, request.arrival_s >= last, f"request {number} arrives before the one ahead of it", request)
        last = request.arrival_s


def check_keys_name_one_request_each(make: Make) -> None:
    """A key that is given is given once."""
    workload = make()
    keys = [request.key for request in islice(workload.requests(), MANY) if request.key]
    need(workload, len(set(keys)) == len(keys), "two requests have one key", sorted(keys))


def check_turns_count_up_in_their_session(make: Make) -> None:
    """Where a session and its turns are known, each turn comes once and after those before it; unknown is None."""
    workload = make()
    turns: dict[str, int] = {}
    for request in islice(workload.requests(), MANY):
        need(workload, request.session != "" and request.category != "", 'unknown is None, found ""', request)
        if request.session is not None and request.turn is not None:
            before = turns.get(request.session, -1)
            need(workload, request.turn > before, f"turn {request.turn} of {request.session} after {before}", request)
            turns[request.session] = request.turn


def check_facts_are_plain(make: Make) -> None:
    """`facts` gives names to texts and finite numbers, before and after the requests were drawn."""
    workload = make()
    require_plain_facts("workload", workload)
    for _ in islice(workload.requests(), MANY):
        pass
    require_plain_facts("workload", workload)


def check_processes_agree(make: Make) -> None:
    """The same requests in another process, whatever PYTHONHASHSEED; needs a picklable `make`."""
    require_same_elsewhere(fingerprint, make, "must draw the same requests")


def fingerprint(make: Make) -> str:
    """SHA-256 over the first requests: what processes compare."""
    digest = sha256()
    for request in islice(make().requests(), MANY):
        tokens = request.tokens
        digest.update(tokens.tobytes() if tokens is not None else repr((request.prompt, request.block_ids)).encode())
        digest.update(repr((request.sampling, request.arrival_s, request.session, request.turn, request.key)).encode())
    return digest.hexdigest()


workload_checks = checks_of(globals())
