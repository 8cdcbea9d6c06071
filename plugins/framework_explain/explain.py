"""`python -m framework explain RUN_OR_TRACE`: one cause for each prompt token that was no hit."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from framework.cli.options import require_in_bounds
from framework.errors import ConfigError, WorkloadError
from framework.interfaces.command import Command
from framework.results.console import Table, new_console, print_table
from framework_explain.account import OUTCOMES, Account, versus
from framework_explain.table_of_misses import read_account
from framework_workloads.lines import first_lines
from framework_workloads.trace import formats, open_trace
from framework_workloads.trace.format import first_object


class ExplainCommand(Command):
    """One cause for each prompt token that was no hit."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "file", metavar="RUN_OR_TRACE", nargs="+",
            help="run directories of observers=[explain] (two are compared), a trace, which is replayed cache-only, or "
            "a recorded stream of KV events and the log of its requests",
        )  # fmt: skip
        parser.add_argument(
            "--eviction", default="lru", metavar="NAME", help="of a trace's replay; two, comma-separated, are compared"
        )
        parser.add_argument(
            "--num-blocks",
            type=int,
            metavar="N",
            help="blocks of the pool: of a trace's replay, or of a stream's engine, to compare it with LRU and optimum",
        )
        parser.add_argument("--block-tokens", type=int, metavar="N", help="tokens a block of the trace")
        parser.add_argument(
            "--format", default="auto", metavar="NAME", help=f"of the trace: auto, {', '.join(formats())}"
        )
        parser.add_argument("--limit", type=int, metavar="N", help="only the trace's first N requests")
        parser.add_argument("--full-blocks-only", action="store_true", help="a partial last block is never cached")
        parser.add_argument("--leaf-first", action="store_true", help="evict only blocks without resident children")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--json", action="store_true", help="print JSON alone")

    def run(self, options: argparse.Namespace) -> int:
        accounts = _accounts(options)
        data: dict[str, Any] = {name: account.as_json() for name, account in accounts.items()}
        if len(accounts) == 2:
            (first, one), (second, other) = accounts.items()
            data = {"runs": data, "against": {"first": first, "second": second, **versus(one, other)}}
        else:
            data = next(iter(data.values()))
        if options.json:
            print(json.dumps(data, indent=2))  # noqa: T201
        else:
            _show(accounts, data.get("against"))
        return 0


def _accounts(options: argparse.Namespace) -> dict[str, Account]:
    """By name, one or two."""
    require_in_bounds(options, "limit", "num_blocks", "block_tokens")
    names = [name.strip() for name in options.eviction.split(",") if name.strip()]
    if all(Path(file).is_dir() for file in options.file):
        accounts = {file: read_account(Path(file)) for file in options.file}
    elif len(options.file) == 2 and (streams := sum(map(_is_stream, options.file))):
        if streams == 2:
            raise ConfigError(
                f"{' and '.join(options.file)} are both streams of KV events; give one, and the log of its requests"
            )
        accounts = _recorded(options)
    elif len(options.file) == 1:
        accounts = _replayed(options, names)
    else:
        raise ConfigError(
            "name run directories, one trace (with --eviction A,B to compare two policies), or a recorded stream of KV "
            "events and its request log"
        )
    if not 1 <= len(accounts) <= 2:
        raise ConfigError(f"one or two different runs or policies are explained at a time, found {len(accounts)}")
    return accounts


def _is_stream(file: str) -> bool:
    from framework_kv_events.file import is_stream

    return is_stream(Path(file))


def _recorded(options: argparse.Namespace) -> dict[str, Account]:
    """The account of a stream of KV events and a request log, given in either order."""
    from framework_explain.recorded_misses import explain_stream
    from framework_explain.replayed_misses import against_models

    stream, log = sorted(options.file, key=_is_stream, reverse=True)
    trace = open_trace(log, format=options.format, block_tokens=options.block_tokens)
    without = (
        "blocks are matched by their tokens: keep them on both sides (`python -m framework record_events --tokens`; "
        'TraceConnector: "tokens": true)'
    )
    if first_object(first_lines(Path(log), 1)).get("private"):
        raise WorkloadError(f"{log} was recorded without tokens; {without}")
    requests = [*islice(trace, options.limit)]
    account, ledger, unseen, unsure = explain_stream(Path(stream), requests, most_contents=2**31)
    if unseen == len(requests):
        raise WorkloadError(f"none of the {unseen:,} requests of {log} is in {stream}; {without}")
    if unseen:
        print(f"{unseen:,} requests of {log} are not in {stream}, and are left out", file=sys.stderr)  # noqa: T201
    if unsure:
        print(  # noqa: T201
            f"{unsure:,} of {len(account.requests):,} requests ran beside others while what they asked for was removed "
            "or stored: events do not say in which order, and their causes may be other ones", file=sys.stderr,
        )  # fmt: skip
    if options.num_blocks is not None:
        account = against_models(account, ledger.paths, ledger.block_size, options.num_blocks)
    return {stream: account}


