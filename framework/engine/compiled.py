"""A decoder through torch.compile, with attention and sums over ranks opaque to it.

A traced program can hold tensors and integers only: an operator that stands for an object's method takes a number and
looks the object up.
"""

from __future__ import annotations

import functools
import itertools
import types
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from framework.model.decoder import Attention, Decoder
from framework.model.shard import Group

_OWNERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def compiled_forward(decoder: Decoder) -> Callable[..., Any]:
    """`decoder`'s forward, compiled when first called: one program for a single token, one for any other number.

    torch counts what it compiled by code object and stops at eight, whichever decoder they were for; so that a process
    can make one model after another, each gets a code object of its own, and takes its programs along when it goes.
    """

    def forward(tokens: Tensor, positions: Tensor, attention: Attention, rotate: bool = True) -> Tensor:
        hidden: Tensor = decoder(tokens, positions, attention, rotate=rotate)
        return hidden

    code = forward.__code__.replace()
    function = types.FunctionType(
        code, forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__
    )
    return torch.compile(function, dynamic=True, fullgraph=True)


class Attends(Protocol):
    """What computes a layer's attention."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `framework.model.decoder.Attention`."""


def opaque_attention(owner: Attends) -> Attention:
    """The attention of `owner` behind a registered operator, which does not keep it alive."""
    operator, number = _attend(), _number_of(owner)

    def through(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found: Tensor = operator(q, k, v, layer, number)
        return found

    return through


class OpaqueGroup:
    """A group of ranks whose `sum` is a registered operator. Each sum has a tensor of its own."""

    def __init__(self, group: Group) -> None:
        self._group, self._operator, self._number = group, _sum(), _number_of(group)

    def sum(self, x: Tensor) -> Tensor:
        """See Group."""
        total: Tensor = self._operator(x, self._number)
        return total

    def gather(self, x: Tensor, widths: list[int]) -> Tensor:
        """See Group."""
        return self._group.gather(x, widths)


def _number_of(owner: Any) -> int:
    number = next(_NUMBERS)
    _OWNERS[number] = owner
    return number


@functools.cache
def _attend() -> Callable[..., Any]:
    def attend(q: Tensor, k: Tensor, v: Tensor, layer: int, number: int) -> Tensor:
        found: Tensor = _OWNERS[number].attend(layer, q, k, v)
        return found

    return _operator("attend", "(Tensor q, Tensor k, Tensor v, int layer, int number) -> Tensor", attend)


@functools.cache
def _sum() -> Callable[..., Any]:
    def add_up(x: Tensor, number: int) -> Tensor:
        found: Tensor = _OWNERS[number].sum(x.clone())
        return found

    return _operator("sum", "(Tensor x, int number) -> Tensor", add_up)


def _operator(name: str, schema: str, work: Callable[..., Tensor]) -> Callable[..., Any]:
    """`work` as an operator that gives a tensor like its first argument. torch keeps one of a name for the process."""
    operator = torch.library.custom_op(f"kvcache_framework::{name}", work, mutates_args=(), schema=schema)
    operator.register_fake(lambda first, *others: torch.empty_like(first))
    return operator
