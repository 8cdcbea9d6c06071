"""The command line of `framework.check`. Exit status: 0 every promise kept, 1 one broken, 2 it could not be checked."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from framework import registry
from framework.cli.exit import command, exit_with
from framework.errors import ConfigError

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
    from framework.check.show import Report

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
