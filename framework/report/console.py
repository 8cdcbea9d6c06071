"""The table a run ends with, and that of a kernel run or a sweep of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from framework.files.jsonl import read_jsonl
from framework.results.catalogue import CATALOGUE, SECTIONS, find
from framework.results.layout import KERNEL
from framework.results.metric import Metric, is_number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Result = Mapping[str, Any]
Row = Mapping[str, Any]

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
_MOST_REASONS = 6


def print_result(result: Result, *, file: IO[str] | None = None, width: int | None = None) -> None:
    """Print a run's flat result as one table with headings, at most 100 columns wide and readable at 80.

    What is shown, its words and its units are declared in `framework.results.catalogue`. A result of mode=kernel is a
    grid, and printed as such: see `print_kernel`.

    Args:
        result: as `result.json` holds it. Null had no denominator and is left out; keys that nobody declared are
            named on one line at the end.
        file: default standard output. Colours only where it is a terminal.
        width: default the terminal's.
    """
    if result.get("mode") == "kernel":
        print_kernel(result, file=file, width=width)
        return
    console = _console(file, width, 80)
    directory = result.get("run_directory")
    _print(console, {key: value for key, value in result.items() if key != "run_directory"})
    if directory is not None:
        console.print(f"results in {directory}", soft_wrap=True)


def _console(file: IO[str] | None, width: int | None, default: int) -> Console:
    """At most 100 columns wide; `default` where nothing is asked for and there is no terminal."""
    from rich.console import Console

    console = Console(file=file, width=width, highlight=False, markup=False)
    if not console.is_terminal and width is None:
        console.width = default
    console.width = min(console.width, 100)
    return console


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


def print_kernel(result: Mapping[str, Any], *, file: IO[str] | None = None, width: int | None = None) -> None:
    """Print a kernel run's rows, what the ceilings were, and what its kernels take on the modelled chip.

    Args:
        result: as `framework.kernel.kernel` returns it, with `rows` and maybe `screen`.
        file: default standard output.
        width: default the terminal's, 100 at most.
    """
    console = _console(file, width, 100)
    print_rows(result.get("rows") or [], console)
    ceilings = result.get("ceilings")
    if ceilings:
        console.print(
            f"ceilings, measured in this run: {_scaled(ceilings['bytes_per_s'])}B/s ({ceilings['bytes_by']}), "
            f"{_scaled(ceilings['flops_per_s'])}FLOP/s ({ceilings['flops_by']})",
            style="dim",
        )
    if result.get("screen"):
        _print_screen(result["screen"], console)
    if result.get("run_directory") is not None:
        console.print(f"results in {result['run_directory']}", soft_wrap=True)


def print_sweep(directories: Sequence[str | Path]) -> None:
    """One table over several kernel runs' directories, backends side by side; nothing where none has rows."""
    rows = [row for folder in directories for row in _rows(Path(folder))]
    if rows:
        print_rows(rows, _console(None, None, 100))


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """One table a shape; the rows of a cell together, each backend's."""
    several = len({row["backend"] for row in rows}) > 1
    for shape, chosen in _grouped(rows):
        table = _kernel_table(several)
        for cell in dict.fromkeys(_cell(row) for row in chosen):
            for row in (row for row in chosen if _cell(row) == cell):
                table.add_row(*([row["backend"]] if several else []), cell, *_numbers(row))
            if several:
                table.add_section()
        first = chosen[0]
        head = "" if several else f"{first['backend']}: "
        console.print(f"{head}{shape}, on {first['device_model']}, torch {first['torch']}, {first['date'][:10]}")
        console.print(table)
    targets = ", ".join(dict.fromkeys(row["target"] for row in rows if row["status"] == "modelled"))
    if targets:
        console.print(f"modelled: no time was taken; the least that the ceilings of {targets} allow", style="dim")
    _print_reasons(rows, console, several)


def _rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / KERNEL
    return read_jsonl(path) if path.exists() else []


def _grouped(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for shape in dict.fromkeys(_shape(row) for row in rows):
        yield shape, [row for row in rows if _shape(row) == shape]


def _shape(row: Row) -> str:
    stored = "" if row["kv_dtype"] == row["dtype"] else f" over {row['kv_dtype']}"
    return f"heads {row['heads']} {row['dtype']}{stored}, blocks of {row['block_size']} {row['layout']}"


def _cell(row: Row) -> str:
    ragged = " ragged" if row["lengths"] == "ragged" else ""
    return f"{row['work']} {row['batch']} x {row['context']}{ragged}"


def _kernel_table(several: bool) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for title in (["backend"] if several else []) + ["cell", ""]:
        table.add_column(title, no_wrap=True)
    for title in ("time", "B/s", "FLOP/s", "of ceiling", "x dense"):
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _numbers(row: Row) -> tuple[str, ...]:
    if row["status"] == "modelled":
        return ("modelled", f">= {_time(row['floor_s'])}", "", "", "", "")
    if row["status"] != "ok":
        return (str(row["status"]), "", "", "", "", "")
    dense = row.get("speed_vs_dense_sdpa")
    return (
        "measured",
        _time(row["time_s"]),
        _scaled(row["gb_per_s"] * 1e9),
        _scaled(row["tflop_per_s"] * 1e12),
        f"{100 * row['share_of_ceiling']:.0f} % {row['bound']}",
        "" if dense is None else f"{dense:.2f}",
    )


def _scaled(value: float) -> str:
    """Three digits and a decimal prefix: 4.21 T."""
    for prefix, unit in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= unit:
            return f"{value / unit:.3g} {prefix}"
    return f"{value:.3g}"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    for unit, scale in (("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{1e9 * seconds:.3g} ns"


def _print_reasons(rows: Sequence[Row], console: Console, several: bool) -> None:
    reasons: list[str] = []
    for row in rows:
        for reason in row.get("reasons") or ():
            line = f"{row['backend']} {row['status']}: {reason}" if several else f"{row['status']}: {reason}"
            if line not in reasons:
                reasons.append(line)
    for line in reasons[:_MOST_REASONS]:
        console.print(line, style="red" if "failed" in line.split(":")[0] else "dim")
    if len(reasons) > _MOST_REASONS:
        console.print(f"and {len(reasons) - _MOST_REASONS} more, in {KERNEL}", style="dim")


def _print_screen(screen: Sequence[Mapping[str, Any]], console: Console) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("compiled ahead of time", overflow="fold")
    for title in ("registers", "spills", "stack B", "shared B", "matrix", "async loads"):
        table.add_column(title, justify="right")
    keys = ("registers", "spills", "stack_bytes", "shared_bytes", "matrix_instructions", "async_loads")
    for kernel in screen:
        table.add_row(kernel["name"], *(str(kernel[key]) for key in keys))
    console.print(table)
    console.print("sources: " + "; ".join(dict.fromkeys(kernel["source"] for kernel in screen)), style="dim")
