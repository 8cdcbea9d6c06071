"""Conformance kit of workloads: the same requests each time, in order, each of them one that can be asked.

`workload_checks` are plain functions `check(make)`, cheap first; `make()` builds a fresh workload. They look at the
first `MANY` requests.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from itertools import islice

from framework.interfaces.workload import Workload, WorkloadRequest
from framework.testing.driver import Violation
from framework.testing.facts import require_plain_facts

Make = Callable[[], Workload]

MANY = 256


def _need(workload: Workload, holds: bool, rule: str, seen: object = "") -> None:
    if not holds:
        raise Violation(f"{type(workload).__name__}: {rule}: {str(seen)[:400]}")


def check_it_yields_requests(make: Make) -> None:
    """`requests` yields at least one request, and nothing else."""
    workload = make()
    found = list(islice(workload.requests(), MANY))
    _need(workload, bool(found), "yields no request")
    for request in found:
        _need(workload, isinstance(request, WorkloadRequest), "yields something else than a request", repr(request))


def check_each_call_begins_anew(make: Make) -> None:
    """Two passes that run at the same time, and a fresh workload's, yield equal requests."""
    workload = make()
    first, second = workload.requests(), workload.requests()
    other = make().requests()
    for number, (a, b, c) in enumerate(islice(zip(first, second, other, strict=True), MANY)):
        _need(workload, a == b, f"request {number} of a second pass differs", f"{a}\n{b}")
        _need(workload, a == c, f"request {number} of a second workload of the same options differs", f"{a}\n{c}")


def check_requests_come_in_order_of_arrival(make: Make) -> None:
    """Arrivals never go back: a replay takes requests as they come."""
    workload, last = make(), 0.0
    for number, request in enumerate(islice(workload.requests(), MANY)):
        _need(workload, request.arrival_s >= last, f"request {number} arrives before the one ahead of it", request)
        last = request.arrival_s


def check_keys_name_one_request_each(make: Make) -> None:
    """A key that is given is given once."""
    workload = make()
    keys = [request.key for request in islice(workload.requests(), MANY) if request.key]
    _need(workload, len(set(keys)) == len(keys), "two requests have one key", sorted(keys))


def check_turns_count_up_in_their_session(make: Make) -> None:
    """Where a session and its turns are known, each turn comes once and after those before it; unknown is None."""
    workload = make()
    turns: dict[str, int] = {}
    for request in islice(workload.requests(), MANY):
        _need(workload, request.session != "" and request.category != "", 'unknown is None, found ""', request)
        if request.session is not None and request.turn is not None:
            before = turns.get(request.session, -1)
            _need(workload, request.turn > before, f"turn {request.turn} of {request.session} after {before}", request)
            turns[request.session] = request.turn


def check_facts_are_plain(make: Make) -> None:
    """`facts` gives names to texts and finite numbers, before and after the requests were drawn."""
    workload = make()
    require_plain_facts("workload", workload)
    for _ in islice(workload.requests(), MANY):
        pass
    require_plain_facts("workload", workload)


def check_processes_agree(make: Make) -> None:
    """The same requests in other processes, whatever PYTHONHASHSEED. The workload must be picklable."""
    workload = make()
    try:
        recipe = pickle.dumps(workload)
    except Exception as error:
        raise Violation(
            f"{type(workload).__name__}: cannot be pickled, so no other process can draw it: {error}"
        ) from error
    expected = fingerprint(workload)
    code = "import sys; from framework.testing.workload import _answer; _answer(sys.stdin.buffer.read())"
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        done = subprocess.run(
            [sys.executable, "-c", code], input=recipe, capture_output=True, env=environment, timeout=120, check=False
        )
        _need(workload, done.returncode == 0, "cannot be drawn in another process", done.stderr.decode()[-2000:])
        _need(workload, done.stdout.decode().strip() == expected, "another process draws other requests")


def fingerprint(workload: Workload) -> str:
    """SHA-256 over the first requests: what processes compare."""
    digest = sha256()
    for request in islice(workload.requests(), MANY):
        tokens = request.tokens
        digest.update(tokens.tobytes() if tokens is not None else repr((request.prompt, request.block_ids)).encode())
        digest.update(repr((request.sampling, request.arrival_s, request.session, request.turn, request.key)).encode())
    return digest.hexdigest()


def _answer(recipe: bytes) -> None:
    """Runs in the other process: draw the workload, print its fingerprint."""
    sys.stdout.write(fingerprint(pickle.loads(recipe)))


workload_checks = (
    check_it_yields_requests,
    check_each_call_begins_anew,
    check_requests_come_in_order_of_arrival,
    check_keys_name_one_request_each,
    check_turns_count_up_in_their_session,
    check_facts_are_plain,
    check_processes_agree,
)
