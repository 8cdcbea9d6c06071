"""The records of an offline W&B run, read back without W&B's server.

`run-*.wandb` is a LevelDB log: after a header of 7 bytes, blocks of 32 KiB that hold chunks of (crc32c u32, length u16,
type u8, data), a record in one (type 1) or several (2 first, 3 middle, 4 last); where no chunk's header fits, zeros.
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

_BLOCK_BYTES, _CHUNK = 32 * 1024, struct.Struct("<IHB")


@dataclass
class OfflineRun:
    """What one run left. `exit_code` is None while the run's end is not in the file."""

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


def read_offline_run(directory: str | Path) -> OfflineRun:
    """The one offline run below `directory`; waits for its end, which a process of its own writes."""
    for _ in range(500):
        paths = sorted(Path(directory).glob("**/offline-run-*/run-*.wandb"))
        if len(paths) == 1 and (run := _replayed(paths[0])).exit_code is not None:
            return run
        time.sleep(0.02)
    raise AssertionError(f"{directory}: want one finished offline W&B run, found {[str(path) for path in paths]}")


def _records(data: bytes) -> Iterator[bytes]:
    """The serialised records, up to the first incomplete one."""
    position, record = 7, b""
    while position + _CHUNK.size <= len(data):
        left = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left < _CHUNK.size:
            position += left
            continue
        _, length, kind = _CHUNK.unpack_from(data, position)
        position += _CHUNK.size
        if not kind or position + length > len(data):
            return
        record = (b"" if kind in (1, 2) else record) + data[position : position + length]
        position += length
        if kind in (1, 4):
            yield record


def _replayed(path: Path) -> OfflineRun:
    from wandb.proto import wandb_internal_pb2

    run = OfflineRun()
    for raw in _records(path.read_bytes()):
        record = vars(wandb_internal_pb2)["Record"]()
        record.ParseFromString(raw)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.name, run.project = record.run.display_name, record.run.project
            run.group, run.job_type, run.tags = record.run.run_group, record.run.job_type, tuple(record.run.tags)
            _update(run.config, record.run.config.update)
        elif kind == "config":
            _update(run.config, record.config.update)
        elif kind == "history":
            run.history.append({})
            _update(run.history[-1], record.history.item)
        elif kind == "summary":
            _update(run.summary, record.summary.update)
            for item in record.summary.remove:
                run.summary.pop(item.key, None)
        elif kind == "files":
            run.files.extend(file.path for file in record.files.files)
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _update(target: dict[str, Any], items: Any) -> None:
    for item in items:
        *parents, last = list(item.nested_key) or [item.key]
        place = target
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = json.loads(item.value_json)
