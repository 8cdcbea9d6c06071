"""Time in the waiting queue as an observer: how long each request waited, for want of what, and who passed it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.errors import ConfigError
from framework.interfaces.observer import Note, Observed, Observer, RunView, Write
from framework.results.metric import section

QUEUE = "queue.jsonl"
"""The file of a run directory with a line for each first admission of a request."""
CAUSES = ("rows", "blocks", "budget", "passed")
"""What a request waits for, in the order of the arrays here; the last: it was passed over."""
_LEAVES = ("admit", "load", "finished", "failed", "cancelled", "rejected")

scheduling = section("scheduling")


class Queue(Observer):
    """Waiting time of each request by its cause, and who passed whom.

    The time from the step that let a request in to the one that admits it first is divided at the steps between. Each
    part has one cause: `passed`, where a request that arrived later was admitted in its step or was the one refused
    there; else what that step lacked for one more request: `rows`, `blocks` or `budget`. Times are seconds on the
    engine's clock, steps where that counts them. What remains of a request's time in the queue is the step under way
    as it arrived.

    `requests.jsonl` gets `wait_<cause>_s`, `passed_by`, later requests that were admitted first, and `passed`, older
    ones that it left waiting; `queue.jsonl` a line an admission, with the numbers of those.

    Args:
        most_named: numbers of passed requests in a line; the count is of all.
    """

    files = (QUEUE,)
    metrics = (
        *(scheduling(f"wait_{cause}_s", "s", "lower", f"waited for {cause}",
                     f"Time in the waiting queue for want of {cause}, all requests.", hide_zero=True)
          for cause in CAUSES[:-1]),
        scheduling("wait_passed_s", "s", "lower", "waited, passed over",
                   "Time in the waiting queue while a later request was admitted or was next, all requests.",
                   hide_zero=True),
        scheduling("num_passed", "requests", "", "passed over", "Pairs of requests, the later of which was admitted "
                   "first while the other waited.", hide_zero=True),
        scheduling("most_passed", "requests", "lower", "passed over most", "Later requests that were admitted before "
                   "one request which waited, of the request with most.", hide_zero=True),
    )  # fmt: skip
    tables = ("framework_scheduling.table_of_waits:waits",)

    def __init__(self, most_named: int = 100) -> None:
        if most_named < 0:
            raise ConfigError(f"most_named must be at least 0, found {most_named}")
        self.most_named = most_named
        self._write: Write = lambda file, record: None
        self._waits = np.zeros((0, len(CAUSES)))  # seconds, by number of the request
        self._counts = np.zeros((0, 2), dtype=np.int64)  # those that passed it, those that it passed
        self._empty()

    def _empty(self) -> None:
        self._waiting: dict[int, None] = {}
        self._admitted: list[tuple[int, npt.NDArray[np.int64]]] = []  # in this step, with those that each passed
        self._held, self._causes, self._since_s = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0.0

    def start(self, run: RunView) -> None:
        self._write = run.write

    def begin(self, cache: Observed) -> None:
        self._empty()

    def noted(self, note: Note) -> None:
        if note.event == "queue":
            self._stepped(note)
        elif note.event == "arrive":
            self._waiting[note.request] = None
            if note.request >= len(self._waits):
                more = max(64, note.request + 1 - len(self._waits), len(self._waits))
                self._waits = np.concatenate([self._waits, np.zeros((more, len(CAUSES)))])
                self._counts = np.concatenate([self._counts, np.zeros((more, 2), dtype=np.int64)])
        elif note.request in self._waiting and note.event in _LEAVES:
            del self._waiting[note.request]
            if note.event in ("admit", "load"):
                waiting = self._numbers()
                older = waiting[waiting < note.request]
                self._counts[older, 0] += 1
                self._counts[note.request, 1] = len(older)
                self._admitted.append((note.request, older))

    def _stepped(self, note: Note) -> None:
        """What waited since the last step has waited so long; what still does, waits on."""
        at_s = float(note.facts["time_s"])
        self._waits[self._held, self._causes] += at_s - self._since_s
        for request, passed in self._admitted:
            named = passed[: self.most_named].tolist()
            line = {"request": request, "step": note.step, "time_s": at_s, "passed": named, "num_passed": len(passed)}
            self._write(QUEUE, line)
        first = max((request for request, _ in self._admitted), default=-1)
        self._held, self._since_s = self._numbers(), at_s
        over = self._held < max(first, note.request)
        self._causes = np.where(over, CAUSES.index("passed"), CAUSES.index(note.facts["why"]))
        self._admitted.clear()

    def _numbers(self) -> npt.NDArray[np.int64]:
        return np.fromiter(self._waiting, dtype=np.int64, count=len(self._waiting))

    def row(self, request: int) -> Mapping[str, Any]:
        if request >= len(self._waits):  # it never arrived
            return {}
        waits = {f"wait_{cause}_s": wait for cause, wait in zip(CAUSES, self._waits[request].tolist(), strict=True)}
        passed_by, passed = self._counts[request].tolist()
        return {**waits, "passed_by": passed_by, "passed": passed}

    def results(self) -> Mapping[str, Any]:
        sums = self._waits.sum(axis=0).tolist()
        return {
            **{f"wait_{cause}_s": wait for cause, wait in zip(CAUSES, sums, strict=True)},
            "num_passed": int(self._counts[:, 1].sum()),
            "most_passed": int(self._counts[:, 0].max(initial=0)),
        }
