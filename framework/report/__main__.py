"""`python -m framework.report DIR...`: tables, plots and one page from run directories and sweeps."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from framework.cli.exit import command, exit_with
from framework.errors import ConfigError


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report; 0 done, 2 the request cannot be met."""
    options = _parser().parse_args(arguments)
    if options.to == "":
        raise ConfigError("--to names no folder; leave it out to write into the first DIR")
    from framework.report.console import print_study
    from framework.report.write import write_report

    report = write_report(
        options.folders,
        options.to or options.folders[0],
        metric=options.metric,
        baseline=options.baseline,
        force=options.force,
    )
    print_study(report.study)
    for path in report.files:
        print(path)  # noqa: T201
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m framework.report", description=__doc__)
    parser.add_argument("folders", nargs="+", metavar="DIR", help="run directories, or folders above them")
    parser.add_argument("--to", metavar="FOLDER", help="where the files go; default the first DIR")
    parser.add_argument("--metric", help="rank by this key of result.json; default hit_rate, else a throughput")
    parser.add_argument("--baseline", metavar="KEY=VALUE", help="compare with this, such as eviction=lru")
    parser.add_argument("--force", action="store_true", help="replace files of these names that are no report's")
    return parser


if __name__ == "__main__":
    exit_with(main)
