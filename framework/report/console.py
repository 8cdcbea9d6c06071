"""The table a run ends with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Row:
    """One line: its words, the keys it shows, and how they become text; left out when none of the keys is there."""

    title: str
    keys: tuple[str, ...]
    show: Callable[..., str]
    note: str = ""


def print_result(result: Result, *, file: IO[str] | None = None, width: int | None = None) -> None:
    """Print a run's flat result as one table with headings, at most 100 columns wide and readable at 80.

    A result of mode=kernel is a grid, and printed as such: see `framework.report.kernel`.

    Args:
        result: as `result.json` holds it: snake_case keys that end in their unit. Missing ones are left out; unknown
            ones are listed at the end, under "other". Null prints as a dash: it had no denominator.
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
    _print(console, result)


def _print(console: Console, result: Result) -> None:
    from rich.text import Text

    narrow = console.width < _NARROW
    table = _empty_table(narrow=narrow)
    shown = set(_HEADLINE)
    for heading, rows in _SECTIONS:
        present = [row for row in rows if any(key in result for key in row.keys)]
        if not present:
            continue
        table.add_section()
        table.add_row(Text(heading, style="bold cyan"))
        for row in present:
            text = row.show(*(result.get(key) for key in row.keys))
            notes = () if narrow else (Text(_note(row, result), style="dim"),)
            table.add_row(f"  {row.title}", Text(text, style=_style(row, text)), *notes)
            shown.update(row.keys)
    for line, style in ((_headline(result), "bold"), (_setting(result), "dim")):
        if line:
            console.print(Text(line, style=style))
    console.print(table)
    other = {key: value for key, value in result.items() if key not in shown}
    if other:
        # A table of its own: a long path must not squeeze the notes above.
        console.print(_other_table(other))
    if result.get("run_directory") is not None:
        console.print(f"results in {result['run_directory']}", markup=False, soft_wrap=True)


def _empty_table(*, narrow: bool) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=not narrow, overflow="fold")
    if not narrow:
        table.add_column(overflow="fold")
    return table


def _other_table(other: Result) -> Table:
    from rich.markup import escape
    from rich.text import Text

    table = _empty_table(narrow=True)
    table.add_row(Text("other", style="bold cyan"))
    for key, value in other.items():
        table.add_row(f"  {escape(str(key))}", Text(_plain(value)))
    return table


def _headline(result: Result) -> str:
    mode = result.get("mode")
    parts = [str(result[key]) for key in _COMPONENTS if result.get(key) is not None]
    head = ": ".join(part for part in (str(mode) if mode else "", " ".join(parts)) if part)
    status = result.get("status")
    return f"{head} ({status})" if status not in (None, "ok") else head


def _setting(result: Result) -> str:
    parts = [str(result[key]) for key in ("device", "dtype") if result.get(key) is not None]
    if result.get("num_blocks") is not None and result.get("block_size") is not None:
        parts.append(f"{result['num_blocks']:,} blocks of {result['block_size']} tokens")
    if result.get("seed") is not None:
        parts.append(f"seed {result['seed']}")
    return ", ".join(parts)


def _note(row: _Row, result: Result) -> str:
    return row.note.replace("{clock}", f"{result.get('clock', 'wall')} clock")


def _style(row: _Row, text: str) -> str:
    if row.title == "dense check":
        return "bold red" if "differ" in text else "green" if "equal" in text else ""
    return "bold red" if row.title == "others" and not text.endswith((" 0", "-")) else ""


def _count(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else _plain(value)


def _share(value: Any) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _rate(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _seconds(value: Any) -> str:
    if value is None:
        return "-"
    if value == 0:
        return "0 s"
    if value >= 100:
        return f"{value:,.0f} s"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} us"


def _percentiles(*values: Any) -> str:
    return " ".join(f"{_seconds(value):>7}" for value in values).lstrip()


def _of(part: Any, whole: Any) -> str:
    return f"{_count(part)} of {_count(whole)}"


def _counts(*values: Any) -> str:
    return ", ".join(_count(value) for value in values)


def _pool(total: Any, each: Any, ranks: Any) -> str:
    return _bytes(total) if ranks in (None, 1) else f"{_bytes(each)} on each of {ranks} ranks"


def _bytes(value: Any) -> str:
    if value is None:
        return "-"
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if value >= _UNITS[unit]), "B")
    return f"{value / _UNITS[unit]:.3g} {unit}"


