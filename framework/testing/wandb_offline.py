"""Reading the records of an offline W&B run back, without W&B's server.

The file `run-*.wandb` is a LevelDB log: after a 7-byte header, blocks of 32 KiB that hold chunks of (crc32c u32,
length u16, type u8, data); types 1 full, 2 first, 3 middle, 4 last; a block's last bytes are zeros when no chunk
header fits. Each whole record is a `wandb_internal_pb2.Record`.
Source: https://github.com/google/leveldb/blob/main/doc/log_format.md.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framework.errors import RunDirectoryError

_BLOCK_BYTES = 32 * 1024
_FILE_HEADER_BYTES = 7
_CHUNK_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass(slots=True)
class OfflineRun:
    """One offline run's content.

    Attributes:
        name, project, group, job_type, tags: of the run.
        config: key -> value, as given to `wandb.init`.
        history: one dict a logged step, with W&B's own `_step`.
        summary: the final summary; nested keys are nested dicts.
        files: paths of uploaded media and tables, below the run's `files/`.
        exit_code: None while the run's end is not in the file.
    """

    name: str = ""
    project: str = ""
    group: str = ""
    job_type: str = ""
    tags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    exit_code: int | None = None


def read_offline_run(directory: str | Path, *, timeout_s: float = 10.0) -> OfflineRun:
    """The one offline run below `directory` (a run directory, or its `wandb/`).

    The writer is a process of its own and may finish after `finish()` returned, so this polls until the end of the
    run is in the file.

    Raises:
        RunDirectoryError: not exactly one `offline-run-*/run-*.wandb` below, or its end did not appear in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        paths = sorted(Path(directory).glob("**/offline-run-*/run-*.wandb"))
        if len(paths) == 1:
            run = _replayed(paths[0])
            if run.exit_code is not None:
                return run
        if time.monotonic() > deadline:
            raise RunDirectoryError(f"{directory}: want one finished offline W&B run, found {[str(p) for p in paths]}")
        time.sleep(0.02)


def read_records(path: str | Path) -> Iterator[bytes]:
    """The serialised records of one `run-*.wandb`, in order; stops at the first incomplete one."""
    data = Path(path).read_bytes()
    position, parts = _FILE_HEADER_BYTES, bytearray()
    while True:
        left_in_block = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left_in_block < _CHUNK_HEADER.size:
            position += left_in_block
            continue
        if position + _CHUNK_HEADER.size > len(data):
            return
        _, length, kind = _CHUNK_HEADER.unpack_from(data, position)
        position += _CHUNK_HEADER.size
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or position + length > len(data):
            return
        if kind in (_FULL, _FIRST):
            parts.clear()
        parts += data[position : position + length]
        position += length
        if kind in (_FULL, _LAST):
            yield bytes(parts)


def _replayed(path: Path) -> OfflineRun:
    from wandb.proto import wandb_internal_pb2

    record_type: Any = vars(wandb_internal_pb2)["Record"]  # made at run time, unknown to type checkers

    run = OfflineRun()
    for raw in read_records(path):
        record = record_type()
        record.ParseFromString(raw)
        _apply(run, record)
    return run


def _apply(run: OfflineRun, record: Any) -> None:
    kind = record.WhichOneof("record_type")
    if kind == "run":
        run.name, run.project = record.run.display_name, record.run.project
        run.group, run.job_type, run.tags = record.run.run_group, record.run.job_type, tuple(record.run.tags)
        _update(run.config, record.run.config.update)
    elif kind == "config":
        _update(run.config, record.config.update)
    elif kind == "history":
        step: dict[str, Any] = {}
        _update(step, record.history.item)
        run.history.append(step)
    elif kind == "summary":
        _update(run.summary, record.summary.update)
        for item in record.summary.remove:
            run.summary.pop(item.key, None)
    elif kind == "files":
        run.files.extend(file.path for file in record.files.files)
    elif kind == "exit":
        run.exit_code = record.exit.exit_code


def _update(target: dict[str, Any], items: Any) -> None:
    for item in items:
        *parents, last = list(item.nested_key) or [item.key]
        place = target
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = json.loads(item.value_json)
