"""Bounds of the numbers that a command takes."""

from __future__ import annotations

import argparse

from framework.errors import ConfigError

_MOST = 2**31 - 1


def require_in_bounds(options: argparse.Namespace, *above_0: str) -> None:
    """Refuse an option of these names that is given and not above 0 or above 2^31, and a seed below 0.

    Raises:
        ConfigError: names the option and what was found.
    """
    for name in above_0:
        value = getattr(options, name)
        if value is not None and not 0 < value <= _MOST:
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0 and at most {_MOST:,}, found {value}")
    if getattr(options, "seed", 0) < 0:
        raise ConfigError(f"--seed must be at least 0, found {options.seed}")