def _dense(checked: Any, mismatches: Any, ties: Any) -> str:
    if not checked:
        return "not checked"
    ties_text = f", {ties} ties" if ties else ""
    return f"{mismatches} of {checked} differ{ties_text}" if mismatches else f"{checked} of {checked} equal{ties_text}"


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(_plain(item) for item in value) or "none"
    return str(value)


_COMPONENTS = ("model", "workload", "allocator", "eviction", "hash", "backend")
_HEADLINE = (
    "mode",
    "status",
    "clock",
    "device",
    "dtype",
    "num_blocks",
    "block_size",
    "seed",
    "run_directory",
    *_COMPONENTS,
)
_NARROW = 76
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_SECTIONS: tuple[tuple[str, tuple[_Row, ...]], ...] = (
    (
        "requests",
        (
            _Row("finished", ("num_finished", "num_requests"), _of),
            _Row("others", ("num_rejected", "num_cancelled", "num_failed"), _counts, "rejected/cancelled/failed"),
            _Row(
                "dense check", ("dense_checked", "dense_mismatches", "dense_ties"), _dense, "of greedy requests' tokens"
            ),
        ),
    ),
    (
        "speed",
        (
            _Row("time", ("wall_s",), _seconds, "{clock}, arrival to end"),
            _Row("output tokens/s", ("output_tokens_per_s",), _rate),
            _Row("all tokens/s", ("total_tokens_per_s",), _rate, "computed and output"),
            _Row("requests/s", ("requests_per_s",), _rate),
            _Row("engine overhead", ("engine_overhead",), _share, "of step time"),
            _Row("time split", ("schedule_s", "forward_s", "sample_s"), _percentiles, "schedule, model, sample"),
            _Row("steps", ("num_steps",), _count),
        ),
    ),
    (
        "latency (p50, p95, p99)",
        tuple(
            _Row(title, tuple(f"{key}_s_p{percent}" for percent in (50, 95, 99)), _percentiles, note)
            for title, key, note in (
                ("first token", "ttft", "from arrival, {clock}"),
                ("each next token", "tpot", "{clock}"),
                ("whole request", "latency", "{clock}"),
            )
        ),
    ),
    (
        "prefix cache",
        (
            _Row("hit rate", ("hit_rate",), _share, "of prompt tokens"),
            _Row("  by blocks", ("hit_rate_blocks",), _share),
            _Row("  full blocks only", ("hit_rate_full_blocks",), _share),
            _Row("  mean per request", ("hit_rate_request_mean",), _share),
            _Row("prompt tokens hit", ("hit_tokens", "prompt_tokens"), _of),
            _Row("prompt blocks hit", ("hit_blocks", "prompt_blocks"), _of),
            _Row("evictions", ("num_evictions",), _count, "blocks"),
            _Row("hash collisions", ("num_collisions",), _count, "refused by verification"),
        ),
    ),
    (
        "memory (time-weighted)",
        (
            _Row("utilisation", ("utilisation",), _share, "live / reserved slots"),
            _Row("internal waste", ("waste_internal",), _share, "tail of the last block"),
            _Row("reserved waste", ("waste_reserved",), _share, "promised, not yet written"),
            _Row("external waste", ("waste_external",), _share, "free but unusable, of pool"),
            _Row("cached, idle", ("cached_idle",), _share, "findable, unused, of pool"),
            _Row("pool in use", ("pool_used",), _share),
            _Row("peak blocks in use", ("peak_used_blocks", "num_blocks"), _of),
            _Row("K and V", ("kv_bytes", "kv_bytes_per_rank", "tensor_parallel_size"), _pool, "the pool's tensors"),
        ),
    ),
    (
        "scheduling",
        (
            _Row("output tokens", ("output_tokens",), _count),
            _Row("scheduled tokens", ("scheduled_tokens",), _count, "prefill and decode"),
            _Row("forks", ("num_forks",), _count, "samples and beams"),
            _Row("block copies", ("num_copied_blocks",), _count, "writes to shared blocks"),
            _Row("preemptions", ("num_preemptions",), _count),
            _Row("tokens recomputed", ("recomputed_tokens",), _count, "after preemption"),
            _Row("tokens spared", ("spared_tokens",), _count, "cached by others meanwhile"),
            _Row("most at once", ("peak_running",), _count, "sequences"),
        ),
    ),
)
