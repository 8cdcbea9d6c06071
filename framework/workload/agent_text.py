"""Real agent prompts as text: each call of a session repeats what was said before and adds to it."""

from __future__ import annotations

import lzma
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from framework.errors import ConfigError, WorkloadError
from framework.files.jsonl import iter_objects
from framework.interfaces.workload import Sampling, Workload, WorkloadRequest
from framework.workload.prompts import utf8

_FIELDS: dict[str, type] = {"timestamp": int, "input": str, "output": str, "session_id": str}


@dataclass(kw_only=True)
class AgentText(Workload):
    """Recorded agent prompts as text, in order of their time stamps: JSON lines, a folder of them, or a tar archive.

    Lines hold `timestamp` (microseconds), `input`, `output` and `session_id`. An archive (`.tar`, `.tar.gz`,
    `.tar.xz`) is read without unpacking. The recorded output is not used. `category` is the folder of a call's file.

    Args:
        path: file, folder or archive.
        family: only sources with a folder of this name in their path, such as `taubench`; null for all.
        limit: only the first so many requests; null for all.
        max_prompt_chars: keep only this many first characters of each prompt, so that long ones fit a small model;
            what prompts share at their start stays shared. Null keeps all.
        max_tokens: generated per request.
        use_times: arrive as recorded; else all at once, in order.
        skip_empty: leave out recorded calls whose prompt is empty; else one is an error.
    """

    path: Path
    family: str | None = None
    limit: int | None = None
    max_prompt_chars: int | None = None
    max_tokens: int = 32
    use_times: bool = False
    skip_empty: bool = False

    def __post_init__(self) -> None:
        for name in ("limit", "max_prompt_chars", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"workload.{name} (agent_text) must be at least 1, found {value}")

    def requests(self) -> Iterator[WorkloadRequest]:
        """See Workload.

        Raises:
            WorkloadError: an unreadable source, no request in it, or a damaged line; names file, line and field.
        """
        found = _calls(self.path, self.family, self.skip_empty)
        calls = sorted(found, key=lambda call: int(call.record["timestamp"]))[: self.limit]
        if not calls:
            raise WorkloadError(
                f"{self.path}: holds no agent call" + (f" of family {self.family!r}" if self.family else "")
            )
        start_us = calls[0].record["timestamp"]
        sampling = Sampling(max_tokens=self.max_tokens)
        turns: Counter[str] = Counter()
        for call in calls:
            record, session = call.record, call.record["session_id"]
            yield WorkloadRequest(
                prompt=record["input"][: self.max_prompt_chars],
                sampling=sampling,
                arrival_s=(record["timestamp"] - start_us) / 1e6 if self.use_times else 0.0,
                session=session,
                turn=turns[session],
                category=call.folder or None,
                key=call.where,
            )
            turns[session] += 1


class _Call(NamedTuple):
    """One recorded call: `FILE:LINE`, the name of the file's folder, and the line's object."""

    where: str
    folder: str
    record: dict[str, Any]


def _calls(path: Path, family: str | None, skip_empty: bool) -> Iterator[_Call]:
    for call in _objects(path, family):
        where, _, record = call
        for field, kind in _FIELDS.items():
            value = record.get(field)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise WorkloadError(
                    f"{where}: {field}: want {kind.__name__}, found {type(value).__name__} {ascii(value)[:60]}"
                )
            if isinstance(value, str):
                utf8(f"{where}: {field}", value)
        if not record["input"]:
            if skip_empty:
                continue
            raise WorkloadError(f"{where}: input: an empty prompt; workload.skip_empty=true leaves such calls out")
        yield call


def _objects(path: Path, family: str | None) -> Iterator[_Call]:
    if ".tar" in path.suffixes:
        yield from _archived(path, family)
        return
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    for file in files:
        if family is None or family in file.parts[:-1]:
            for number, record in iter_objects(file, WorkloadError):
                yield _Call(f"{file.name}:{number}", file.parent.name if path.is_dir() else "", record)


def _archived(path: Path, family: str | None) -> Iterator[_Call]:
    try:
        with tarfile.open(path) as archive:
            members = [member for member in archive if member.isfile() and member.name.endswith(".jsonl")]
            for member in sorted(members, key=lambda member: member.name):
                name = PurePosixPath(member.name)
                if family is None or family in name.parts[:-1]:
                    for number, record in iter_objects(path / name, WorkloadError, file=archive.extractfile(member)):
                        yield _Call(f"{name.name}:{number}", name.parent.name, record)
    except (OSError, tarfile.TarError, EOFError, lzma.LZMAError) as fault:
        raise WorkloadError(f"{path}: cannot be read: {fault}") from fault
