"""A live stream of KV events written down, without what is private in it unless that is asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from framework.errors import WorkloadError
from framework.files.jsonl import dump_line
from framework_kv_events.file import JsonLines
from framework_kv_events.index import Follower
from framework_kv_events.schema import BlockRemoved, BlockStored, Event, EventBatch, Hash
from framework_kv_events.zeromq import Subscriber
from framework_traces.private import PrivateFile, Veil

_POLL_S = 0.2


class EventVeil(Veil):
    """A veil for whole events."""

    def event(self, event: Event) -> Event:
        """The event with names in place of hashes, adapters and sessions; no tokens, no extra keys."""
        if isinstance(event, BlockStored):
            above = event.parent_block_hash
            return BlockStored(
                block_hashes=self._names(event.block_hashes),
                parent_block_hash=None if above is None else self.name(above),
                token_ids=(),
                block_size=event.block_size,
                medium=event.medium,
                lora_name=None if event.lora_name is None else self.name(event.lora_name),
                group_idx=event.group_idx,
                session_id=None if event.session_id is None else self.name(event.session_id),
            )
        if isinstance(event, BlockRemoved):
            return replace(event, block_hashes=self._names(event.block_hashes), ownership=None)
        return event

    def _names(self, hashes: Sequence[Hash]) -> list[str]:
        return [self.name(value) for value in hashes]


def record(
    subscriber: Subscriber,
    path: Path,
    *,
    report_hits: bool = False,
    tokens: bool = False,
    seconds: float | None = None,
    batches: int | None = None,
    idle_s: float | None = None,
) -> str:
    """Write what comes to a new file until Ctrl-C, or until a limit is reached. Returns what was written, in words.

    From the first store on, every batch is on the disk when it came.

    Args:
        report_hits: whether the publisher reports hits, for the header.
        tokens: keep tokens, hashes and names as they come, for whoever matches them with a log of requests.
        seconds, batches, idle_s: end after so many seconds or batches, or when none came for so long.

    Raises:
        WorkloadError: the file is there already, or cannot be written; or no store came.
    """
    follower = Follower(replay=subscriber.again)
    with _Writer(path, report_hits=report_hits, tokens=tokens) as writer:
        follower.on_batch = writer.batch
        began = last = time.monotonic()

        def is_over() -> bool:
            now = time.monotonic()
            return (
                (seconds is not None and now - began >= seconds)
                or (batches is not None and writer.num_batches >= batches)
                or (idle_s is not None and now - last >= idle_s)
            )

        try:
            while not is_over():
                for number, batch in subscriber.batches(_POLL_S):
                    follower.take(number, batch)
                    last = time.monotonic()
                    if is_over():
                        break
        except KeyboardInterrupt:
            pass  # how a recording ends
        if not writer.num_stored:
            path.unlink(missing_ok=True)
            raise WorkloadError(
                f"no block was stored at {subscriber.endpoint} while this ran, and nothing was written; does an engine "
                "publish its KV events there, and was it asked anything?"
            )
        return (
            f"{writer.num_batches} batches, {writer.num_stored} blocks stored; {follower.num_recovered} batches were "
            f"missed and had again, {follower.num_lost} were lost, {subscriber.num_damaged} messages were damaged"
        )


class _Writer:
    """The file of a recording. The header waits for the first store, which says how many tokens a block has."""

    def __init__(self, path: Path, *, report_hits: bool, tokens: bool) -> None:
        self._path, self._report_hits, self._veil = path, report_hits, None if tokens else EventVeil()
        self.num_batches = self.num_stored = 0
        self._epoch: float | None = None
        self._lines: JsonLines | None = None
        self._waiting: list[tuple[int, float, list[Event]]] = []
        self._file = PrivateFile(path, WorkloadError)

    def batch(self, number: int, batch: EventBatch) -> None:
        """Write one batch; times count from the first's."""
        stored = [event for event in batch.events if isinstance(event, BlockStored)]
        self._epoch = batch.ts if self._epoch is None else self._epoch
        events = [self._veil.event(event) if self._veil else event for event in batch.events]
        self._waiting.append((number, round(batch.ts - self._epoch, 6), events))
        self.num_batches += 1
        self.num_stored += sum(len(event.block_hashes) for event in stored)
        if self._lines is None and stored:
            header = {"clock": "seconds", "block_size": stored[0].block_size, "report_hits": self._report_hits}
            self._lines = JsonLines(self._put, **header, private=self._veil is not None)
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
