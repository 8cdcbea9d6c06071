"""Tables on a console: that of one run, and any other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

from framework.results.catalogue import catalogue, find, sections
from framework.results.metric import Metric, is_number, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

Result = Mapping[str, Any]

_COMPONENTS = ("model", "workload", "allocator", "eviction", "scheduling", "hash", "backend")
_SIZES = ("num_blocks", "block_size", "seed", "tensor_parallel_size")
_IN_HEADLINE = {*_COMPONENTS, *_SIZES, "mode", "executor", "status", "clock", "device", "dtype"}
_ALARMING = frozenset({"num_failed", "dense_mismatches", "loss_exceeded"})
_HEADINGS = {"run": "failure", "latency": "latency: p50, p95, p99"}
_NARROW, _LONG_TEXT = 76, 28
_MOST_ROWS = 40
_NAME, _TEXT = 24, 8  # columns that a name, in the first two columns, and the words of a text have at least
_NUMBER = r"[+-]?\d[\d.,e+-]*"
_NUMERIC = re.compile(rf"^(-|(<|>= )?{_NUMBER}(( ± | to ){_NUMBER})?( [A-Za-z%/]{{1,4}})?)$")


@dataclass(frozen=True, slots=True)
class Table:
    """Cells in words.

    Attributes:
        note: what to know of them.
    """

    heading: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    @property
    def numeric(self) -> list[bool]:
        """Whether all cells of a column begin like numbers, for each: it stands right, and does not wrap."""
        return [all(_NUMERIC.match(row[index]) for row in self.rows) for index in range(len(self.header))]


def print_result(result: Result, *, file: IO[str] | None = None, width: int | None = None) -> None:
    """Print a run's flat result as one table with headings, at most 100 columns wide and readable at 80.

    What is shown, its words and its units are declared in `framework.results.catalogue`.

    Args:
        result: as `result.json` holds it. Null had no denominator and is left out; keys that nobody declared are
            named on one line at the end.
        file: default standard output. Colours only where it is a terminal.
        width: default the terminal's.
    """
    console = new_console(file, width, default=80, most=100)
    directory = result.get("run_directory")
    _print(console, {key: value for key, value in result.items() if key != "run_directory"})
    if directory is not None:
        console.print(f"results in {directory}", soft_wrap=True)


def print_table(console: Console, table: Table, *, most_rows: int = _MOST_ROWS) -> None:
    """As many columns, from the first on, as have room for their numbers and for the first words of a text."""
    from rich.text import Text

    numeric = table.numeric
    most = [max(len(row[index]) for row in table.rows) for index in range(len(table.header))]
    least = [size if numeric[i] else min(size, _NAME if i < 2 else _TEXT) for i, size in enumerate(most)]
    least = [max(size, *map(len, head.split())) for size, head in zip(least, table.header, strict=True)]
    shown = len(least)
    while shown > 2 and sum(least[:shown]) + 3 * shown > console.width:
        shown -= 1
    made, spare = _empty_table(show_header=True), max(0, console.width - sum(least[:shown]) - 3 * shown)
    for index in reversed(range(shown)):  # what a verdict rests on is the longest text, and stands last
        more = min(spare, max(most[index], len(table.header[index])) - least[index])
        least[index], spare = least[index] + more, spare - more
    for index in range(shown):
        justify: Literal["right", "left"] = "right" if numeric[index] else "left"
        made.add_column(Text(table.header[index]), justify=justify, overflow="fold", width=least[index])
    for row in table.rows[:most_rows]:
        first = table.header[0] == "rank" and row[0] == "1"
        made.add_row(*(Text(cell, style="bold" if first else "") for cell in row[:shown]))
    console.print(made)
    left_out = [f"{len(table.rows) - most_rows} more rows"] * (len(table.rows) > most_rows)
    left_out += [f"{len(least) - shown} more columns"] * (shown < len(least))
    if left_out:
        console.print(f"and {' and '.join(left_out)} in the report's files")


def new_console(
    file: IO[str] | None = None, width: int | None = None, *, default: int, most: int | None = None
) -> Console:
    """At most `most` columns wide; `default` where nothing is asked for and there is no terminal."""
    from rich.console import Console

    console = Console(file=file, width=width, highlight=False, markup=False)
    if not console.is_terminal and width is None:
        console.width = default
    console.width = min(console.width, most or console.width)
    return console


def _empty_table(**more: Any) -> RichTable:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), **more)


def _print(console: Console, result: Result) -> None:
    from rich.text import Text

    for line, style in ((_headline(result), "bold"), (_setting(result), "dim")):
        if line:
            console.print(Text(line, style=style))
    narrow, clock = console.width < _NARROW, str(result.get("clock", "wall"))
    table, below = _empty_table(show_header=False), []
    for no_wrap in (True, not narrow, False)[: 2 if narrow else 3]:
        table.add_column(no_wrap=no_wrap, overflow="fold")
    for section in sections():
        entries = list(lines(result, section))
        below += [f"{metric.title}: {text}" for metric, text in entries if _is_long(metric, text)]
        entries = [(metric, text) for metric, text in entries if not _is_long(metric, text)]
        if not entries:
            continue
        table.add_section()
        table.add_row(Text(_HEADINGS.get(section, section), style="bold cyan"))
        for metric, text in entries:
            alarm = metric.key in _ALARMING and result[metric.key]
            note = metric.note.replace("{clock}", f"{clock} clock")
            notes = () if narrow else (Text(note, style="dim"),)
            table.add_row(f"  {metric.title}", Text(text, style="bold red" if alarm else ""), *notes)
    console.print(table)
    for line in below:
        console.print(Text(line, style="dim"))
    unknown = [key for key in result if find(key) is None]
    if unknown:
        console.print(Text(f"also in result.json: {', '.join(unknown)}", style="dim"))


def lines(result: Result, section: str) -> Iterator[tuple[Metric, str]]:
    """The metrics of a section that this result has something to say about, and their values in words."""
    present = [metric for key in result if (metric := find(key)) is not None and _is_shown(metric, result)]
    wholes = {metric.of for metric in present}
    order = list(catalogue())
    mine = [metric for metric in present if metric.section == section]
    for metric in sorted(mine, key=lambda metric: order.index(metric.key) if metric.key in catalogue() else len(order)):
        if metric.row or metric.key in wholes:
            continue
        peers = [metric, *(other for other in present if other.row == metric.key)]
        texts = [peer.text(result[peer.key]) for peer in peers]
        text = " ".join(f"{text:>7}" for text in texts).lstrip() if peers[1:] else texts[0]
        if metric.of and is_number(result.get(metric.of)):
            whole = find(metric.of)
            text = f"{text} of {plain(result[metric.of]) if whole is None else whole.text(result[metric.of])}"
        yield metric, text


def _is_long(metric: Metric, text: str) -> bool:
    return not metric.numeric and len(text) > _LONG_TEXT


def _is_shown(metric: Metric, result: Result) -> bool:
    value = result[metric.key]
    if value is None or metric.key in _IN_HEADLINE or (metric.hide_zero and not value):
        return False
    return metric.when is None or metric.when(result)


def _headline(result: Result) -> str:
    words = [str(result[key]) for key in ("mode", "executor") if result.get(key) not in (None, "none")]
    names = [str(result[key]) for key in _COMPONENTS if result.get(key) is not None]
    head = ": ".join(part for part in (" ".join(words), " ".join(names)) if part)
    status = result.get("status")
    return f"{head} ({status})" if status not in (None, "ok") else head


def _setting(result: Result) -> str:
    parts = [str(result[key]) for key in ("device", "dtype") if result.get(key) is not None]
    if is_number(result.get("num_blocks")) and is_number(result.get("block_size")):
        parts.append(f"{result['num_blocks']:,} blocks of {result['block_size']:,} tokens")
    if result.get("seed") is not None:
        parts.append(f"seed {result['seed']}")
    ranks = result.get("tensor_parallel_size")
    if isinstance(ranks, int) and ranks > 1:
        parts.append(f"{ranks} ranks")
    return ", ".join(parts)
