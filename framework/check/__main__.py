"""The command line of `framework.check`. Exit status: 0 every promise kept, 1 one broken, 2 it could not be checked."""

from __future__ import annotations

import argparse
import json
import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from framework import registry
from framework.check.costs import UNITS, Cost
from framework.check.subject import Subject
from framework.check.verdicts import Verdict, verdicts
from framework.cli.exit import command, exit_with
from framework.errors import ConfigError, FrameworkError

_STYLES = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


class Report:
    """Prints as it goes; with `quiet`, nothing."""

    def __init__(self, subject: Subject, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._subject = subject
        self._console = Console(highlight=False, quiet=quiet)
        if not self._console.is_terminal:
            self._console.width = max(self._console.width, 100)

    def verdicts(self, **options: Any) -> list[Verdict]:
        """Run the kit; a table of verdicts, then every failure in full."""
        found: list[Verdict] = []
        with self._console.status("checking") as status:
            for verdict in verdicts(self._subject, **options):
                found.append(verdict)
                status.update(f"checking: {len(found)} done, {verdict.check}")
        self._table(found)
        for verdict in found:
            if verdict.status == "failed":
                self._failure(verdict)
        return found

    def _table(self, found: Sequence[Verdict]) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("check", ratio=4)
        table.add_column("verdict", no_wrap=True)
        table.add_column("s", justify="right", no_wrap=True)
        for verdict in found:
            check = Text(verdict.check)
            if verdict.status == "skipped":
                check.append(f" ({verdict.text})", style="dim")
            table.add_row(check, Text(verdict.status, style=_STYLES[verdict.status]), f"{verdict.seconds:.2f}")
        self._console.print(Text(self._subject.title, style="bold"))
        self._console.print(table)
        counts: Counter[str] = Counter(verdict.status for verdict in found)
        self._line(", ".join(f"{counts[status]} {status}" for status in _STYLES if counts[status]), "bold")

    def _failure(self, verdict: Verdict) -> None:
        self._line(f"\nFAILED {verdict.check}", "bold red")
        if verdict.rule:
            self._line(f"rule: {verdict.rule}")
        self._line(verdict.text)

    def costs(self, measure: Callable[[], list[Cost]]) -> list[Cost]:
        """Measure and print; a device that the plugin cannot run on is a line, not an error."""
        try:
            with self._console.status("measuring"):
                found = measure()
        except unittest.SkipTest as reason:
            self._line(f"\nno cost measured: {reason}")
            return []
        except FrameworkError:
            raise
        except Exception as error:
            self._line(f"\nno cost measured: {type(error).__name__}: {error}")
            return []
        self._cost_table(found)
        return found

    def _cost_table(self, found: Sequence[Cost]) -> None:
        from rich import box
        from rich.table import Table

        if not found:
            return
        columns = list(dict.fromkeys(column for cost in found for column in cost.numbers))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("cost", overflow="fold")
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        for cost in found:
            table.add_row(cost.name, *(_number(cost.numbers[column]) if cost.numbers else "-" for column in columns))
        self._console.print(table)
        self._line(UNITS[self._subject.kind], "dim")
        for cost in found:
            if cost.error:
                self._line(f"{cost.name} was not measured: {cost.error}", "red")

    def _line(self, text: str, style: str = "") -> None:
        from rich.text import Text

        self._console.print(Text(text, style=style), soft_wrap=True)


def _number(value: float) -> str:
    if value and abs(value) < 0.01:
        return f"{value:.2e}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


BROKEN = 1


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Check one plugin and print what was found; see the module's first line for the status."""
    options = _parser().parse_intermixed_args(arguments)
    return _check(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m framework.check",
        description="Runs a plugin's conformance kit and says of each promise whether it is kept, with the shortest "
        "calls that break it, and what the plugin costs a call beside the baselines.",
        epilog="exit status: 0 every promise kept, 1 one broken, 2 it could not be checked",
    )
    parser.add_argument("what", help="an installed plugin's NAME, a MODULE:CLASS or a FILE.py:CLASS")
    parser.add_argument("options", nargs="*", metavar="OPTION=VALUE", help="for its constructor")
    parser.add_argument("--kind", help="where the name is one of several: " + ", ".join(registry.kinds()))
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks with TEXT in their name")
    parser.add_argument("--device", default=None, help='for backends: "cpu", "cuda"; default: the best here')
    parser.add_argument("--cases", default="full", choices=["full", "small"], help="for backends: how many shapes")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S", help="seconds a check may take")
    parser.add_argument("--against", metavar="A,B", help="measure beside these plugins; default: the usual baselines")
    parser.add_argument("--no-cost", action="store_true", help="measure nothing")
    parser.add_argument("--json", action="store_true", help="one object, for programs")
    return parser


def _check(options: argparse.Namespace) -> int:
    from framework.check import costs, resolve
    from framework.check.__main__ import Report

    subject = resolve(options.what, options.kind, _options(options.options))
    device = _device(options.device) if subject.kind == "backend" else "cpu"
    report = Report(subject, quiet=options.json)
    found = report.verdicts(
        only=options.only, device=device, cases=options.cases, timeout_s=options.timeout
    )  # fmt: skip
    if not found:
        raise ConfigError(f"no check of the {subject.kind} kit has {options.only!r} in its name")
    against = options.against.split(",") if options.against else None
    spent = [] if options.no_cost else report.costs(lambda: costs(subject, against=against, device=device))
    if options.json:
        facts = {"kind": subject.kind, "subject": subject.title}
        print(json.dumps({**facts, "verdicts": [asdict(one) for one in found],  # noqa: T201
                          "costs": [asdict(one) for one in spent]}, indent=2))  # fmt: skip
    return BROKEN if any(one.status == "failed" for one in found) else 0


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


def _device(asked: str | None) -> str:
    from framework.engine.executors.checks import default_device

    return default_device(asked)


if __name__ == "__main__":
    exit_with(main)
