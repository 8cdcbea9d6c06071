"""A decoder through torch.compile, and attention as one operation that it neither enters nor specialises on."""

from __future__ import annotations

import functools
import itertools
import types
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor

from framework.model.decoder import Attention, Decoder


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
    """`attention`, a bound method, behind a registered operator: its owner is not kept alive by it.

    A traced program can hold tensors and integers only, so the operator is told a number and looks the owner up.
    """
    number, method = _register(attention)

    def through(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found: Tensor = method(q, k, v, layer, number)
        return found

    return through


def _register(attention: Attention) -> tuple[int, Any]:
    operator, owners, numbers = _operator()
    number = next(numbers)
    owners[number] = weakref.WeakMethod(attention, lambda _: owners.pop(number, None))
    return number, operator


@functools.cache
def _operator() -> tuple[Any, MutableMapping[int, Any], Any]:
    """The operator, made when first wanted: torch keeps one of a name for the whole process."""
    owners: dict[int, Any] = {}

    def attend(q: Tensor, k: Tensor, v: Tensor, layer: int, number: int) -> Tensor:
        attention = owners[number]()
        assert attention is not None, "the executor of this compiled decoder is gone"
        found: Tensor = attention(layer, q, k, v)
        return found

    def shape(q: Tensor, k: Tensor, v: Tensor, layer: int, number: int) -> Tensor:
        return torch.empty_like(q)

    schema = "(Tensor q, Tensor k, Tensor v, int layer, int number) -> Tensor"
    operator = torch.library.custom_op("kvcache_framework::attend", attend, mutates_args=(), schema=schema)
    operator.register_fake(shape)
    return operator, owners, itertools.count()
