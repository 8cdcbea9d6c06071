"""Trace readers: one file format of recorded requests each.

`TraceReader` has full control over a file's lines; `JsonLinesReader` and `CsvReader` are one method long: `parse`.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import orjson

from framework.interfaces.workload import BlockIdArray, Hint, Message, Namespace, Sampling, WorkloadRequest
from framework_builtin.trace.records import (
    MAX_TOKENS,
    BlockNames,
    FieldError,
    ScopedIds,
    check_block_count,
    contents,
    hint,
    integer,
    integers,
    number,
    text,
    texts,
)

__all__ = [
    "MAX_TOKENS",
    "PER_SECOND",
    "BlockIdArray",
    "BlockNames",
    "CsvReader",
    "FieldError",
    "Hint",
    "JsonLinesReader",
    "Line",
    "Message",
    "Namespace",
    "Record",
    "Sampling",
    "ScopedIds",
    "TraceReader",
    "WorkloadRequest",
    "check_block_count",
    "contents",
    "csv_cells",
    "hint",
    "integer",
    "integers",
    "json_object",
    "number",
    "text",
    "texts",
]

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}
"""Units that the times of a file may have -> how many are a second."""

Line = tuple[int, bytes]
"""(line number from 1, the line without its end). Blank lines are left out, compression is undone."""

Record = tuple[int, WorkloadRequest | FieldError]
"""(line number, the request on that line or what is wrong with it)."""


class TraceReader(ABC):
    """Reads the requests of one file. Made anew, without arguments, for every pass over a file.

    Attributes:
        block_tokens: tokens a block. On the class: of the files as published, 0 for lengths only. On an object that
            reads: what `block_size` answered.
        sizes_vary: the size a user gives describes the file; else it asks for coarser blocks, which the framework
            makes of the ones read.
        absolute_times: `arrival_s` are seconds since 1970; the framework subtracts the first request's.
        unsorted: requests may come in any order; the framework holds them all and sorts by arrival, ties as read.
        time_unit: of the times on its lines, a key of `PER_SECOND`, where files differ and a user may say which; ""
            where they do not. On an object that reads: what the user or `time_unit_of` said.
        example: a small trace of the format, for its kit: file name -> text, the trace first, then what lies beside it.
    """

    block_tokens: int = 0
    sizes_vary: ClassVar[bool] = False
    absolute_times: ClassVar[bool] = False
    unsorted: ClassVar[bool] = False
    time_unit: str = ""
    example: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @classmethod
    @abstractmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """Whether a file that begins with these lines is of this format. Raises nothing, whatever they hold.

        Args:
            head: the first two lines that are not blank; none of a folder.
            path: of the file, for formats recognised by their name or by files beside it.
        """

    def block_size(self, head: Sequence[Line], asked: int | None) -> int:
        """Tokens a block of the requests that `read` will yield; 0 for lengths only.

        Args:
            asked: what the user gave as `block_tokens`; None for nothing.

        Raises:
            FieldError: the file's first lines contradict the format.
        """
        return asked if asked is not None and self.sizes_vary else self.block_tokens

    def in_steps(self, head: Sequence[Line]) -> bool:
        """Whether `arrival_s` counts the scheduler's steps of the engine that was recorded, instead of seconds."""
        return False

    def time_unit_of(self, lines: Sequence[Line]) -> str:
        """The unit of times in a file that begins with these lines, a hundred at most; asked where one is declared."""
        return self.time_unit

    @abstractmethod
    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        """Every request in file order, or what is wrong with its line.

        A FieldError that is raised instead ends the file. Memory should hold one request, not the file.
        """


class JsonLinesReader(TraceReader):
    """A trace of one JSON object a line."""

    @abstractmethod
    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        """The request that one line's object describes.

        Raises:
            FieldError: a field is missing or wrong.
        """

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        for number_, line in lines:
            try:
                yield number_, self.parse(json_object(line))
            except FieldError as error:
                yield number_, error


class CsvReader(TraceReader):
    """A trace of comma-separated values with a header line, or of one JSON object a line with the same columns.

    Attributes:
        columns: the header has these, among others.
    """

    columns: ClassVar[tuple[str, ...]]

    @abstractmethod
    def parse(self, record: Mapping[str, str]) -> WorkloadRequest:
        """The request of one row, by column name.

        Raises:
            FieldError: a field is missing or wrong.
        """

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By the header."""
        try:
            return bool(head) and set(_columns(head[0][1])) >= set(cls.columns)
        except FieldError:
            return False

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        first = next(lines, (1, b""))
        names = _columns(first[1])
        missing = [name for name in self.columns if name not in names]
        if missing:
            raise FieldError("header", f"no column {', '.join(missing)}; found {', '.join(names)[:200] or 'nothing'}")
        if len(set(names)) < len(names):
            raise FieldError("header", f"a column appears twice: {', '.join(names)[:200]}")
        objects = first[1].startswith(b"{")
        for number_, line in chain([first], lines) if objects else lines:
            try:
                yield number_, self.parse(_texts_of(line) if objects else _row(line, names))
            except FieldError as error:
                yield number_, error


def _columns(line: bytes) -> list[str]:
    return list(json_object(line)) if line.startswith(b"{") else csv_cells(line)


def _row(line: bytes, names: Sequence[str]) -> dict[str, str]:
    cells = csv_cells(line)
    if len(cells) != len(names):
        raise FieldError("line", f"{len(cells)} columns, the header has {len(names)}")
    return dict(zip(names, cells, strict=True))


def _texts_of(line: bytes) -> dict[str, str]:
    """An object's values as a CSV file would have them; lists as 11|22."""
    return {
        name: "|".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in json_object(line).items() if value is not None
    }  # fmt: skip


def json_object(line: bytes) -> dict[str, Any]:
    """The object on one line.

    Raises:
        FieldError: no JSON, not UTF-8, or no object.
    """
    try:
        record = orjson.loads(line)
    except ValueError as error:
        raise FieldError("line", f"no JSON, or cut short: {error}") from None
    if not isinstance(record, dict):
        raise FieldError("line", "expected a JSON object")
    return record


def csv_cells(line: bytes) -> list[str]:
    """The cells of one line.

    Raises:
        FieldError: not UTF-8, or quotes that do not match.
    """
    try:
        return next(csv.reader([line.decode()], strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise FieldError("line", f"no CSV: {error}") from None
