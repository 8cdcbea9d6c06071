"""Error boundary around the constructors of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework.errors import FrameworkError, PluginError
from framework.guard.boundary import OUTSIDE, origin_of, shown


def construct(kind: str, name: str, cls: type, arguments: Mapping[str, Any]) -> Any:
    """`cls(**arguments)`.

    Raises:
        FrameworkError: what the constructor raised on purpose, with the plugin's kind and name in front unless its
            words begin with an option's key.
        PluginError: it raised anything else.
    """
    try:
        return cls(**arguments)
    except OUTSIDE:
        raise
    except FrameworkError as error:
        if error.args and isinstance(error.args[0], str) and not error.args[0].startswith(f"{kind}."):
            error.args = (f"{kind} {name!r}: {error.args[0]}", *error.args[1:])
        raise
    except BaseException as error:
        raise PluginError(f"{kind} {name!r} ({origin_of(cls)}): its constructor raised {shown(error)}") from error
