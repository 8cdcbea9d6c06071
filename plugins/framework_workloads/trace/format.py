"""Trace readers: one file format of recorded requests each, and the fields of one record, read strictly.

`TraceReader` has full control over a file's lines; `JsonLinesReader` and `CsvReader` are one method long: `parse`.
"""

from __future__ import annotations

import csv
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import orjson

from framework.errors import FrameworkError, InvalidArgument, shown
from framework.interfaces.workload import BlockIdArray, Hint, WorkloadRequest
from framework.types import Contents, TokenArray, as_contents

MAX_TOKENS = 100_000_000
"""Most tokens one request may claim: above any context window, below what a corrupted digit makes of one."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)


class FieldError(ValueError):
    """One field of one record is missing or wrong. The framework turns it into a WorkloadError with file and line."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")


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


class HeadedReader(JsonLinesReader):
    """One JSON object a line, after a header line with the format's name and version.

    Attributes:
        header: both.
    """

    header: ClassVar[tuple[str, int]]

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By the header."""
        return first_object(head).get("format") == cls.header[0]

    def block_size(self, head: Sequence[Line], asked: int | None) -> int:
        """See TraceReader; the header is checked first."""
        check_header(first_object(head), *self.header)
        return super().block_size(head, asked)

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        """See TraceReader; the first line is the header."""
        next(lines, None)
        return super().read(lines, path)


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


def first_object(head: Sequence[Line]) -> dict[str, Any]:
    """The object on a file's first line; an empty one where there is none."""
    try:
        return json_object(head[0][1]) if head else {}
    except FieldError:
        return {}


def check_header(record: Mapping[str, Any], name: str, version: int) -> None:
    """The header names a format and a version that can be read.

    Raises:
        FieldError: it does not.
    """
    if record.get("format") != name:
        raise FieldError("format", f"expected {name!r}, found {str(record.get('format'))[:40]!r}")
    if record.get("version") != version:
        raise FieldError("version", f"this reader knows version {version}, found {str(record.get('version'))[:40]}")


