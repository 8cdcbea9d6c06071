"""The table a kernel run, or a sweep of them, ends with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from framework.files.jsonl import read_jsonl
from framework.results.layout import KERNEL

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = Mapping[str, Any]
_MANY = 6


def print_kernel(result: Mapping[str, Any], *, file: IO[str] | None = None, width: int | None = None) -> None:
    """Print a kernel run's rows, what the ceilings were, and what its kernels take on the modelled chip.

    Args:
        result: as `framework.kernel.kernel` returns it, with `rows` and maybe `screen`.
        file: default standard output.
        width: default the terminal's, 100 at most.
    """
    console = _console(file, width)
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
        console.print(f"results in {result['run_directory']}", markup=False, soft_wrap=True)


def print_sweep(directories: Sequence[str | Path], *, file: IO[str] | None = None, width: int | None = None) -> None:
    """One table over several kernel runs' directories, backends side by side; nothing where none has rows."""
    rows = [row for folder in directories for row in _rows(Path(folder))]
    if rows:
        print_rows(rows, _console(file, width))


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """One table a shape; the rows of a cell together, each backend's."""
    several = len({row["backend"] for row in rows}) > 1
    for shape, chosen in _grouped(rows):
        table = _table(several)
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


def _console(file: IO[str] | None, width: int | None) -> Console:
    from rich.console import Console

    console = Console(file=file, width=width, highlight=False, markup=False)
    if not console.is_terminal and width is None:
        console.width = 100
    console.width = min(console.width, 100)
    return console


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


def _table(several: bool) -> Table:
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
    for line in reasons[:_MANY]:
        console.print(line, style="red" if "failed" in line.split(":")[0] else "dim")
    if len(reasons) > _MANY:
        console.print(f"and {len(reasons) - _MANY} more, in {KERNEL}", style="dim")


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
