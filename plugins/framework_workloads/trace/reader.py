"""Open any trace and read its requests, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from framework import registry
from framework.errors import InvalidArgument, UnknownPlugin, WorkloadError, plugin_note
from framework.files.once import kept
from framework.guard.boundary import Guard, construct, is_count
from framework.interfaces.workload import WorkloadRequest
from framework.registry.culprit import named
from framework_workloads.lines import first_lines, read_lines
from framework_workloads.trace.format import MAX_TOKENS, PER_SECOND, FieldError, Line, Record, TraceReader

OnError = Literal["raise", "skip"]

_READ = (WorkloadRequest, FieldError)


@dataclass(eq=False)
class Trace:
    """The requests of one file, in file order, read anew by each iteration in constant memory.

    Attributes:
        path, format, block_tokens, on_error: as opened; `block_tokens` is 0 for lengths only.
        reader, line_tokens: the format's reader, and tokens a block as the file has them.
        in_steps: arrivals count an engine's steps, not seconds. in_seconds: the file has both, and these are read.
        time_unit, guessed_time_unit: of the file's times, where files of its format differ; whether it is another than
            the format's own and nobody asked for it.
        num_requests, num_skipped: of the iteration in progress or last done.
        first_error: text of the first line skipped, "" if none.
    """

    path: Path
    format: str
    reader: type[TraceReader]
    line_tokens: int
    block_tokens: int
    on_error: OnError
    in_steps: bool = False
    time_unit: str = ""
    guessed_time_unit: bool = False
    in_seconds: bool = False
    num_requests: int = field(default=0, init=False)
    num_skipped: int = field(default=0, init=False)
    first_error: str = field(default="", init=False)

    def __iter__(self) -> Iterator[WorkloadRequest]:
        """Every request.

        Raises:
            WorkloadError: a line that cannot be read, naming file, line and field; or no request at all.
            PluginError: the reader yielded what it may not.
        """
        self.num_requests = self.num_skipped = 0
        self.first_error = ""
        last = 0.0
        for line_number, record in self._in_order():
            try:
                request = self._accepted(record, last)
            except FieldError as error:
                self._failed(line_number, error)
                continue
            last = request.arrival_s
            self.num_requests += 1
            yield request
        if not self.num_requests:
            skipped = f"; {self.num_skipped:,} lines were skipped; the first: {self.first_error}"
            raise WorkloadError(
                f"{self.path} holds 0 requests{skipped if self.first_error else ''}; there is nothing to replay"
            )

    def _accepted(self, record: WorkloadRequest | FieldError, last: float) -> WorkloadRequest:
        if isinstance(record, FieldError):
            raise record
        if record.arrival_s < last:
            raise FieldError("arrival time", f"{record.arrival_s} s after {last} s: sort the file by time")
        if record.block_ids is not None and self.block_tokens != self.line_tokens:
            return coarsen(record, self.block_tokens)
        return record

    def _in_order(self) -> Iterator[Record]:
        """The reader's records, sorted where they may not be, with times that begin at the first request's."""
        records = self._read()
        if self.reader.unsorted:
            records = iter(sorted(records, key=lambda record: getattr(record[1], "arrival_s", 0.0)))
        epoch: float | None = None
        for line_number, record in records:
            if self.reader.absolute_times and isinstance(record, WorkloadRequest):
                epoch = record.arrival_s if epoch is None else epoch
                since = record.arrival_s - epoch
                if since < 0:
                    yield line_number, FieldError("arrival time", f"{-since} s before the first: sort the file by time")
                    continue
                record = replace(record, arrival_s=since)
            yield line_number, record

    def _read(self) -> Iterator[Record]:
        return kept(self.path, (self.reader, self.line_tokens, self.time_unit, self.in_seconds), self._records)

    def _records(self) -> Iterator[Record]:
        """What the reader yields, checked."""
        guard, reader, number = _guard(self.reader), _made(self.reader), 1

        def lines() -> Iterator[Line]:
            nonlocal number
            for line in lines_of(self.path):
                number = line[0]
                yield line

        reader.block_tokens = self.line_tokens
        reader.time_unit = self.time_unit or reader.time_unit
        if self.in_seconds:
            reader.in_seconds = True  # type: ignore[attr-defined]
        try:
            for answer in reader.read(lines(), self.path):
                if type(answer) is not tuple or len(answer) != 2 or not isinstance(answer[1], _READ):
                    guard.wrong("read", "must yield (line number, WorkloadRequest or FieldError)", answer)
                size = getattr(answer[1], "block_tokens", 0)
                if size != self.line_tokens and getattr(answer[1], "block_ids", None) is not None:
                    rule = f"yielded blocks of {size} tokens where block_size said {self.line_tokens}"
                    raise guard.fault("read", rule)
                yield answer
        except FieldError as error:
            raise WorkloadError(f"{self.path}:{number}: {error}") from error

    def _failed(self, line_number: int, error: FieldError) -> None:
        message = f"{self.path}:{line_number}: {error}"
        if self.on_error == "raise":
            raise WorkloadError(f"{message}; on_error=skip leaves such lines out and counts them") from error
        self.num_skipped += 1
        self.first_error = self.first_error or message


def coarsen(request: WorkloadRequest, block_tokens: int) -> WorkloadRequest:
    """The same request in blocks of `block_tokens`, a multiple of its own.

    Keeps every k-th id: exact where an id names its whole prefix, as in Mooncake's and the agent traces (Qwen-Bailian's
    name a block's own tokens). A partial last block has no name at the coarser size and is left out.

    Raises:
        FieldError: not a multiple.
    """
    if request.block_ids is None or block_tokens == request.block_tokens:
        return request
    factor, rest = divmod(block_tokens, request.block_tokens)
    if rest or factor < 1:
        raise FieldError("block_tokens", f"{block_tokens} is no multiple of the trace's {request.block_tokens}")
    full = request.block_ids[: request.num_full_blocks]
    return replace(request, block_ids=full[factor - 1 :: factor], block_tokens=block_tokens)


def lines_of(path: Path) -> Iterator[Line]:
    """The file's lines; none of a folder."""
    return iter(()) if path.is_dir() else read_lines(path)


