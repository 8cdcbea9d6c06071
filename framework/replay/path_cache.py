"""Paths of traces kept on disk, so that a trace that was read once is not parsed again.

One file a trace, format and block size below `$XDG_CACHE_HOME/kvcache-framework/paths` (`~/.cache` where that is
unset), named by a SHA-256 over the trace's content and over all that decides how it is read. A file that is damaged is
made anew; the least recently used go when all are above `MAX_BYTES`. `KVLAB_CACHE=0` turns the cache off.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash

from framework import registry
from framework.errors import UnknownPlugin
from framework.files.atomic import beside
from framework.files.digest import sha256_of
from framework.replay.column_paths import column_paths
from framework.replay.cores import line_reader
from framework.replay.paths import KnownRequests, RequestPaths, build_paths
from framework.types import Hint
from framework.workload.traces.reader import Trace

VERSION = 3
MAX_BYTES = 2 * 2**30
_ARRAYS = ("nodes", "starts", "parents", "depths", "input_tokens", "tenants")
_SUFFIXES = (".safetensors", ".npz")
"""Of the files, and of those that earlier versions left."""
_BROKEN = (OSError, ValueError, KeyError, TypeError, EOFError)


def trace_paths(
    trace: Trace, *, limit: int | None = None, full_blocks_only: bool = False, allocator: Any = None
) -> RequestPaths:
    """`build_paths` of an open trace's first `limit` requests, from the cache where they are there.

    The trace's counts (`num_requests`, `num_skipped`, `first_error`) are as after reading it.

    Args:
        allocator: of the replay, as in a configuration: its reader of JSON lines, where it has one, reads the file.

    Raises:
        WorkloadError: see Trace and build_paths.
    """

    def build() -> RequestPaths:
        return read_paths(trace, limit, full_blocks_only, allocator)

    place = _place(trace, limit, full_blocks_only)
    if place is None:
        return build()
    with suppress(*_BROKEN):
        return _load(place, trace)
    found = build()
    with suppress(*_BROKEN):
        _save(place, found, trace)
    return found


def read_paths(trace: Trace, limit: int | None, full_blocks_only: bool, allocator: Any = None) -> RequestPaths:
    """`build_paths` of an open trace, at once where its reader and numbering can."""
    columns = trace.read_columns(line_reader(allocator)) if limit is None else None
    if columns is not None:
        found = column_paths(
            columns,
            line_tokens=trace.line_tokens,
            block_tokens=trace.block_tokens,
            full_blocks_only=full_blocks_only,
        )
        if found is not None:
            return found
    return build_paths(islice(trace, limit), full_blocks_only=full_blocks_only)


def cache_folder() -> Path | None:
    """Where the files lie; None where the cache is turned off."""
    if os.environ.get("KVLAB_CACHE") == "0":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "kvcache-framework" / "paths"


def _place(trace: Trace, limit: int | None, full_blocks_only: bool) -> Path | None:
    """The cache's file for this trace, read this way; None where its content alone does not decide the paths."""
    folder = cache_folder()
    if folder is None or not trace.path.is_file() or not trace.reader.single_file:
        return None
    choices = [VERSION, trace.format, trace.line_tokens, trace.block_tokens, trace.on_error, limit, full_blocks_only]
    digest = hashlib.sha256(repr(choices).encode())
    try:
        reader = registry.content_of(registry.find("trace", trace.format))  # another reader reads otherwise
        digest.update(f"{registry.framework_content()} {reader} {sha256_of(trace.path)}".encode())
    except (OSError, UnknownPlugin):
        return None
    return folder / f"{digest.hexdigest()}.safetensors"


def _save(place: Path, found: RequestPaths, trace: Trace) -> None:
    from safetensors.numpy import save_file

    arrays: dict[str, Any] = {name: getattr(found, name) for name in _ARRAYS}
    known = None
    if found.known is not None:
        known = dict(_columns(found.known))
        if None not in found.known.arrival:
            arrays["arrival"], known["arrival"] = np.array(found.known.arrival, dtype=np.float64), None
    counts = [trace.num_requests, trace.num_skipped, trace.first_error]
    meta = orjson.dumps({"block_tokens": found.block_tokens, "trace": counts, "known": known}).decode()
    place.parent.mkdir(parents=True, exist_ok=True)
    with beside(place, durable=False) as temporary:  # one that a crash cut short is made anew
        save_file(arrays, temporary, metadata={"meta": meta, "xxh3_128": _digest(meta, arrays)})
    _bound(place.parent, keep=place)


def _columns(known: KnownRequests) -> Iterator[tuple[str, Any]]:
    """Each fact's list; None for one of which nothing is known."""
    for field in fields(known):
        column = getattr(known, field.name)
        yield field.name, column if column.count(None) < len(column) else None


def _digest(meta: str, arrays: Mapping[str, Any]) -> str:
    """Of all that the file holds, so that damage is noticed."""
    digest = xxhash.xxh3_128(meta.encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _load(place: Path, trace: Trace) -> RequestPaths:
    if not place.exists():
        raise FileNotFoundError
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(place, framework="np") as file:
            arrays: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            stored = file.metadata()
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    if stored["xxh3_128"] != _digest(stored["meta"], arrays):
        raise ValueError("damaged")
    meta = orjson.loads(stored["meta"])
    known, arrival = meta["known"], arrays.pop("arrival", None)
    if known is not None:
        unknown = [None] * (len(arrays["starts"]) - 1)
        columns: dict[str, Any] = {name: unknown if column is None else column for name, column in known.items()}
        if arrival is not None:
            columns["arrival"] = arrival.tolist()
        columns["hint"] = [Hint.of(value) for value in columns["hint"]] if columns["hint"] is not unknown else unknown
        known = KnownRequests(**columns)
    trace.num_requests, trace.num_skipped, trace.first_error = meta["trace"]
    os.utime(place)  # the least recently used go first
    return RequestPaths(**arrays, block_tokens=meta["block_tokens"], known=known)


def _bound(folder: Path, *, keep: Path) -> None:
    """Remove the least recently used files above `MAX_BYTES`."""
    files = [(file.stat(), file) for file in folder.iterdir() if file.suffix in _SUFFIXES and file != keep]
    left = MAX_BYTES - keep.stat().st_size
    newest: Callable[[tuple[os.stat_result, Path]], float] = lambda entry: -entry[0].st_mtime  # noqa: E731
    for status, file in sorted(files, key=newest):
        left -= status.st_size
        if left < 0:
            with suppress(OSError):
                file.unlink()
