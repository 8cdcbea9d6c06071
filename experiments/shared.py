"""What every experiment needs: the traces, result files with their provenance, tables in a README, plots."""

from __future__ import annotations

import argparse
import csv
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from framework.cli.exit import interrupts
from framework.tracking.provenance import checkout_state, collect_provenance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = TypeVar("Cell", bound=Hashable)
ROOT = Path(__file__).resolve().parents[1]
CONVERSATION = "mooncake_conversation_trace.jsonl.gz"
SYNTHETIC_MIX = "mooncake_synthetic_trace.jsonl.gz"
AGENTIC = "agentic_coding_100_sessions.jsonl.gz"
AGENTIC_B = "agentic_coding_b_100_sessions.jsonl.gz"
AGENT_TEXT = "lmcache-agent-trace_text.tar.xz"
AZURE = "AzureLLMInferenceTrace_conv.csv.gz"
ARXIV = "vidur_arxiv_summarization_lengths.csv.gz"


class MissingTrace(SystemExit):
    """A trace is not at hand; the message says where it was looked for and what to do."""


def trace_path(name: str) -> Path:
    """The trace of this name, in the folder named by KVLAB_TRACES, else in shared/traces beside the checkout."""
    folder = Path(os.environ.get("KVLAB_TRACES") or ROOT.parent / "shared" / "traces")
    path = folder / name
    if not path.exists():
        raise MissingTrace(
            f"no {name} in {folder}; put it there or set KVLAB_TRACES to its folder. `python -m framework trace fetch` "
            "lists the public traces and where they come from"
        )
    return path


def parse(doc: str | None, module: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    """`--quick`, `--out` and `--jobs`, the same for every experiment; see `begun`."""
    return begun(parser_of(doc, module, quick="a small part of it, in seconds", jobs=True), arguments)


def parser_of(doc: str | None, module: str, quick: str = "", *, jobs: bool = False) -> argparse.ArgumentParser:
    """`--out`, `--quick` where `quick` says what that does, and `--jobs`."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{module}", description=doc)
    if quick:
        parser.add_argument("--quick", action="store_true", help=f"{quick}; needs --out")
    parser.add_argument("--out", type=Path, help="where results go; default: the experiment's own results folder")
    if jobs:
        parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="processes")
    return parser


def begun(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, results: str = "results"
) -> argparse.Namespace:
    """The options with what all experiments share, the state of the checkout before the first result among it.

    Args:
        results: where results go unless `--out` says otherwise, in the experiment's folder. `out` is absolute.
    """
    options = argparse.Namespace(**{"quick": False, "jobs": 1, **vars(parser.parse_args(arguments))})
    if options.quick and options.out is None:
        parser.error("--quick would overwrite the whole results; give --out FOLDER")
    options.module, options.started = parser.prog.removeprefix("python -m experiments."), time.perf_counter()
    options.home, options.publish = ROOT / "experiments" / options.module.partition(".")[0], options.out is None
    options.out = (options.out or options.home / results).absolute()
    options.checkout = checkout_state([options.out])
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A CSV of these rows, floats to six digits after the point."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: f"{value:.6f}" if isinstance(value, float) else value for key, value in row.items()})


def _write_provenance(options: argparse.Namespace, traces: Iterable[Path], **facts: Any) -> None:
    """Command, machine, versions, revision and the checksums of the inputs. No path and no host name."""
    found = collect_provenance(argv=[], checkout=options.checkout)
    record = {
        "command": f"python -m experiments.{options.module}" + (" --quick" if options.quick else ""),
        "jobs": options.jobs,
        "wall_s": round(time.perf_counter() - options.started, 1),
        "package": found["package"],
        "python": found["python"],
        "libraries": {name: found["libraries"].get(name) for name in ("numpy", "xxhash")},
        "platform": found["platform"],
        "cpu": found["cpu"],
        "started_at": found["started_at"],
        "inputs": {path.name: checksum(path) for path in traces},
        **facts,
    }
    (options.out / "provenance.json").write_text(json.dumps(record, indent=2) + "\n")


def output_of(command: Sequence[Any], **popen: Any) -> str:
    """Standard output of a child process, which is asked to end where this one ends (Ctrl-C, SIGTERM, SIGHUP, SIGKILL).

    Args:
        popen: more for `subprocess.Popen`, such as `env`.

    Raises:
        subprocess.CalledProcessError: the child's status is not 0.
    """
    words = [str(word) for word in command]
    with interrupts(), subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **popen) as child:
        try:
            with killing_after_us("-TERM", str(child.pid)):
                output, _ = child.communicate()
        except BaseException:
            child.terminate()
            raise
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, words)
    return output


@contextmanager
def killing_after_us(*arguments: str) -> Iterator[None]:
    """While this goes on, the end of this process, by SIGKILL too, is followed by `kill` with these arguments."""
    code = 'read _; kill "$@"'  # nobody writes: the pipe ends with this process
    with subprocess.Popen(
        ["sh", "-c", code, "sh", *arguments], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as watch:
        try:
            yield
        finally:
            watch.kill()


def checksum(path: Path) -> str:
    """SHA-256 of a file, hexadecimal; computed once a process."""
    return _checksum(path, path.stat().st_mtime_ns)


@functools.cache
def _checksum(path: Path, changed_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def kept(
    folder: Path, what: Sequence[Any], make: Callable[[], dict[str, Any]], files: Iterable[Path] = ()
) -> dict[str, Any]:
    """The result of a cell: that of an earlier run where what is asked (by its repr) and these files are the same, else
    what `make` returns, which is put into `folder`, whole or not."""
    key = hashlib.sha256(repr((what, *map(checksum, files))).encode()).hexdigest()[:16]
    path = folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', ' '.join(map(str, what)))[:80]}-{key}.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = make()
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.part")
        draft.write_text(json.dumps(found), encoding="utf-8")
        draft.replace(path)
    return found


def in_processes(
    make: Callable[[Cell], dict[str, Any]], cells: Sequence[Cell], jobs: int
) -> dict[Cell, dict[str, Any]]:
    """The result of each cell, made by so many processes."""
    from rich.progress import track

    with ProcessPoolExecutor(jobs) as pool:
        futures = [pool.submit(make, cell) for cell in cells]
        for future in track(as_completed(futures), "replaying", total=len(futures)):
            future.result()
    return {cell: future.result() for cell, future in zip(cells, futures, strict=True)}


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; numbers are aligned right."""
    body = [[str(cell) for cell in row] for row in rows]
    right = [bool(body) and all(re.fullmatch(r"[-+.,\d %±\[\]]*", row[i]) for row in body) for i in range(len(header))]
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join("---:" if flag else "---" for flag in right) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)])