def _guard(reader: type[TraceReader]) -> Guard:
    return Guard("trace reader", reader)


def _made(reader: type[TraceReader]) -> TraceReader:
    made: TraceReader = construct("trace", reader.__name__, reader, {})
    return made


def formats() -> tuple[str, ...]:
    """The formats that are installed, by name."""
    return tuple(registry.names("trace"))


def _reader(name: str) -> type[TraceReader]:
    reader: type[TraceReader] = registry.load("trace", name)
    return reader


def detect_format(path: str | Path) -> str:
    """The format whose reader says that the file is its own.

    Raises:
        WorkloadError: unreadable, empty, of no known format, or claimed by several.
    """
    path = Path(path)
    if path.suffix in (".tgz", ".txz", ".zip") or ".tar" in path.suffixes:
        raise WorkloadError(f"{path}: an archive: unpack it; workload=agent_text reads archives of prompts")
    head, failed = _head(path), list[str]()
    known = [name for name in formats() if _recognises(name, head, path, failed)]
    if not known:
        what = "a folder of" if path.is_dir() else "of" if head else "empty, of"
        broken = f"; could not be asked: {'; '.join(failed)}" if failed else ""
        raise WorkloadError(f"{path}: {what} no known trace format; name one: {', '.join(formats())}{broken}")
    if len(known) > 1:
        raise WorkloadError(f"{path}: of several trace formats, {' and '.join(known)}; say which with format=NAME")
    return known[0]


def _recognises(name: str, head: Sequence[Line], path: Path, failed: list[str]) -> bool:
    """Asks one reader. One that cannot be imported, raises or answers no bool goes to `failed`; others are asked."""
    try:
        return _says(_reader(name), "recognises", head, path)
    except Exception as error:
        failed.append(plugin_note(named(error)) or str(error))
        return False


