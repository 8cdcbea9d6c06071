"""The sum over ranks as one operation that torch.compile neither enters nor specialises on."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterator, MutableMapping

from torch import Tensor

from framework.engine.compiled import Operator, opaque_operator
from framework.model.shard import Group


def opaque_group(group: Group) -> Group:
    """`group`, whose `sum` is a registered operator: a traced program can hold no process group."""
    return group if isinstance(group, _OpaqueGroup) else _OpaqueGroup(group)


class _OpaqueGroup:
    """Gives each sum a tensor of its own, as an operator without side effects must."""

    def __init__(self, group: Group) -> None:
        self._operator, groups, numbers = _operator()
        self._group, self._number = group, next(numbers)
        groups[self._number] = group

    def sum(self, x: Tensor) -> Tensor:
        """See Group."""
        total: Tensor = self._operator(x, self._number)
        return total

    def gather(self, x: Tensor, widths: list[int]) -> Tensor:
        """See Group."""
        return self._group.gather(x, widths)


@functools.cache
def _operator() -> tuple[Operator, MutableMapping[int, Group], Iterator[int]]:
    groups: MutableMapping[int, Group] = weakref.WeakValueDictionary()

    def add_up(x: Tensor, number: int) -> Tensor:
        return groups[number].sum(x.clone())

    return opaque_operator("sum", "(Tensor x, int number) -> Tensor", add_up), groups, itertools.count()