def columns(rows: Iterable[Mapping[str, Any]], shown: Mapping[str, str | Callable[[Any], Any]]) -> str:
    """A Markdown table with a line a row: heading -> a format of the row's values, or a function of the row."""
    cells = shown.values()
    lines = [[one.format_map(row) if isinstance(one, str) else one(row) for one in cells] for row in rows]
    return table(list(shown), lines)


def finish(
    options: argparse.Namespace,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    tables: Mapping[str, str],
    traces: Iterable[Path] = (),
    **facts: Any,
) -> None:
    """Write the rows of each CSV and the provenance; print the tables, and put them between their README's markers.

    Args:
        traces: the inputs. facts: more for the provenance.
    """
    for name, found in rows.items():
        write_rows(options.out / f"{name}.csv", found)
    _write_provenance(options, traces, **facts)
    for name, text in tables.items():
        print(f"\n{name}\n{text}")
    if not options.publish:
        return
    path = options.home / "README.md"
    page = path.read_text(encoding="utf-8")
    for name, text in tables.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if begin not in page or end not in page:
            sys.exit(f"{path} has no markers {begin} and {end}")
        before, rest = page.split(begin, 1)
        page = f"{before}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}"
    path.write_text(page, encoding="utf-8")


def panels(
    rows: Sequence[Mapping[str, Any]], by: str, x: tuple[str, float, str], *shown: tuple[str, float, str],
    across: str = "", down: bool = False, **more: Any,
) -> Figure:  # fmt: skip
    """A panel for each value shown, of each value of `across` where that is given, with a line for each of `by`.

    Args:
        x, shown: (key, unit, label). down: panels below each other. more: of all axes, such as `ylim`.
    """
    from framework_report.figures.style import new_axes, new_figure, series_style

    parts, names = (list(dict.fromkeys(row.get(key) for row in rows)) for key in (across, by))
    places = [(part, *one) for part in parts for one in shown]
    figure = new_figure(7.0, 3.2 * len(places)) if down else new_figure(8.0, 3.6)
    boxes = figure.subfigures(*((len(places), 1) if down else (1, len(places))), squeeze=False).flat
    for place, (box, (part, key, unit, label)) in enumerate(zip(boxes, places, strict=True)):
        axes = new_axes(box)
        for index, name in enumerate(names):
            mine = [row for row in rows if (row.get(across), row[by]) == (part, name)]
            axes.plot([row[x[0]] / x[1] for row in mine], [row[key] / unit for row in mine],
                      label=None if place else name, clip_on=False, **series_style(index))  # fmt: skip
        axes.set(xlabel=x[2], ylabel=label, title=part or "", **more)
    figure.legend(loc="outside lower center", ncols=min(len(names), 4), fontsize="small")
    return figure


def save(figure: Figure, options: argparse.Namespace, name: str) -> None:
    """The figure as SVG, with --out also as PNG; an axis of powers has short numbers."""
    from framework_report.figures.style import save_plot, short

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_major_formatter(lambda value, _: short(value))
    for suffix in (".svg",) if options.publish else (".svg", ".png"):
        save_plot(figure, options.out / f"{name}{suffix}")
