"""Running a backend on a problem, once, or recorded and replayed as a graph would be, and judging how far off it is."""

from __future__ import annotations

import math
import unittest
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from framework.errors import InvariantViolation
from framework.interfaces.backend import LAYOUTS, AttentionBackend, AttentionSpec, LayerKV, Loss
from framework_testing.attention_cases import LENGTHS, QUERIES, WINDOWS, Case, Problem, pairwise, query_lengths
from framework_testing.oracles.attention import attend_dense, gather_tokens

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
    for number, (then, now) in enumerate(zip(first, second, strict=False)):
        if then != now:
            raise InvariantViolation(f"G2: call {number} of a replay is {now}, at capture it was {then}")
    if len(first) != len(second):
        raise InvariantViolation(f"G2: a replay makes {len(second)} calls, its capture made {len(first)}")


Make = Callable[[], AttentionBackend]
"""Gives a fresh backend: a class, or a functools.partial of one. Picklable, for the check that runs in a subprocess."""

_GRID: dict[str, dict[str, tuple[Any, ...]]] = {
    "full": {
        "block_size": (1, 3, 8, 16, 32, 256),
        "lengths": ("ragged", "5P+3", "P+1", "P", "P-1", "2P+1", "1", "0"),
        "queries": QUERIES,
        "heads": ((4, 2), (2, 2), (16, 2), (8, 1), (10, 2), (3, 1)),
        "head_dim": (64, 128, 16, 24, 80, 96, 192, 256, 46),
        "window": tuple(WINDOWS),
    },
    "small": {
        "block_size": (16, 1, 3, 32),
        "lengths": ("edges", "5P+3"),
        "queries": ("mixed", "1", "5"),
        "heads": ((4, 2), (5, 1)),
        "head_dim": (64, 128, 16),
        "window": ("none", "P", "1"),
    },
}


LATENTS = ((512, 64), (64, 16), (256, 32), (24, 8))
"""Elements of the latent and of the rotated key of the rows in the grid: DeepSeek's, small ones, MiniCPM3's."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far from the fp64 oracle a backend came, absolute, and how far it may come."""

    case: str
    error: float
    plain_error: float
    limit: float

    @property
    def ok(self) -> bool:
        """False for NaN too."""
        return self.error <= self.limit

    def __str__(self) -> str:
        return (
            f"{self.case}: max error {self.error:.3g}, allowed {self.limit:.3g}, plain PyTorch's {self.plain_error:.3g}"
        )


@dataclass(frozen=True, slots=True)
class Truth:
    """A problem's output (T, H, V) and log-sum-exps (T, H) in fp64, and how far from them plain PyTorch is."""

    out: Tensor
    lse: Tensor
    plain_error: float


def truth_of(problem: Problem) -> Truth:
    """What the oracle says; plain PyTorch computes in the queries' dtype."""
    out, lse = attend_dense(problem.q, problem.pool, problem.batch, problem.spec)
    plain, _ = attend_dense(problem.q, problem.pool, problem.batch, problem.spec, problem.q.dtype)
    return Truth(out, lse, float((plain.double() - out).abs().max()) if out.numel() else 0.0)


def judge(out: Tensor, problem: Problem, loss: Loss | None = None, truth: Truth | None = None) -> Verdict:
    """Compare `out` (T, H, V) with the oracle.

    Args:
        loss: what the backend declares to lose: its share of the problem's largest |V| is allowed on top.
        truth: of the problem, where it is known.

    Allowed: fp32 1e-5 (or twice plain PyTorch's own error, where logits are extreme), fp64 1e-10, half precision
    twice the error of plain PyTorch in the same dtype plus 1e-5, fp8 pools four times.
    """
    spec, truth = problem.spec, truth or truth_of(problem)
    floor = 1e-10 if spec.dtype == "float64" else 1e-5
    factor = 4 if spec.kv_dtype else 2
    error = float((out.double().cpu() - truth.out).abs().max()) if out.numel() else 0.0
    limit = factor * truth.plain_error + floor + (loss.max_error * _largest_value(problem) if loss is not None else 0.0)
    return Verdict(str(problem.case), math.inf if math.isnan(error) else error, truth.plain_error, limit)


def _largest_value(problem: Problem) -> float:
    rows = zip(problem.batch.block_tables.tolist(), problem.batch.context_lens.tolist(), strict=True)
    values = [gather_tokens(problem.pool, table, context)[1] for table, context in rows if context]
    return max((float(v.double().abs().max()) for v in values), default=0.0)


def wrong_lse(sums: Tensor, problem: Problem, verdict: Verdict, truth: Truth | None = None) -> list[str]:
    """A sentence where `sums` (T, H) is further from the oracle's log-sum-exp than rounding explains; else nothing."""
    want = (truth or truth_of(problem)).lse
    got, empty = sums.double().cpu(), want == -math.inf
    if not torch.equal(got == -math.inf, empty):
        return [f"{verdict.case}: lse is -inf at {int((got == -math.inf).sum())} places, should be {int(empty.sum())}"]
    error = float((got - want)[~empty].abs().max()) if not bool(empty.all()) else 0.0
    limit = max(1e-5, 2e-7 * float(want[~empty].abs().max())) if not bool(empty.all()) else 0.0
    half = problem.spec.dtype in ("float16", "bfloat16") or problem.spec.kv_dtype
    limit = limit if not half else 2e-2
    return [] if error <= limit else [f"{verdict.case}: lse is off by {error:.3g}, allowed {limit:.3g}"]


