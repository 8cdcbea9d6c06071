"""The same kernel functions, compiled for a GPU or interpreted on the CPU, both in one process.

`triton.jit` decides once, at decoration and for the whole process, from TRITON_INTERPRET. A sweep over devices, or a
test that compiles ahead of time beside one that interprets, needs both; the functions are therefore wrapped here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def compiled(function: Callable[..., None]) -> Any:
    """`function` as a kernel that Triton compiles: `compiled(f)[grid](*args, **constants)`."""
    from triton.runtime.jit import JITFunction

    return JITFunction(function)


@functools.cache
def interpreted(function: Callable[..., None]) -> Any:
    """`function` as a kernel that Triton's interpreter runs on CPU tensors, by NumPy."""
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(function)
