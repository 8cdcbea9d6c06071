"""Conformance kit of trace readers: recognition, strictness, and what damage does.

`trace_checks` are plain functions `check(make)`, cheap first; `make()` builds a fresh reader. Most read the reader's
own `example`, whole and damaged; a reader without one is only shown what is not its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from framework.errors import FrameworkError
from framework.interfaces.workload import WorkloadRequest
from framework_testing.driver import Violation
from framework_testing.rules import checks_of, need
from framework_workloads.trace.format import FieldError, Line, TraceReader
from framework_workloads.trace.reader import Trace, lines_of

Make = Callable[[], TraceReader]

FOREIGN = (
    b"", b"{}", b"[]", b"null", b"0", b'"text"', b"{", b"\x00" * 40, b"\xff\xfe\xfd", b"a,b,c", b'{"prompt": "hello"}',
    b'{"hash_ids": 3}', b'{"format": 7}', b'{"requests": {}}', b"[" * 5000, b'{"timestamp": NaN}',
    b"PK\x03\x04", b"x" * 10_000,
)  # fmt: skip
"""First lines of files that are nobody's trace."""


def _example(reader: TraceReader) -> Iterator[Path]:
    """The path of the reader's example, written out for as long as it is asked; nothing where it has none."""
    if not reader.example:
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, text in reader.example.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        yield Path(folder) / next(iter(reader.example))


def _trace(reader: TraceReader, path: Path, on_error: str = "raise") -> Trace:
    size = reader.block_size(list(lines_of(path))[:2], None)
    return Trace(path, type(reader).__name__, type(reader), size, size, "skip" if on_error == "skip" else "raise")


def check_it_recognises_its_example(make: Make) -> None:
    """`recognises` is True of its own example and False, without raising, of what is nobody's trace."""
    reader = make()
    for path in _example(reader):
        answer = reader.recognises(list(lines_of(path))[:2], path)
        need(reader, answer is True, "does not recognise its own example", answer)
    for line in FOREIGN:
        head: list[Line] = [(1, line)] if line else []
        try:
            answer = reader.recognises(head, Path("other.jsonl"))
        except Exception as error:
            raise Violation(f"{type(reader).__name__}: recognises raised {error!r} of {line[:40]!r}") from error
        need(reader, answer is False, f"claims a file that begins with {line[:40]!r}", answer)


def check_its_example_is_read(make: Make) -> None:
    """Every line of the example is a request with a prompt, in order of arrival, with blocks of the size it says."""
    reader = make()
    for path in _example(reader):
        try:
            requests, size = list(_trace(reader, path)), reader.block_size(list(lines_of(path))[:2], None)
        except FrameworkError as error:
            raise Violation(f"{type(reader).__name__}: cannot read its own example: {error}") from error
        for one in requests:
            need(reader, isinstance(one, WorkloadRequest), "yields something else than requests", one)
            need(reader, one.input_tokens > 0 or isinstance(one.prompt, (str, tuple)), "an empty prompt", one)
            if one.block_ids is not None:
                need(reader, one.block_tokens == size, "blocks of another size than block_size says", one)
            need(reader, one.session != "" and one.category != "", 'unknown is None, found ""', one)


def check_reading_again_gives_the_same(make: Make) -> None:
    """Two passes, each by a reader of its own, yield equal requests: no state is left behind."""
    reader = make()
    for path in _example(reader):
        passes = [list(_trace(make(), path)) for _ in range(2)]
        need(reader, passes[0] == passes[1], "a second pass reads something else", passes)


def check_damage_is_named(make: Make) -> None:
    """Whatever byte is changed or cut off, reading ends in requests or in an error that names the file's line."""
    reader, draw = make(), Random(0)
    for path in _example(reader):
        good = path.read_bytes()
        for content in damaged(good, draw):
            path.write_bytes(content)
            for on_error in ("raise", "skip"):
                try:
                    for _ in _trace(make(), path, on_error):
                        pass
                except (FieldError, FrameworkError) as error:
                    if isinstance(error, FrameworkError) and type(error).__name__ == "PluginError":
                        raise Violation(f"{type(reader).__name__}: {error}; the file held {content!r}") from error
                except Exception as error:
                    raise Violation(f"{type(reader).__name__}: {error!r} of a file that held {content!r}") from error


def damaged(good: bytes, draw: Random, count: int = 300) -> Iterator[bytes]:
    """Copies with a byte replaced, a piece removed or doubled, or a number swapped for an odd one."""
    odd = [b"-1", b"null", b"1e400", b"1.5", b"true", b'""', b"[]", b"{}", b"99999999999999999999", b'"\\ud800"',
           b"1_0", "٣".encode()]  # fmt: skip
    places = [i for i, byte in enumerate(good) if chr(byte).isdigit()]
    for _ in range(count):
        start = draw.randrange(len(good))
        end = min(len(good), start + draw.randrange(1, 40))
        kind = draw.randrange(4)
        if kind == 0:
            yield good[:start] + bytes([draw.choice(b'\x00\xff{}[],:"0 \n')]) + good[start + 1 :]
        elif kind == 1:
            yield good[:start] + good[end:]
        elif kind == 2:
            yield good[:end] + good[start:]
        else:
            place = draw.choice(places)
            yield good[:place] + draw.choice(odd) + good[place + 1 :]


trace_checks = checks_of(globals())