def _replayed(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Account]:
    from framework.registry.components import build_component
    from framework_cache_only.paths import build_paths
    from framework_cache_only.reference import replay
    from framework_explain.replayed_misses import LossLog, explain

    trace = open_trace(options.file[0], format=options.format, block_tokens=options.block_tokens)
    if options.num_blocks is None:
        raise ConfigError(f"{trace.path} is a trace, replayed over a pool of some size: give --num-blocks")
    if trace.block_tokens == 0:
        next(iter(trace))  # a trace without requests is that, whatever its format
        raise ConfigError(f"{trace.path} has lengths only: no block is ever shared, every block is new")
    paths = build_paths(islice(trace, options.limit), full_blocks_only=options.full_blocks_only)
    shared = {"num_blocks": options.num_blocks, "block_size": paths.block_tokens, "seed": options.seed}
    accounts = {}
    for name in names:
        policy, log = build_component("eviction", {"name": name}, shared), LossLog()
        counts = replay(
            paths, policy, options.num_blocks, leaf_first=options.leaf_first, bypass=policy.bypass, losses=log
        )
        accounts[name] = explain(paths, counts.request_hits, log, num_blocks=options.num_blocks, policy=name)
    return accounts


def _show(accounts: Mapping[str, Account], against: Mapping[str, Any] | None) -> None:
    console = new_console(default=100)
    print_table(console, _totals(accounts))
    for name, account in accounts.items():
        console.print(f"{name}: {account.sentence()}.", soft_wrap=True)
        if account.preempted_tokens:
            console.print(f"{account.preempted_tokens:,} tokens were computed once more after preemptions.")
        sums = account.evictions.sums()
        for group, head in (("age", "evicted so many requests before"), ("turn", "missed in turn")):
            if group in sums:
                print_table(console, _regret(head, sums[group]))
    if against is not None:
        _show_against(console, against)


def _totals(accounts: Mapping[str, Account]) -> Table:
    """A row an outcome; of each account its tokens, their share and its blocks."""
    used = [outcome for outcome in OUTCOMES if any(account.totals("tokens")[outcome] for account in accounts.values())]
    header, rows = ["prompt tokens"], [[outcome] for outcome in (*used, "all")]
    for name, account in accounts.items():
        header += [name, "%", "blocks"]
        tokens, blocks = account.totals("tokens"), account.totals("blocks")
        tokens["all"], blocks["all"] = sum(tokens.values()), sum(blocks.values())
        for row in rows:
            share = 100 * tokens[row[0]] / max(1, tokens["all"])
            row += [f"{tokens[row[0]]:,}", f"{share:.1f}", f"{blocks[row[0]]:,}"]
    return Table("", header, rows)


def _regret(head: str, sums: Mapping[str, Mapping[str, int]]) -> Table:
    kept = {label: row.get("optimum_kept_tokens") for label, row in sums.items()}
    rows = [
        [label, f"{row['tokens']:,}", "unknown" if kept[label] is None else f"{kept[label]:,}"]
        for label, row in sums.items()
    ]
    return Table("", [head, "tokens computed again", "kept by the optimum"], rows)


def _show_against(console: Any, against: Mapping[str, Any]) -> None:
    first, second = against["first"], against["second"]
    for winner, loser, key in ((first, second, "first_wins"), (second, first, "second_wins")):
        side = against[key]
        causes = ", ".join(f"{count:,} {cause}" for cause, count in side["missed_by_the_other"].items() if count)
        console.print(
            f"{winner} hits more than {loser} in {side['requests']:,} requests: {side['tokens']:,} tokens, which "
            f"{loser} missed because they were: {causes or 'none'}.", soft_wrap=True,
        )  # fmt: skip
        most = "; ".join(f"request {row['request']} by {row['tokens']:,}" for row in side["most"][:5])
        if most:
            console.print(f"  Most: {most}.", soft_wrap=True)