def run_attention(backend: AttentionBackend, problem: Problem, *, lse: bool = False) -> tuple[Tensor, Tensor | None]:
    """plan, then attend into an output full of NaN: out (T, H, V) and lse (T, H) or None."""
    out = empty_output(problem)
    sums = torch.full(problem.q.shape[:2], math.nan, dtype=torch.float32, device=out.device) if lse else None
    backend.plan(problem.batch)
    backend.attend(problem.q, problem.pool, problem.batch, out, lse=sums)
    return out, sums


def empty_output(problem: Problem) -> Tensor:
    """(T, H, V), full of NaN."""
    shape = (*problem.q.shape[:2], problem.spec.value_dim)
    return torch.full(shape, math.nan, dtype=problem.q.dtype, device=problem.q.device)


def prepared(make: Make, spec: AttentionSpec, device: str) -> AttentionBackend:
    """A fresh backend, checked and set up."""
    backend = make()
    reasons = backend.check(spec, device)
    assert not reasons, f"{type(backend).__name__}.check refuses {spec} on {device}: {reasons}"
    backend.setup(spec, device)
    return backend


def supported(make: Make, device: str, **wanted: Any) -> AttentionSpec:
    """A spec the backend serves on `device`, as near to `wanted` as it gets.

    Raises:
        unittest.SkipTest: it serves none of the shapes the kit knows, with its reasons.
    """
    backend = make()
    found: list[str] = []
    for spec in _specs(backend, wanted):
        found = backend.check(spec, device)
        if not found:
            return spec
    raise unittest.SkipTest(f"{type(backend).__name__} on {device}: " + "; ".join(found))


def _specs(backend: AttentionBackend, wanted: dict[str, Any]) -> Iterator[AttentionSpec]:
    can = backend.capabilities
    first = ("float32", "bfloat16", "float16", "float64")
    dtypes = [dtype for dtype in first if dtype in can.dtypes] or sorted(can.dtypes)
    dims = [64, 128] if can.head_dims is None else sorted(can.head_dims, key=lambda dim: (dim != 64, dim))
    step = can.block_size_multiple_of
    for layout in sorted(can.layouts, key=LAYOUTS.index):
        for dtype in dtypes:
            for dim in dims:
                base: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": dim, "dtype": dtype}
                yield AttentionSpec(**(base | {"block_size": max(step, 16 // step * step), "layout": layout} | wanted))


def grid(make: Make, device: str, cases: str) -> list[Case]:
    """The sampled grid, every two values together at least once, inside what the backend supports on `device`."""
    backend = make()
    can = backend.capabilities
    factors: dict[str, Any] = dict(_GRID[cases])
    if can.head_dims is not None:
        factors["head_dim"] = tuple(dim for dim in factors["head_dim"] if dim in can.head_dims) or tuple(can.head_dims)
    if can.block_size_multiple_of > 1:
        step = can.block_size_multiple_of
        factors["block_size"] = tuple(size for size in factors["block_size"] if size % step == 0) or (step,)
    factors["dtype"] = sorted(can.dtypes, key=lambda name: (name != "float32", name))
    factors["layout"] = sorted(can.layouts, key=LAYOUTS.index)
    factors["kv_dtype"] = (None, *sorted(can.kv_dtypes or ()))
    if "latent" in can.features:
        factors["latent"] = (None, *LATENTS)
    for feature in ("soft_cap", "sinks", "alibi"):
        factors[feature] = (False, True) if feature in can.features else (False,)
    if "sliding_window" not in can.features:
        factors["window"] = ("none",)
    rows = pairwise(factors, lambda row: not backend.check(_case(row).spec, device))
    return [_case(row, seed) for seed, row in enumerate(rows)]


def _case(row: dict[str, Any], seed: int = 0) -> Case:
    size, heads, latent = row["block_size"], row["heads"], row.get("latent")
    contexts, queries = query_lengths(row["queries"], LENGTHS[row["lengths"]](size), size)
    spec = AttentionSpec(
        num_heads=heads[0],
        num_kv_heads=1 if latent else heads[1],
        head_dim=sum(latent) if latent else row["head_dim"],
        latent_dim=latent[0] if latent else None,
        dtype=row["dtype"],
        block_size=size,
        kv_dtype=row["kv_dtype"],
        layout=row["layout"],
        scale=0.3 if seed % 3 == 2 else None,
        sliding_window=WINDOWS[row["window"]](size),
        soft_cap=2.0 if row["soft_cap"] else None,
        sinks=row["sinks"],
        alibi=row["alibi"],
    )
    return Case(spec, contexts, queries, seed)


@contextmanager
def refusal(what: str, kind: type[Exception]) -> Iterator[None]:
    """The block must raise `kind`.

    Raises:
        AssertionError: it raised something else, or nothing.
    """
    try:
        yield
    except kind:
        return
    except Exception as error:
        raise AssertionError(f"{what}: must raise {kind.__name__}, raised {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what}: must raise {kind.__name__}, and did not")


def pool_bytes(pool: LayerKV) -> dict[str, Tensor]:
    """Copies, on the CPU, of all that the pool's blocks have, as raw bytes: what NaN compares equal in."""
    return {name: stored.cpu().contiguous().clone().view(torch.uint8) for name, stored in pool.tensors.items()}


def same_bytes(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    """Whether two `pool_bytes` agree everywhere."""
    return all(torch.equal(before[name], after[name]) for name in before)
