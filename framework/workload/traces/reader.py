"""Open any trace and read its requests, one at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from framework.errors import InvalidArgument, WorkloadError
from framework.workload.traces import block_traces, length_traces, own_format, recorded
from framework.workload.traces.lines import first_lines, read_lines
from framework.workload.traces.record import FieldError, TraceRequest, integer

OnError = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How to read one kind of file.

    Attributes:
        parse: (one line's fields, tokens a block) -> request; raises FieldError.
        columns: a CSV header must have these; empty for JSON lines.
        block_tokens: of the files as published; 0 for lengths only.
        header: (format, version) that the first JSON line names, where it describes the file.
        absolute: times are since 1970 and become relative to the first request's.
        sizes_vary: `block_tokens` given by the caller describes the file (else it asks for coarser blocks).
    """

    parse: Callable[[dict[str, Any], int], TraceRequest]
    columns: tuple[str, ...] = ()
    block_tokens: int = 0
    header: tuple[str, int] | None = None
    absolute: bool = False
    sizes_vary: bool = False


FORMATS = {
    "mooncake": TraceFormat(block_traces.mooncake, block_tokens=block_traces.MOONCAKE_BLOCK_TOKENS),
    "hash_ids": TraceFormat(block_traces.mooncake, block_tokens=512, sizes_vary=True),
    "bailian": TraceFormat(block_traces.bailian, block_tokens=block_traces.BAILIAN_BLOCK_TOKENS, sizes_vary=True),
    "runs": TraceFormat(block_traces.runs, block_tokens=block_traces.RUNS_BLOCK_TOKENS),
    "azure": TraceFormat(length_traces.azure, columns=length_traces.AZURE_COLUMNS, absolute=True),
    "burstgpt": TraceFormat(length_traces.burstgpt, columns=length_traces.BURSTGPT_COLUMNS),
    "vidur": TraceFormat(length_traces.vidur, columns=length_traces.VIDUR_COLUMNS),
    "own": TraceFormat(
        own_format.own,
        block_tokens=own_format.DEFAULT_BLOCK_TOKENS,
        header=(own_format.FORMAT, own_format.VERSION),
    ),
    "recording": TraceFormat(
        recorded.recorded,
        block_tokens=own_format.DEFAULT_BLOCK_TOKENS,
        header=(recorded.FORMAT, recorded.VERSION),
    ),
}
"""Every format by name. `hash_ids` is Mooncake's line with times in milliseconds and blocks of any size."""


class Trace:
    """The requests of one file, in file order, read anew by each iteration in constant memory.

    Attributes:
        path, format, block_tokens: as opened; `block_tokens` is 0 for lengths only.
        num_requests, num_skipped: of the iteration in progress or last done.
        first_error: text of the first line skipped, "" if none.
    """

    def __init__(self, path: Path, format: str, block_tokens: int, coarse_tokens: int, on_error: OnError) -> None:
        self.path, self.format = path, format
        self.block_tokens = coarse_tokens or block_tokens
        self._line_tokens, self._on_error = block_tokens, on_error
        self.num_requests = self.num_skipped = 0
        self.first_error = ""

    def __iter__(self) -> Iterator[TraceRequest]:
        self.num_requests = self.num_skipped = 0
        self.first_error = ""
        style, last, epoch = FORMATS[self.format], 0.0, None
        for line_number, fields in self._records(style):
            try:
                if isinstance(fields, FieldError):
                    raise fields
                request = style.parse(fields, self._line_tokens)
                if style.absolute:
                    epoch = request.arrival_s if epoch is None else epoch
                    request = replace(request, arrival_s=request.arrival_s - epoch)
                if request.arrival_s < last:
                    raise FieldError("arrival time", f"{request.arrival_s} s after {last} s: sort the file by time")
                if request.block_ids is not None and self.block_tokens != self._line_tokens:
                    request = block_traces.coarsen(request, self.block_tokens)
            except FieldError as error:
                self._failed(line_number, error)
                continue
            last = request.arrival_s
            self.num_requests += 1
            yield request

    def _failed(self, line_number: int, error: FieldError) -> None:
        message = f"{self.path}:{line_number}: {error}"
        if self._on_error == "raise":
            raise WorkloadError(f"{message}; on_error=skip leaves such lines out and counts them") from error
        self.num_skipped += 1
        self.first_error = self.first_error or message

    def _records(self, style: TraceFormat) -> Iterator[tuple[int, dict[str, Any] | FieldError]]:
        lines = read_lines(self.path)
        if style.columns:
            return _csv_records(self.path, lines, style.columns)
        if style.header:
            next(lines, None)
        return _json_records(lines)


def _json_records(lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, dict[str, Any] | FieldError]]:
    for line_number, line in lines:
        yield line_number, parse_json(line)