def csv_cells(line: bytes) -> list[str]:
    """The cells of one line.

    Raises:
        FieldError: not UTF-8, or quotes that do not match.
    """
    try:
        return next(csv.reader([line.decode()], strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise FieldError("line", f"no CSV: {error}") from None


def integer(record: Mapping[str, Any], field: str, low: int, high: int = MAX_TOKENS) -> int:
    """The whole number in `field`, as a JSON number or as ASCII digits, within bounds.

    Raises:
        FieldError: missing, no whole number, or outside `low` to `high`.
    """
    found: Any = record.get(field)
    value: int = found
    if type(found) is not int:
        whole = isinstance(found, float) and found.is_integer()
        if not whole and not (isinstance(found, str) and _WHOLE.fullmatch(found)):
            raise FieldError(field, "missing" if found is None else f"expected a whole number, found {_shown(found)}")
        value = int(found)
    if not low <= value <= high:
        raise FieldError(field, f"expected {low} to {high}, found {value}")
    return value


def _shown(value: Any) -> str:
    return shown(value)[:40].encode("ascii", "backslashreplace").decode()


def number(record: Mapping[str, Any], field: str) -> float:
    """The finite number, at least 0, in `field`, as a JSON number or as ASCII text.

    Raises:
        FieldError: missing, no number, negative, infinite or NaN.
    """
    value = record.get(field)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FieldError(field, "missing" if value is None else f"expected a number, found {_shown(value)}")
    if not 0 <= value <= sys.float_info.max:
        raise FieldError(field, f"expected a finite number, at least 0, found {_shown(value)}")
    return float(value)


def text(record: Mapping[str, Any], field: str) -> str | None:
    """The text in `field`; whole numbers as their digits; None when absent, null or empty.

    Raises:
        FieldError: something else, or text that UTF-8 cannot hold.
    """
    value = record.get(field)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise FieldError(field, f"expected text, found {str(value)[:40]}")
    result = str(value)
    if not result.isascii():
        try:
            result.encode()
        except UnicodeEncodeError as error:
            raise FieldError(field, f"holds a lone surrogate at character {error.start}") from None
    return result


def texts(record: Mapping[str, Any], field: str) -> tuple[str, ...]:
    """The texts of the list in `field`; whole numbers as their digits; none when absent or null.

    Raises:
        FieldError: no list, or an element that is no text or an empty one.
    """
    value = record.get(field)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise FieldError(field, f"expected a list of texts, found {_shown(value)}")
    found = tuple(text({field: entry}, field) for entry in value)
    if not all(found):
        raise FieldError(field, "expected a list of texts, found an empty one among them")
    return tuple(map(str, found))


def hint(record: Mapping[str, Any], field: str = "hint") -> Hint | None:
    """The hint in `field`: a probability to continue, or an object of Hint's fields; None when absent.

    Raises:
        FieldError: something else.
    """
    try:
        return Hint.of(record.get(field))
    except (FrameworkError, TypeError, OverflowError) as error:
        raise FieldError(field, str(error)) from None


def contents(record: Mapping[str, Any], num_tokens: int | None = None, field: str = "contents") -> Contents:
    """What is not text in a prompt of so many tokens, from a list of [start, end, name] in `field`; none when absent.

    Raises:
        FieldError: something else, or a range that is not within the prompt.
    """
    try:
        return as_contents(record.get(field) or (), num_tokens)
    except InvalidArgument as error:
        raise FieldError(field, str(error)) from None


def integers(record: Mapping[str, Any], field: str, limit: int = 2**62) -> BlockIdArray:
    """(n,) int64 whole numbers of the list in `field`, each 0 to `limit`, at most 2**63 - 1.

    Raises:
        FieldError: missing, no list, or an element that is no whole number within bounds.
    """
    return _whole_numbers(record, field, limit).astype(np.int64, copy=False)


def token_ids(record: Mapping[str, Any], field: str) -> TokenArray:
    """(n,) int32 token ids of the list in `field`.

    Raises:
        FieldError: missing, no list, or an element that is no token id.
    """
    return integers(record, field, limit=2**31 - 1).astype(np.int32)


class BlockNames:
    """The block ids of one file. A name is a whole number up to 2**64 - 1, as engines hash blocks.

    An id is the name itself below 2**62. From there on it is 2**62 and up, in order of first appearance: one dict entry
    a distinct name.
    """

    def __init__(self) -> None:
        self._large: dict[int, int] = {}

    def ids(self, record: Mapping[str, Any], field: str) -> BlockIdArray:
        """(n,) int64 ids of the names in `field`.

        Raises:
            FieldError: missing, no list, or an element that is no name.
        """
        names = _whole_numbers(record, field, 2**64 - 1)
        if not len(names) or names.max() < _LARGE:
            return names.astype(np.int64, copy=False)
        large = self._large
        return np.array(
            [name if name < _LARGE else large.setdefault(name, _LARGE + len(large)) for name in names.tolist()],
            dtype=np.int64,
        )


_LARGE = 2**62


def _whole_numbers(record: Mapping[str, Any], field: str, limit: int) -> npt.NDArray[Any]:
    value = record.get(field)
    if not isinstance(value, list):
        raise FieldError(field, "missing" if value is None else f"expected a list, found {str(value)[:40]}")
    if not value:
        return np.empty(0, dtype=np.int64)
    if set(map(type, value)) == {int}:
        found = np.array(value)  # int64, uint64 where all fit only that, else floats or objects
        if found.dtype.kind in "iu" and found.min() >= 0 and found.max() <= limit:
            return found
        if min(value) >= 0 and max(value) <= limit:
            return np.array(value, dtype=np.uint64)
    wrong = next(entry for entry in value if type(entry) is not int or not 0 <= entry <= limit)
    raise FieldError(field, f"expected a flat list of whole numbers, 0 to {limit}, found {_shown(wrong)}")


class ScopedIds:
    """Block ids of a trace that counts them anew in each scope, as ids that are equal only where the content is.

    Small and dense where the file's are, so that nothing has to sort them: 4,096 neighbours of one scope stay
    neighbours.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], int] = {}

    def of(self, scope: str, ids: BlockIdArray) -> BlockIdArray:
        """(n,) int64, for the ids `ids` (n,) of `scope`; the same for equal ids of one scope, whoever asks when."""
        runs, places = np.unique(ids >> 12, return_inverse=True)
        numbers = [self._runs.setdefault((scope, run), len(self._runs)) for run in runs.tolist()]
        found: BlockIdArray = np.array(numbers, dtype=np.int64)[places.reshape(-1)] << 12 | ids & 4095
        return found


def check_block_count(field: str, num_ids: int, input_tokens: int, block_tokens: int) -> None:
    """The block ids must be as many as the prompt has blocks, the partial last one counted or not.

    Raises:
        FieldError: they are not: the trace is damaged or its blocks have another size.
    """
    full, rest = divmod(input_tokens, block_tokens)
    if num_ids not in (full, full + bool(rest)):
        raise FieldError(
            field,
            f"{num_ids} block ids for {input_tokens} input tokens, expected {full + bool(rest)} of {block_tokens} "
            "tokens; is block_tokens right?",
        )


def facts_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a line says of its request under WorkloadRequest's own names: `priority`, `tenant`, `session`, `turn`,
    `category`, `hint` and `key`, each optional.

    Raises:
        FieldError: one of them is wrong.
    """
    return {
        "priority": integer(record, "priority", -(2**31), 2**31) if "priority" in record else 0,
        "tenant": text(record, "tenant") or "",
        "session": text(record, "session"),
        "turn": integer(record, "turn", 0) if record.get("turn") is not None else None,
        "category": text(record, "category"),
        "hint": hint(record),
        "key": text(record, "key") or "",
    }
