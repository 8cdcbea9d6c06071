"""A decoder through torch.compile, and attention as one operation that it neither enters nor specialises on."""

from __future__ import annotations

import functools
import itertools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from framework.model.decoder import Attention, Decoder

Operator = Callable[..., Any]


def compiled_forward(decoder: Decoder) -> Callable[..., Any]:
    """`decoder`'s forward, compiled when first called: one program for a single token, one for any other number.

    torch counts what it compiled by code object and stops at eight, whichever decoder they were for; so that a process
    can make one model after another, each gets a code object of its own, and takes its programs along when it goes.
    """

    def forward(tokens: Tensor, positions: Tensor, attention: Attention, rotate: bool = True) -> Tensor:
        hidden: Tensor = decoder(tokens, positions, attention, rotate=rotate)
        return hidden

    code = forward.__code__.replace()
    own = types.FunctionType(code, forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__)
    return torch.compile(own, dynamic=True, fullgraph=True)


def opaque_attention(attention: Attention) -> Attention:
    """`attention`, a bound method, behind a registered operator: its owner is not kept alive by it."""
    operator, methods, numbers = _operator()
    number = next(numbers)
    methods[number] = weakref.WeakMethod(attention, lambda _: methods.pop(number, None))

    def through(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found: Tensor = operator(q, k, v, layer, number)
        return found

    return through


@functools.cache
def _operator() -> tuple[Operator, dict[int, Any], Iterator[int]]:
    methods: dict[int, Any] = {}

    def attend(q: Tensor, k: Tensor, v: Tensor, layer: int, number: int) -> Tensor:
        attention = methods[number]()
        assert attention is not None, "the executor of this compiled decoder is gone"
        found: Tensor = attention(layer, q, k, v)
        return found

    schema = "(Tensor q, Tensor k, Tensor v, int layer, int number) -> Tensor"
    return opaque_operator("attend", schema, attend), methods, itertools.count()


def opaque_operator(name: str, schema: str, work: Operator) -> Operator:
    """`work` as an operator that torch.compile neither enters nor specialises on; gives one like its first argument.

    A traced program can hold tensors and integers only: an operator that stands for an object's method takes a number
    and looks the object up. Make it once, when first wanted: torch keeps one of a name for the whole process.
    """
    operator = torch.library.custom_op(f"kvcache_framework::{name}", work, mutates_args=(), schema=schema)
    operator.register_fake(lambda first, *others: torch.empty_like(first))
    return operator
