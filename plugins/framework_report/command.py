"""`python -m framework report DIR...`: tables, plots and one page from run directories and sweeps."""

from __future__ import annotations

import argparse
from pathlib import Path

from framework.errors import ConfigError
from framework.interfaces.command import Command


class Report(Command):
    """Write tables, plots and one page from run directories and sweeps."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("folders", nargs="+", metavar="DIR", help="run directories, or folders above them")
        parser.add_argument("--to", metavar="FOLDER", help="where the files go; default the first DIR")
        parser.add_argument("--metric", help="rank by this key of result.json; default hit_rate, else a throughput")
        parser.add_argument("--baseline", metavar="KEY=VALUE", help="compare with this, such as eviction=lru")
        parser.add_argument("--force", action="store_true", help="replace files of these names that are no report's")
        parser.add_argument("--publish", action="store_true", help="give it to the tracker of the runs, too")

    def run(self, options: argparse.Namespace) -> int:
        if options.to == "":
            raise ConfigError("--to names no folder; leave it out to write into the first DIR")
        from framework_report.write import print_study, publish, write_report

        report = write_report(
            options.folders,
            options.to or options.folders[0],
            metric=options.metric,
            baseline=options.baseline,
            force=options.force,
        )
        print_study(report.study)
        print(f"report in {report.files[0]}")  # noqa: T201
        if options.publish:
            publish(report, Path(options.folders[0]))
        return 0
