"""The same kernel functions, compiled for a GPU or interpreted on the CPU, both in one process.

`triton.jit` decides once, at decoration and for the whole process, from TRITON_INTERPRET. A sweep over devices, or a
test that compiles ahead of time beside one that interprets, needs both; the functions are therefore wrapped here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

NOT_SPECIALISED = (
    "num_", "first_", "min_", "window", "split_len", "table_stride", "lse_stride", "scale_stride"
)  # fmt: skip
"""Beginnings of the names of integer arguments that differ from batch to batch, or from layout to layout and gain
nothing by being known. Triton would compile a kernel anew where one of them is 1 or a multiple of 16; these are never
specialised on."""


@functools.cache
def compiled(function: Callable[..., None]) -> Any:
    """`function` as a kernel that Triton compiles: `compiled(f)[grid](*args, **constants)`."""
    from triton.runtime.jit import JITFunction

    return JITFunction(function, do_not_specialize=not_specialised(function))


def not_specialised(function: Callable[..., None]) -> list[str]:
    """The arguments of a kernel that Triton must not specialise on."""
    return [name for name in inspect.signature(function).parameters if name.startswith(NOT_SPECIALISED)]


@functools.cache
def interpreted(function: Callable[..., None]) -> Any:
    """`function` as a kernel that Triton's interpreter runs on CPU tensors, by NumPy."""
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(function)