def parse_json(line: bytes) -> dict[str, Any] | FieldError:
    """The object on one line, or what is wrong with it."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return FieldError("line", f"no JSON, or cut short: {error}")
    return record if isinstance(record, dict) else FieldError("line", "expected a JSON object")


def _csv_records(
    path: Path, lines: Iterator[tuple[int, bytes]], columns: tuple[str, ...]
) -> Iterator[tuple[int, dict[str, Any] | FieldError]]:
    header = _cells(next(lines, (1, b""))[1])
    names = header if isinstance(header, list) else []
    missing = [name for name in columns if name not in names]
    if missing:
        raise WorkloadError(f"{path}:1: no column {', '.join(missing)}; found {', '.join(names)[:200] or 'nothing'}")
    for line_number, line in lines:
        cells = _cells(line)
        if isinstance(cells, list) and len(cells) != len(names):
            cells = FieldError("line", f"{len(cells)} columns, the header has {len(names)}")
        yield line_number, cells if isinstance(cells, FieldError) else dict(zip(names, cells, strict=True))


def _cells(line: bytes) -> list[str] | FieldError:
    try:
        rows = list(csv.reader([line.decode()], strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        return FieldError("line", f"no CSV: {error}")
    return rows[0] if rows else []


def detect_format(path: str | Path) -> str:
    """The format by the file's first line.

    Raises:
        WorkloadError: unreadable, empty, or no known format.
    """
    first = next(iter(first_lines(path, 1)), None)
    if first is None:
        raise WorkloadError(f"{path}: empty, so its format cannot be told; name it: {', '.join(FORMATS)}")
    record = parse_json(first[1])
    if isinstance(record, dict):
        if "format" in record:
            known = (name for name, style in FORMATS.items() if style.header and style.header[0] == record["format"])
            found = next(known, "")
        elif "runs" in record:
            found = "runs"
        else:
            found = "bailian" if "chat_id" in record else "mooncake" if "hash_ids" in record else ""
    else:
        cells = _cells(first[1])
        names = set(cells) if isinstance(cells, list) else set()
        found = next((name for name, style in FORMATS.items() if style.columns and names >= set(style.columns)), "")
    if not found:
        raise WorkloadError(f"{path}:{first[0]}: no known trace format; name one: {', '.join(FORMATS)}")
    return found


def open_trace(
    path: str | Path, *, format: str = "auto", block_tokens: int | None = None, on_error: OnError = "raise"
) -> Trace:
    """The trace in `path`, plain, .gz or .zst.

    Args:
        format: a name in FORMATS, or "auto" to tell by the first line.
        block_tokens: tokens a block. For `hash_ids` and `bailian` the size in the file; for token-level files the
            size to cut prompts into; for the others a multiple of the file's own size, to read coarser blocks.
        on_error: "raise" stops at the first bad line; "skip" leaves it out and counts it in `num_skipped`.

    Raises:
        InvalidArgument: an unknown format, choice or block size.
        WorkloadError: the file cannot be read (here), or a line cannot (while iterating).
    """
    if on_error not in ("raise", "skip"):
        raise InvalidArgument(f"on_error must be raise or skip, found {on_error!r}")
    if format != "auto" and format not in FORMATS:
        raise InvalidArgument(f"no trace format {format!r}; known: auto, {', '.join(FORMATS)}")
    if block_tokens is not None and block_tokens < 1:
        raise InvalidArgument(f"block_tokens must be at least 1, found {block_tokens}")
    path = Path(path)
    name = detect_format(path) if format == "auto" else format
    style = FORMATS[name]
    size, by_tokens = _header_size(path, style) if style.header else (style.block_tokens, False)
    if style.sizes_vary or by_tokens or not size:
        return Trace(path, name, (block_tokens or size) if size else 0, 0, on_error)
    if block_tokens is not None and block_tokens % size:
        raise InvalidArgument(f"{path} has blocks of {size} tokens; block_tokens={block_tokens} is no multiple")
    return Trace(path, name, size, block_tokens or 0, on_error)


def _header_size(path: Path, style: TraceFormat) -> tuple[int, bool]:
    """(tokens a block, whether prompts are token ids that can be cut into blocks of any size)."""
    header, first, *_ = [*first_lines(path, 2), (1, b""), (2, b"{}")]
    try:
        record = parse_json(header[1])
        if isinstance(record, FieldError):
            raise record
        assert style.header is not None
        own_format.check_header(record, *style.header)
        given = record if style.header[0] == own_format.FORMAT else {"block_tokens": style.block_tokens}
        size = integer(given, "block_tokens", 1)
    except FieldError as error:
        raise WorkloadError(f"{path}:1: {error}") from error
    request = parse_json(first[1])
    return size, isinstance(request, dict) and bool({"tokens", "prompt"} & request.keys())
