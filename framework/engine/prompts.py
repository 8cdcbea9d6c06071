"""Normalisation of `LLM.generate`'s arguments: one prompt or many, one value for all or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from framework.errors import InvalidArgument


def is_one_prompt(prompts: Any) -> bool:
    """A text, a list of ids or a chat is one prompt; a list of these is many."""
    return isinstance(prompts, str) or (len(prompts) > 0 and not isinstance(prompts[0], (str, Sequence, np.ndarray)))


def one_each(name: str, values: Any, count: int) -> list[Any]:
    """A list of one for each of `count` prompts, from such a list or from one for all."""
    if not isinstance(values, (list, tuple)):
        return [values] * count
    if len(values) != count:
        raise InvalidArgument(f"{count} prompts but {len(values)} {name}; give one for all or one each")
    return list(values)
