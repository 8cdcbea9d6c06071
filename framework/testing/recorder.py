"""A recorder for machines without CUDA graphs: does the work again, and refuses what a graph could not have done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from framework.errors import InvariantViolation

_READS = (
    "item",
    "is_nonzero",
    "_local_scalar_dense",
    "nonzero",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "masked_select",
    "equal",
)
"""Operators whose result, or its shape, is only known once the device has been waited for."""

Call = tuple[str, tuple[Any, ...]]


class ReplayRecorder:
    """Replays by running the same Python again, and checks that a CUDA graph would have done the same.

    A graph repeats the launches of its capture: the same kernels, numbers and shapes, reading and writing the same
    addresses. A replay that calls another operator, passes another number, or touches memory that was not there at
    capture raises, and so does an operator that must wait for the device.

    Args:
        check: False for simulated kernels, which compute on the host (Triton's interpreter): nothing is compared.

    Attributes:
        num_replays: so far.
    """

    def __init__(self, *, check: bool = True) -> None:
        self.num_replays, self._check = 0, check

    def warm_up(self, work: Callable[[], None]) -> None:
        """Do it."""
        work()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Note what the work calls, and with what."""
        captured = _calls_of(work) if self._check else []

        def replay() -> None:
            if self._check:
                _compare(captured, _calls_of(work))
            else:
                work()
            self.num_replays += 1

        return replay


def _calls_of(work: Callable[[], None]) -> list[Call]:
    log = _Log()
    with log:
        work()
    return log.calls


class _Log(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operator called, with its numbers, and the addresses, shapes and dtypes of tensors from outside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._made: dict[int, Tensor] = {}  # kept alive, so that no address comes twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        if name.split(".")[1] in _READS or _indexes_by_mask(name, args):
            raise InvariantViolation(f"G1: {name} waits for the device: a captured step must not")
        inputs = [self._described(leaf) for leaf in tree_leaves((args, kwargs))]
        known = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        found = func(*args, **kwargs)
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor) and _storage(leaf) not in known:
                self._made.setdefault(_storage(leaf), leaf)
        self.calls.append((name, tuple(inputs)))
        return found

    def _described(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf if isinstance(leaf, (int, float, bool, str, type(None))) else str(leaf)
        where = "inside" if _storage(leaf) in self._made else leaf.data_ptr()
        return where, tuple(leaf.shape), leaf.stride(), str(leaf.dtype)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _indexes_by_mask(name: str, args: Any) -> bool:
    """Indexing with a boolean tensor counts its true entries first."""
    if not name.startswith(("aten.index.", "aten.index_put", "aten._index_put_impl")):
        return False
    return any(isinstance(leaf, Tensor) and leaf.dtype in (torch.bool, torch.uint8) for leaf in tree_leaves(args[1]))


def _compare(captured: Iterable[Call], again: Iterable[Call]) -> None:
    first, second = list(captured), list(again)
    for at, (then, now) in enumerate(zip(first, second, strict=False)):
        if then != now:
            raise InvariantViolation(f"G2: call {at} of a replay is {now}, at capture it was {then}")
    if len(first) != len(second):
        raise InvariantViolation(f"G2: a replay makes {len(second)} calls, its capture made {len(first)}")
