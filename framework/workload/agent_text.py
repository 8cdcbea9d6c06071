"""Real agent prompts as text: each call of a session repeats what was said before and adds to it."""

from __future__ import annotations

import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from framework.errors import WorkloadError
from framework.files.jsonl import iter_objects
from framework.sampling import Sampling
from framework.workload.request import WorkloadRequest

_FIELDS: dict[str, type] = {"timestamp": int, "input": str, "output": str, "session_id": str}


def agent_text(
    *,
    seed: int,
    path: Path,
    family: str | None = None,
    limit: int | None = None,
    max_prompt_chars: int | None = None,
    max_tokens: int = 32,
    use_times: bool = False,
    skip_empty: bool = False,
) -> list[WorkloadRequest]:
    """Requests of agent sessions, in order of their time stamps.

    The source is JSON lines of `timestamp` (microseconds), `input`, `output` and `session_id`: one file, a folder of
    them, or a tar archive (`.tar`, `.tar.gz`, `.tar.xz`) read without unpacking. The recorded output is not used.

    Args:
        seed: unused: the prompts are what they are.
        path: file, folder or archive.
        family: only sources with a folder of this name in their path, such as `taubench`; null for all.
        limit: only the first so many requests; null for all.
        max_prompt_chars: keep only this many first characters of each prompt, so that long ones fit a small model;
            what prompts share at their start stays shared. Null keeps all.
        max_tokens: generated per request.
        use_times: arrive as recorded; else all at once, in order.
        skip_empty: leave out recorded calls whose prompt is empty; else one is an error.

    Raises:
        WorkloadError: an unreadable source, no request in it, or a damaged line; names file, line and field.
    """
    del seed
    calls = sorted(_calls(path, family, skip_empty), key=lambda call: int(call[1]["timestamp"]))[:limit]
    if not calls:
        raise WorkloadError(f"{path}: holds no agent call" + (f" of family {family!r}" if family else ""))
    start_us = calls[0][1]["timestamp"]
    sampling = Sampling(max_tokens=max_tokens)
    return [
        WorkloadRequest(
            prompt=record["input"][:max_prompt_chars],
            sampling=sampling,
            arrival_s=(record["timestamp"] - start_us) / 1e6 if use_times else 0.0,
            session=record["session_id"],
            key=where,
        )
        for where, record in calls
    ]


def _calls(path: Path, family: str | None, skip_empty: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, record in _objects(path, family):
        for field, kind in _FIELDS.items():
            value = record.get(field)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise WorkloadError(
                    f"{where}: {field}: want {kind.__name__}, found {type(value).__name__} {value!r:.60}"
                )
        if not record["input"]:
            if skip_empty:
                continue
            raise WorkloadError(f"{where}: input: an empty prompt; workload.skip_empty=true leaves such calls out")
        yield where, record


def _objects(path: Path, family: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    if ".tar" in path.suffixes:
        yield from _archived(path, family)
        return
    files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
    for file in files:
        if family is None or family in file.parts[:-1]:
            for number, record in iter_objects(file, WorkloadError):
                yield f"{file.name}:{number}", record


def _archived(path: Path, family: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with tarfile.open(path) as archive:
            members = [member for member in archive if member.isfile() and member.name.endswith(".jsonl")]
            for member in sorted(members, key=lambda member: member.name):
                name = PurePosixPath(member.name)
                if family is None or family in name.parts[:-1]:
                    for number, record in iter_objects(path / name, WorkloadError, file=archive.extractfile(member)):
                        yield f"{name.name}:{number}", record
    except (OSError, tarfile.TarError, EOFError, lzma.LZMAError) as fault:
        raise WorkloadError(f"{path}: cannot be read: {fault}") from fault
