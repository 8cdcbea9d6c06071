"""A live stream of KV events written down, without what is private in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.errors import WorkloadError
from framework.files.jsonl import dump_line
from framework.kv_events.follower import Follower
from framework.kv_events.private import PrivateFile, Veil
from framework.kv_events.schema import BlockStored, Event, EventBatch
from framework.kv_events.stream import JsonLines
from framework.kv_events.subscriber import Subscriber

_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What was written: batches and blocks stored, and what was missed and had again or not."""

    num_batches: int
    num_stored: int
    num_recovered: int
    num_lost: int
    num_damaged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a recording ends by itself: after so many seconds or batches, or when none came for so long."""

    seconds: float | None = None
    batches: int | None = None
    idle_s: float | None = None


def record(subscriber: Subscriber, path: Path, *, report_hits: bool = False, limits: Limits = Limits()) -> Recorded:
    """Write what comes to a new file until a limit is reached or Ctrl-C.

    From the first store on, every batch is on the disk when it came.

    Args:
        report_hits: whether the publisher reports hits, for the header.

    Raises:
        WorkloadError: the file is there already, or cannot be written; or no store came.
    """
    follower = Follower(replay=subscriber.again)
    with _Writer(path) as writer:
        follower.on_batch = lambda number, batch: writer.batch(number, batch, report_hits=report_hits)
        began = last = time.monotonic()
        try:
            while not _is_over(limits, began, last, writer.num_batches):
                for number, batch in subscriber.batches(_POLL_S):
                    follower.take(number, batch)
                    last = time.monotonic()
                    if _is_over(limits, began, last, writer.num_batches):
                        break
        except KeyboardInterrupt:
            pass  # how a recording ends
        if not writer.num_stored:
            path.unlink(missing_ok=True)
            raise WorkloadError(
                f"no block was stored at {subscriber.endpoint} while this ran, and nothing was written; does an engine "
                "publish its KV events there, and was it asked anything?"
            )
        return Recorded(
            num_batches=writer.num_batches,
            num_stored=writer.num_stored,
            num_recovered=follower.num_recovered,
            num_lost=follower.num_lost,
            num_damaged=subscriber.num_damaged,
        )


def _is_over(limits: Limits, began: float, last: float, count: int) -> bool:
    now = time.monotonic()
    return (
        (limits.seconds is not None and now - began >= limits.seconds)
        or (limits.batches is not None and count >= limits.batches)
        or (limits.idle_s is not None and now - last >= limits.idle_s)
    )


class _Writer:
    """The file of a recording. The header waits for the first store, which says how many tokens a block has."""

    def __init__(self, path: Path) -> None:
        self._path, self._veil = path, Veil()
        self.num_batches = self.num_stored = 0
        self._epoch: float | None = None
        self._lines: JsonLines | None = None
        self._waiting: list[tuple[int, float, list[Event]]] = []
        self._file = PrivateFile(path, WorkloadError)

    def batch(self, number: int, batch: EventBatch, *, report_hits: bool) -> None:
        """Write one batch; times count from the first's."""
        stored = [event for event in batch.events if isinstance(event, BlockStored)]
        self._epoch = batch.ts if self._epoch is None else self._epoch
        events = [self._veil.event(event) for event in batch.events]
        self._waiting.append((number, round(batch.ts - self._epoch, 6), events))
        self.num_batches += 1
        self.num_stored += sum(len(event.block_hashes) for event in stored)
        if self._lines is None and stored:
            header = {"clock": "seconds", "block_size": stored[0].block_size, "report_hits": report_hits}
            self._lines = JsonLines(self._put, **header, private=True)
        if self._lines is not None:
            for waiting in self._waiting:
                self._lines.put(*waiting)
            self._waiting.clear()

    def _put(self, record: Mapping[str, Any]) -> None:
        try:
            self._file.write(dump_line(record))
        except OSError as error:
            raise WorkloadError(f"{self._path}: cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()