def _says(reader: type[TraceReader], hook: str, *arguments: Any) -> bool:
    answer: Any = getattr(_made(reader), hook)(*arguments)
    if type(answer) is not bool:
        _guard(reader).wrong(hook, "must return a bool", answer)
    return bool(answer)


def _head(path: Path) -> list[Line]:
    return [] if path.is_dir() else first_lines(path, 2)


def open_trace(
    path: str | Path, *, format: str = "auto", block_tokens: int | None = None, on_error: OnError = "raise",
    time_unit: str = "auto",
    in_seconds: bool = False,
) -> Trace:  # fmt: skip
    """The trace in `path`, plain, .gz or .zst, or a folder where the format is one of folders.

    Args:
        format: the name of an installed format, or "auto" to let the readers tell.
        block_tokens: tokens a block. For formats of any size and for token-level files the size to read; for the
            others a multiple of the file's own size, to read coarser blocks.
        on_error: "raise" stops at the first bad line; "skip" leaves it out and counts it in `num_skipped`.
        time_unit: s, ms or us, of a format whose files differ in it; "auto" takes what fits the first times.
        in_seconds: where arrivals are steps, read the seconds that stand beside them.

    Raises:
        InvalidArgument: an unknown format, choice or block size.
        WorkloadError: the file cannot be read (here), or a line cannot (while iterating).
    """
    if on_error not in ("raise", "skip"):
        raise InvalidArgument(f"on_error must be raise or skip, found {on_error!r}")
    if block_tokens is not None and block_tokens < 1:
        raise InvalidArgument(f"block_tokens must be at least 1, found {block_tokens}")
    path = Path(path)
    try:
        name = detect_format(path) if format == "auto" else format
        reader = _reader(name)
    except UnknownPlugin:
        raise InvalidArgument(f"no trace format {format!r}; known: auto, {', '.join(formats())}") from None
    head = _head(path)
    size = _block_size(reader, path, head, block_tokens)
    if block_tokens is not None and size and block_tokens % size:
        raise InvalidArgument(
            f"{path} has blocks of {size} tokens, and {block_tokens} is no multiple of that; "
            f"give cache.block_size={size} to a run, or {size} as block_tokens"
        )
    read_tokens = (block_tokens or size) if size else 0
    unit, steps = _time_unit(reader, name, path, time_unit), _says(reader, "in_steps", head)
    if in_seconds and steps and not hasattr(reader, "in_seconds"):
        raise InvalidArgument(f"{path}: its arrivals are an engine's steps, and it has no seconds beside them")
    seconds = in_seconds and steps
    return Trace(
        path, name, reader, size, read_tokens, on_error, in_steps=steps and not seconds, in_seconds=seconds,
        time_unit=unit, guessed_time_unit=time_unit == "auto" and unit != reader.time_unit,
    )  # fmt: skip


def _time_unit(reader: type[TraceReader], name: str, path: Path, asked: str) -> str:
    """The unit of the file's times; "" where its format has one alone."""
    if asked != "auto" and asked not in PER_SECOND:
        raise InvalidArgument(f"time_unit must be auto, {', '.join(PER_SECOND)}, found {asked!r}")
    if not reader.time_unit:
        if asked != "auto":
            raise InvalidArgument(f"times of format {name} have one unit; leave time_unit out")
        return ""
    if asked != "auto":
        return asked
    lines = [] if path.is_dir() else first_lines(path, 100)
    unit: Any = _made(reader).time_unit_of(lines)
    if unit not in PER_SECOND:
        _guard(reader).wrong("time_unit_of", f"must return one of {', '.join(PER_SECOND)}", unit)
    return str(unit)


def _block_size(reader: type[TraceReader], path: Path, head: Sequence[Line], asked: int | None) -> int:
    try:
        size: Any = _made(reader).block_size(head, asked)
    except FieldError as error:
        raise WorkloadError(f"{path}:1: {error}") from error
    if not is_count(size) or size > MAX_TOKENS:
        _guard(reader).wrong("block_size", f"must return an int from 0 to {MAX_TOKENS:,}", size)
    return int(size)
