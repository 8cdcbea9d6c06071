"""A sweep configuration for Weights & Biases, whose own sweep controller then drives our command line.

`python -m framework wandb OVERRIDE... > sweep.yaml` turns the overrides of a sweep into a W&B sweep configuration;
then `wandb sweep sweep.yaml` and, on as many machines as wanted, `wandb agent ENTITY/PROJECT/ID`. Nothing here needs
W&B's server: `python -m framework.run -m` sweeps without it, and `wandb sync DIR/wandb/offline-run-*` uploads what
was recorded offline.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from framework.errors import ConfigError
from framework.files.secrets import masked
from framework.interfaces.command import Command
from framework_lab.search import Axis, add_direction, axes_of, maximises

METHODS = ("grid", "random", "bayes")


def sweep_config(
    overrides: Sequence[str], *, method: str = "grid", metric: str = "hit_rate", maximize: bool | None = None
) -> dict[str, Any]:
    """A W&B sweep configuration whose command is `python -m framework.run` with our overrides.

    Args:
        overrides: of a sweep, in either spelling; at least one with several values. Add `tracker.project=...` and the
            like as they are wanted; `tracker=wandb` is always there.
        method: grid, random or bayes. A grid takes no continuous interval: W&B refuses it.
        metric: a key of the run's summary, which is `result.json`.
        maximize: the direction; None: as the catalogue of results says of the metric.

    Raises:
        ConfigError: overrides that cannot be read, or that vary nothing, or give a secret; a metric that is in no
            result.
    """
    fixed, axes = axes_of(overrides)
    for word in fixed:
        if (shown := masked(word)) != word:
            raise ConfigError(f"{shown}: W&B would keep what looks like a secret; give it as ${{oc.env:NAME}}")
    words = [word for word in fixed if word.partition("=")[0] != "tracker"]
    return {
        "program": "framework.run",
        "method": method,
        "metric": {"name": metric, "goal": "maximize" if maximises(metric, maximize) else "minimize"},
        "command": [
            "${env}",
            "${interpreter}",
            "-m",
            "framework.run",
            "tracker=wandb",
            *words,
            "${args_no_hyphens}",
        ],
        "parameters": {axis.key: parameter(axis) for axis in axes},
    }


def parameter(axis: Axis) -> dict[str, Any]:
    """One axis in W&B's words. Source: https://docs.wandb.ai/guides/sweeps/sweep-config-keys."""
    import yaml

    if axis.choices:
        return {"values": [yaml.safe_load(choice) for choice in axis.choices]}
    if axis.step is not None:
        count = int((axis.high - axis.low) / axis.step + 1e-9) + 1
        values = [axis.low + index * axis.step for index in range(count)]
        return {"values": [int(value) for value in values] if axis.whole else values}
    if axis.whole and not axis.log:
        return {"distribution": "int_uniform", "min": int(axis.low), "max": int(axis.high)}
    kind = {(False, False): "uniform", (True, False): "log_uniform_values", (True, True): "q_log_uniform_values"}
    distribution = {"distribution": kind[axis.log, axis.whole], "min": axis.low, "max": axis.high}
    return {**distribution, "q": 1} if axis.whole else distribution


class Sweeps(Command):
    """Print a sweep configuration for Weights & Biases, made of the overrides of a sweep."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("overrides", nargs="+", metavar="OVERRIDE", help="as for framework.run --multirun")
        parser.add_argument("--method", choices=METHODS, default="grid")
        parser.add_argument("--metric", default="hit_rate", help="key of result.json (default: hit_rate)")
        add_direction(parser)

    def parse(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
        return parser.parse_intermixed_args(words)  # an option may stand between two overrides

    def run(self, options: argparse.Namespace) -> int:
        import yaml

        config = sweep_config(
            options.overrides, method=options.method, metric=options.metric, maximize=options.maximize
        )
        print(yaml.safe_dump(config, sort_keys=False), end="")  # noqa: T201
        return 0
