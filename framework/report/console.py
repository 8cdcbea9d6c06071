"""The table a run ends with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from framework.results.catalogue import CATALOGUE, SECTIONS, find
from framework.results.metric import Metric, is_number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Result = Mapping[str, Any]

_COMPONENTS = ("model", "workload", "allocator", "eviction", "hash", "backend")
_IN_HEADLINE = frozenset(
    {
        *_COMPONENTS,
        "mode",
        "executor",
        "status",
        "clock",
        "device",
        "dtype",
        "num_blocks",
        "block_size",
        "seed",
        "tensor_parallel_size",
    }
)
_ALARMING = frozenset({"num_failed", "dense_mismatches", "loss_exceeded"})
_HEADINGS = {"run": "failure", "latency": "latency: p50, p95, p99"}
_NARROW, _LONG_TEXT = 76, 28


def print_result(result: Result, *, file: IO[str] | None = None, width: int | None = None) -> None:
    """Print a run's flat result as one table with headings, at most 100 columns wide and readable at 80.

    What is shown, its words and its units are declared in `framework.results.catalogue`. A result of mode=kernel is a
    grid, and printed as such: see `framework.report.kernel`.

    Args:
        result: as `result.json` holds it. Null had no denominator and is left out; keys that nobody declared are
            named on one line at the end.
        file: default standard output. Colours only where it is a terminal.
        width: default the terminal's.
    """
    if result.get("mode") == "kernel":
        from framework.report.kernel import print_kernel

        print_kernel(result, file=file, width=width)
        return
    from rich.console import Console

    console = Console(file=file, width=width, highlight=False)
    if not console.is_terminal and width is None:
        console.width = 80
    console.width = min(console.width, 100)
    directory = result.get("run_directory")
    _print(console, {key: value for key, value in result.items() if key != "run_directory"})
    if directory is not None:
        console.print(f"results in {directory}", markup=False, soft_wrap=True)


def _print(console: Console, result: Result) -> None:
    from rich.text import Text

    for line, style in ((_headline(result), "bold"), (_setting(result), "dim")):
        if line:
            console.print(Text(line, style=style))
    narrow, clock = console.width < _NARROW, str(result.get("clock", "wall"))
    table, below = _empty_table(narrow=narrow), []
    for section in SECTIONS:
        found = list(lines(result, section))
        below += [f"{metric.title}: {text}" for metric, text in found if _is_long(metric, text)]
        found = [(metric, text) for metric, text in found if not _is_long(metric, text)]
        if not found:
            continue
        table.add_section()
        table.add_row(Text(_HEADINGS.get(section, section), style="bold cyan"))
        for metric, text in found:
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
    order = list(CATALOGUE)
    mine = [metric for metric in present if metric.section == section]
    for metric in sorted(mine, key=lambda metric: order.index(metric.key) if metric.key in CATALOGUE else len(order)):
        if metric.row or metric.key in wholes:
            continue
        peers = [metric, *(other for other in present if other.row == metric.key)]
        texts = [peer.text(result[peer.key]) for peer in peers]
        text = " ".join(f"{text:>7}" for text in texts).lstrip() if peers[1:] else texts[0]
        if metric.of and is_number(result.get(metric.of)):
            text = f"{text} of {result[metric.of]:,}"
        yield metric, text


def _is_long(metric: Metric, text: str) -> bool:
    return not metric.numeric and len(text) > _LONG_TEXT


def _is_shown(metric: Metric, result: Result) -> bool:
    value = result[metric.key]
    if value is None or metric.key in _IN_HEADLINE or (metric.hide_zero and value == 0):
        return False
    return metric.when is None or metric.when(result)


def _empty_table(*, narrow: bool) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=not narrow, overflow="fold")
    if not narrow:
        table.add_column(overflow="fold")
    return table


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
