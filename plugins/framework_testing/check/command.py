"""`python -m framework check NAME`: what a plugin promises and keeps, and what it costs."""

from __future__ import annotations

import argparse
import json
import unittest
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from framework import registry
from framework.errors import ConfigError, FrameworkError
from framework.interfaces.command import Command
from framework_testing.check.costs import UNITS, Cost, busy, costs
from framework_testing.check.verdicts import TIMEOUT_S, Subject, Verdict, has_large_part, resolve, verdicts

KEPT, BROKEN, UNDECIDED = 0, 1, 2
_STYLES = {"ok": "green", "failed": "bold red", "timed out": "bold yellow", "skipped": "yellow"}


class Check(Command):
    """Run a plugin's conformance kit, and measure what the plugin costs a call beside the baselines.

    Of each promise it says whether it is kept, with the shortest calls that break it. Exit status: 0 every promise
    kept, 1 one broken, 2 it could not be checked: a wrong command, or none was broken and a check ran out of time.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what", help="an installed plugin's NAME, a MODULE:CLASS or a FILE.py:CLASS")
        parser.add_argument("options", nargs="*", metavar="OPTION=VALUE", help="for its constructor")
        parser.add_argument(
            "--kind", help="where the name is one of several: " + ", ".join(registry.kinds(with_kit=True))
        )
        parser.add_argument("--only", default="", metavar="TEXT", help="only checks with TEXT in their name")
        parser.add_argument("--device", default=None, help='for backends: "cpu", "cuda"; default: the best here')
        parser.add_argument(
            "--large", action="store_true",
            help="also the large part: blocks of 128 and more, requests of thousands of blocks, contexts of 131,100, "
            "pools of 100,000; takes about a minute",
        )  # fmt: skip
        parser.add_argument(
            "--cases", default="full", choices=["full", "small"],
            help="for backends: how many shapes; default: %(default)s",
        )  # fmt: skip
        parser.add_argument(
            "--timeout", type=float, default=TIMEOUT_S, metavar="S",
            help="seconds a check may take, five times that of the large part; 0 waits for ever; default: %(default)g",
        )  # fmt: skip
        parser.add_argument(
            "--against", metavar="A,B", help="measure beside these plugins; default: the usual baselines"
        )
        parser.add_argument("--no-cost", action="store_true", help="measure nothing")
        parser.add_argument("--json", action="store_true", help="one object, for programs")

    def parse(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
        return parser.parse_intermixed_args(words)  # an option may stand between two overrides

    def run(self, options: argparse.Namespace) -> int:
        subject = resolve(options.what, options.kind, _options(options.options))
        device = "cpu"
        if subject.kind == "backend":
            from framework.engine.executors.checks import default_device

            device = default_device(options.device)
        if options.large and not has_large_part(subject.kind):
            raise ConfigError(f"the {subject.kind} kit has no large part; leave --large out")
        console = Console(highlight=False, quiet=options.json)
        if not console.is_terminal:
            console.width = max(console.width, 100)
        found: list[Verdict] = []
        with console.status("checking") as status:
            for verdict in verdicts(
                subject,
                only=options.only,
                device=device,
                cases=options.cases,
                timeout_s=options.timeout,
                large=options.large,
            ):
                found.append(verdict)
                status.update(f"checking: {len(found)} done, {verdict.check}")
        if not found:
            raise ConfigError(f"no check of the {subject.kind} kit has {options.only!r} in its name")
        _show_verdicts(console, subject, found)
        if has_large_part(subject.kind) and not options.large:
            _line(console, "\nwithout the large part, which takes about a minute: --large", "dim")
        spent: list[Cost] = []
        if not options.no_cost:
            try:
                with console.status("measuring"):
                    spent = costs(
                        subject, against=options.against.split(",") if options.against else None, device=device
                    )
            except FrameworkError:
                raise
            except (unittest.SkipTest, Exception) as reason:  # such as a device that the plugin cannot run on
                _line(console, f"\nno cost measured: {type(reason).__name__}: {reason}")
        if spent:
            _show_costs(console, subject, spent)
        if options.json:
            facts = {"kind": subject.kind, "subject": subject.title}
            parts = {
                "verdicts": [asdict(one) for one in found],
                "costs": [asdict(one) for one in spent],
                "busy": busy(),
            }
            print(json.dumps(facts | parts, indent=2))  # noqa: T201
        statuses = {one.status for one in found}
        return BROKEN if "failed" in statuses else UNDECIDED if "timed out" in statuses else KEPT


def _options(words: Sequence[str]) -> dict[str, Any]:
    import yaml

    chosen = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"an option is written NAME=VALUE, found {word!r}")
        try:
            chosen[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {word!r} cannot be read as YAML; put a text in quotes") from error
    return chosen


def _show_verdicts(console: Console, subject: Subject, verdicts: Sequence[Verdict]) -> None:
    """A table of all verdicts, then every failure in full."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", ratio=4)
    table.add_column("verdict", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    for verdict in verdicts:
        check = Text(verdict.check)
        if verdict.status == "skipped":
            check.append(f" ({verdict.text})", style="dim")
        table.add_row(check, Text(verdict.status, style=_STYLES[verdict.status]), f"{verdict.seconds:.2f}")
    _line(console, subject.title, "bold")
    console.print(table)
    counts: Counter[str] = Counter(verdict.status for verdict in verdicts)
    _line(console, ", ".join(f"{counts[status]} {status}" for status in _STYLES if counts[status]), "bold")
    for verdict in verdicts:
        if verdict.status in ("failed", "timed out"):
            _line(console, f"\n{verdict.status.upper()} {verdict.check}", _STYLES[verdict.status])
            _line(console, "\n".join(filter(None, (verdict.rule and f"rule: {verdict.rule}", verdict.text))))
    if counts["timed out"]:
        text = "\na check that timed out says nothing of its promise: raise --timeout, or run it where less else runs"
        _line(console, text + (f"; {busy()}" if busy() else ""))


def _show_costs(console: Console, subject: Subject, costs: Sequence[Cost]) -> None:
    columns = list(dict.fromkeys(column for cost in costs for column in cost.numbers))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("cost", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for cost in costs:
        table.add_row(cost.name, *(_range(cost, column) if cost.numbers else "-" for column in columns))
    console.print(table)
    _line(console, f"{UNITS[subject.kind]}; least to most of several rounds", "dim")
    if busy():
        _line(console, busy(), "yellow")
    for cost in costs:
        if cost.error:
            _line(console, f"{cost.name} was not measured: {cost.error}", "red")


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


def _range(cost: Cost, column: str) -> str:
    least, most = _number(cost.numbers[column]), _number(cost.most[column])
    return least if least == most else f"{least} to {most}"


def _number(value: float) -> str:
    if value and abs(value) < 0.01:
        return f"{value:.2e}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
