"""`python -m framework trace`: look at a trace, convert it, draw one, get a public one, or record a log."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.cli.exit import complain
from framework.cli.options import require_in_bounds
from framework.errors import ConfigError
from framework.files.atomic import require_new, write_json
from framework.interfaces.command import Command
from framework_traces.writing import write_trace
from framework_workloads.trace import Trace, formats, open_trace
from framework_workloads.trace.format import PER_SECOND
from framework_workloads.trace.own_format import as_trace

if TYPE_CHECKING:
    from framework_cache_only.description import TraceDescription


class TraceCommand(Command):
    """Look at a trace, convert it, draw one, get a public one, or record a log."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        commands = parser.add_subparsers(required=True, metavar="COMMAND")
        describe = commands.add_parser("describe", help="print what is in a trace")
        _add_input(describe)
        describe.add_argument("--json", metavar="FILE", help="also write it as JSON; - for stdout alone")
        _add_force(describe)
        describe.set_defaults(do=_describe)
        convert = commands.add_parser("convert", help="write a trace in our own format")
        _add_input(convert)
        convert.add_argument("--out", required=True, metavar="OUT", help="a name in .gz or .zst is compressed")
        convert.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
        _add_force(convert)
        convert.set_defaults(do=_convert)
        synth = commands.add_parser("synth", help="write a synthetic workload as a trace")
        synth.add_argument("name", metavar="NAME", help="of token ids, such as agents, conversations or rag")
        synth.add_argument("words", nargs="*", metavar="OPTION=VALUE", help="of the workload, such as zipf_alpha=1.2")
        synth.add_argument("--out", required=True, metavar="OUT", help="a name in .gz or .zst is compressed")
        synth.add_argument("--seed", type=int, default=0)
        synth.add_argument("--block-tokens", type=int, metavar="N", help="write block names of N tokens, not tokens")
        _add_force(synth)
        synth.set_defaults(do=_synth)
        fetch = commands.add_parser("fetch", help="get a public trace by name; without a name, list them")
        fetch.add_argument("name", nargs="?")
        fetch.add_argument("--to", default="traces", metavar="FOLDER", help="default: traces")
        fetch.set_defaults(do=_fetch)
        record = commands.add_parser(
            "record", help="write a trace of SGLang's request log, without text, tokens or names"
        )
        record.add_argument("source", metavar="SOURCE", help="a log, or a folder of them")
        record.add_argument("--block-tokens", type=int, default=16, metavar="N", help="of the trace; default: 16")
        record.add_argument("--out", required=True, metavar="OUT", help="a new file of JSON lines")
        record.set_defaults(do=_record)

    def parse(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
        options, rest = parser.parse_known_args(words)
        if rest and ("words" not in options or any(word.startswith("-") for word in rest)):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        if rest:
            options.words += rest  # argparse ends a list of words at the first option
        return options

    def run(self, options: argparse.Namespace) -> int:
        code: int = options.do(options)
        return code


def _add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace a file that exists already")


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="plain, .gz or .zst")
    parser.add_argument("--format", default="auto", metavar="NAME", help=f"auto, {', '.join(formats())}")
    parser.add_argument("--block-tokens", type=int, metavar="N", help="tokens a block")
    parser.add_argument("--on-error", default="raise", choices=["raise", "skip"], help="what a bad line does")
    parser.add_argument(
        "--time-unit", default="auto", choices=["auto", *PER_SECOND], help="of its times, if files differ"
    )


def _open(options: argparse.Namespace) -> Trace:
    trace = open_trace(
        options.file, format=options.format, block_tokens=options.block_tokens, on_error=options.on_error,
        time_unit=options.time_unit,
    )  # fmt: skip
    if trace.guessed_time_unit:
        complain(f"{trace.path}: times are read in {trace.time_unit}; --time-unit overrules it")
    return trace


def _describe(options: argparse.Namespace) -> int:
    from framework_cache_only.description import describe

    require_in_bounds(options, "block_tokens")
    if options.json is not None:
        require_new(options.json, inputs=[options.file], force=options.force)
    trace = _open(options)
    description, _ = describe(trace)
    if options.json == "-":
        print(json.dumps(asdict(description), indent=2))  # noqa: T201
        return 0
    if options.json:
        write_json(Path(options.json), asdict(description))
    _print(description, trace.first_error)
    return 0


def _print(description: TraceDescription, first_error: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=description.path, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in _rows(asdict(description)):
        table.add_row(name, value)
    console = Console()
    console.print(table)
    if first_error:
        console.print(f"skipped {description.skipped} lines, the first: {first_error}", markup=False)


def _rows(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """A row a value, and a row a point of a curve: name and text."""
    for key, value in values.items():
        name = f"{above}{key.replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from _rows(value, f"{name}, ")
        elif key == "lru_curve":
            yield from ((f"{above}hit rate of LRU, {size:,} blocks", f"{rate:.4f}") for size, rate in value)
        elif key != "path":
            yield name, _shown(value)


def _shown(value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or "unknown"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _convert(options: argparse.Namespace) -> int:
    require_in_bounds(options, "limit", "block_tokens")
    require_new(options.out, inputs=[options.file], force=options.force)
    trace = _open(options)
    requests = islice(trace, options.limit)
    count = write_trace(options.out, requests, source=trace.path.name, source_format=trace.format)
    print(f"{options.out}: {count} requests, {trace.num_skipped} lines skipped")  # noqa: T201
    return 0


def _synth(options: argparse.Namespace) -> int:
    from framework.workload import stream

    require_in_bounds(options, "block_tokens")
    chosen = dict(_option(word) for word in options.words)
    require_new(options.out, force=options.force)
    requests = as_trace(stream(options.name, chosen, options.seed), options.block_tokens)
    count = write_trace(options.out, requests, synthetic=options.name, seed=options.seed, options=chosen)
    print(f"{options.out}: {count} requests")  # noqa: T201
    return 0


def _record(options: argparse.Namespace) -> int:
    if "://" in options.source:
        raise ConfigError(
            f"{options.source} publishes KV events: record them with `python -m framework record_events "
            f"{options.source} --out {options.out}`"
        )
    require_in_bounds(options, "block_tokens")
    require_new(options.out)
    from framework_traces.request_log import convert

    try:
        converted = convert(Path(options.source), Path(options.out), block_tokens=options.block_tokens)
    except OSError as error:
        error.filename = error.filename or options.out
        raise
    left_out = f"{converted.num_without_tokens} had text alone and were left out"
    print(f"{options.out}: {converted.num_requests} requests; {left_out}")  # noqa: T201
    return 0


def _option(word: str) -> tuple[str, Any]:
    import yaml

    key, equals, value = word.partition("=")
    if not equals:
        raise ConfigError(f"expected OPTION=VALUE, found {word!r}")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"{word!r}: no value: {error}") from error


def _fetch(options: argparse.Namespace) -> int:
    from framework_traces.public import PUBLIC_TRACES, fetch

    if options.name is None:
        for name, known in PUBLIC_TRACES.items():
            print(f"{name:22}  {known.licence:10}  {known.about}\n{'':36}{known.url}")  # noqa: T201
        return 0
    path, digest = fetch(options.name, options.to)
    trace = PUBLIC_TRACES[options.name]
    verdict = "as expected" if trace.sha256 else "no reference known, compare with your source"
    print(f"{path}\nlicence {trace.licence}, from {trace.url}\nSHA-256 {digest} ({verdict})")  # noqa: T201
    return 0
