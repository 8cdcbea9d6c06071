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
from typing import Any

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

    Positions are copied out of the step's one upload: where they begin in it would be compiled for, too, if that was
    once equal to how many there are.
    """

    def forward(tokens: Tensor, positions: Tensor, attention: Attention, rotate: bool) -> Tensor:
        hidden: Tensor = decoder(tokens, positions, attention, rotate=rotate)
        return hidden

    function = types.FunctionType(forward.__code__.replace(), globals(), closure=forward.__closure__)
    compiled = torch.compile(function, dynamic=True, fullgraph=True)
    return lambda tokens, positions, attention, rotate: compiled(tokens, positions.clone(), attention, rotate)


def opaque_attention(owner: Any) -> Attention:
    """`owner.attend`, an Attention, behind a registered operator, which does not keep it alive.

    `owner.widths` has the shape of a token's result of layers that do not attend.
    """
    operator, number = _operator("attend"), _number_of(owner)

    def through(layer: int, *inputs: Tensor) -> Tensor:
        attended: Tensor = operator([*inputs], layer, number)
        return attended

    return through


class OpaqueGroup:
    """A group of ranks whose `sum` is a registered operator. Each sum has a tensor of its own."""

    def __init__(self, group: Group) -> None:
        self._operator, self._number, self.gather = _operator("sum"), _number_of(group), group.gather

    def sum(self, x: Tensor) -> Tensor:
        """See Group."""
        total: Tensor = self._operator(x, self._number)
        return total


def _number_of(owner: Any) -> int:
    number = next(_NUMBERS)
    _OWNERS[number] = owner
    return number


_WORK: dict[str, tuple[str, Callable[..., Any], Callable[..., Tensor]]] = {
    "attend": (
        "(Tensor[] inputs, int layer, int number) -> Tensor",
        lambda inputs, layer, number: _OWNERS[number].attend(layer, *inputs),
        lambda inputs, layer, number: inputs[0].new_empty(
            inputs[0].shape[0], *_OWNERS[number].widths.get(layer, (inputs[0].shape[1], inputs[-1].shape[-1]))
        ),
    ),
    "sum": (
        "(Tensor x, int number) -> Tensor",
        lambda x, number: _OWNERS[number].sum(x.clone()),
        lambda x, number: torch.empty_like(x),
    ),
}
"""An operator's schema, what it does, and an empty tensor of its result's shape."""


@functools.cache
def _operator(name: str) -> Callable[..., Any]:
    """The operator that does this work; one of a name for the process."""
    schema, work, fake = _WORK[name]
    operator = torch.library.custom_op(f"kvcache_framework::{name}", work, mutates_args=(), schema=schema)
    operator.register_fake(fake)
    return operator
