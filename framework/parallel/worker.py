"""The process of a rank other than 0: it loads its part and obeys rank 0 until it is stopped or left alone."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.util import _run_finalizers  # type: ignore[attr-defined]
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from framework.engine.rows import IntArray, Rows
from framework.errors import FrameworkError, RankError
from framework.model.dense import dense_logits
from framework.model.loading import ModelSource
from framework.model.shard import Shard
from framework.parallel.group import Group
from framework.parallel.messages import Op, Order, orders, packed

if TYPE_CHECKING:
    from framework.config.sections import EngineOptions
    from framework.engine.executors.model import ModelExecutor
    from framework.engine.served_pass import Gaps
    from framework.interfaces.backend import AttentionSpec
    from framework.registry.components import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a rank needs to start.

    Attributes:
        meeting_point: path of the file through which the ranks find each other; its folder goes with the ranks.
        num_threads: of torch, on a CPU.
    """

    source: ModelSource
    rank: int
    size: int
    device: str
    meeting_point: str
    timeout_s: float
    num_threads: int


@dataclass(frozen=True, slots=True)
class Done:
    """What a call returned."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """How a rank ended.

    Attributes:
        consequence: a collective failed, because some other rank did.
    """

    text: str
    consequence: bool


def work(plan: Plan, pipe: Connection) -> None:
    """The whole life of one rank, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; rank 0 decides what it means
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked while this process began
    sentinel = _end_with_rank_0(Path(plan.meeting_point).parent)
    try:
        Worker(plan, pipe).run()
    except BaseException as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        with suppress(OSError):
            pipe.send(Failed(text, isinstance(error, RankError)))
        if isinstance(error, RankError) and wait([sentinel], timeout=1.0):
            shutil.rmtree(Path(plan.meeting_point).parent, ignore_errors=True)  # rank 0 cannot any more
        os._exit(1)  # connections close at once, and the other ranks need not wait for a timeout
    _run_finalizers()  # semaphores of libraries, which would be reported as leaked
    os._exit(0)  # past the end of a process group's threads, which may outlast it


class Worker:
    """One rank: its part of the model, and the executor over it once `serve` was called."""

    def __init__(self, plan: Plan, pipe: Connection) -> None:
        self._plan, self._pipe = plan, pipe
        if plan.device == "cpu":
            torch.set_num_threads(plan.num_threads)
        else:
            torch.cuda.set_device(plan.device)
        self._executor: ModelExecutor | None = None
        self._spec: AttentionSpec | None = None
        self._rows: Rows | None = None

    def run(self) -> None:
        """Load, join the others, and obey."""
        plan = self._plan
        self._decoder = plan.source.decoder(plan.device, Shard(plan.rank, plan.size))
        self._pipe.send(Done())
        self._pipe.recv()
        kind = plan.device.partition(":")[0]
        self._group = Group(plan.rank, plan.size, plan.meeting_point, kind, plan.timeout_s)
        self._decoder.join(self._group)
        while all(self._obey(order) for order in orders(self._group.receive())):
            pass

    def _obey(self, order: Order) -> bool:
        """Whether to go on."""
        if order.op is Op.STOP:
            return False
        if order.op is Op.CALL:
            name, arguments = self._pipe.recv()
            self._pipe.send(Done(getattr(self, name)(**arguments)))
        elif order.op is Op.DENSE:
            assert order.ids is not None
            with torch.inference_mode():
                dense_logits(self._decoder, torch.from_numpy(order.ids.copy()))
        else:
            self._execute(order)
        return True

    def _execute(self, order: Order) -> None:
        executor, ids = self._executor, order.ids
        assert executor is not None, f"{order.op.name} before `serve`"
        if order.op is Op.RESET:
            executor.reset()
        elif order.op is Op.CLEAR_TABLE:
            executor.clear_table(order.numbers[0])
        elif order.op is Op.COPY_BLOCKS:
            executor.copy_blocks(order.copies)
        elif ids is not None and order.op is Op.SET_TABLE:
            row, start = order.numbers
            executor.set_table(row, start, ids.astype(np.int32))
        elif ids is not None and order.op is Op.FRESH:
            executor.fresh(ids.astype(np.int32))
        elif ids is not None:
            self._forward(order, ids)

    def _forward(self, order: Order, tokens: IntArray) -> None:
        step, rows, executor = order.step, self._rows, self._executor
        assert step is not None
        assert rows is not None
        assert executor is not None
        rows.tokens[packed(step)] = tokens
        rows.length[step.rows] = step.computed + step.num_new
        executor.forward(step, rows)

    # Calls

    def serve(
        self,
        *,
        backend: Component,
        spec: AttentionSpec,
        num_blocks: int,
        max_len: int,
        options: EngineOptions,
        poison: bool,
        seed: int,
        kv_scales: str | None = None,
    ) -> None:
        """Make this rank's executor: the backend, a pool and tables of its own. A former one is dropped.

        Args:
            spec: of one rank's heads. num_blocks: as on every rank. max_len: longest sequence, tokens.
        """
        from framework.engine.executors.build import make_executor
        from framework.engine.executors.checks import require_backend
        from framework.registry.components import build_component

        self._executor = self._rows = None
        made = build_component("backend", backend, {"seed": seed})
        require_backend(made, spec, self._plan.device)
        self._executor = make_executor(
            self._decoder,
            made,
            spec,
            num_blocks=num_blocks,
            max_len=max_len,
            options=options,
            device=self._plan.device,
            poison=poison,
            kv_scales=kv_scales,
        )
        self._spec, self._rows = spec, Rows(options.max_batch_requests, max_len)

    def served_pass(self, *, tokens: list[int], num_prompt: int) -> Gaps:
        """What attention over this rank's heads lost: see `framework.engine.served_pass.served_pass`."""
        from framework.engine.served_pass import served_pass

        executor, spec = self._executor, self._spec
        assert executor is not None, "served_pass before `serve`"
        assert spec is not None
        return served_pass(self._decoder, executor.by_layer, spec, executor.pool, tokens, num_prompt)[1]

    def blocks_for(self, *, fraction: float, **sizes: Any) -> int:
        """See `framework.engine.pool.num_blocks_for`, of this rank's device."""
        from framework.engine.pool import num_blocks_for

        return num_blocks_for(fraction, self._plan.device, **sizes)


def _end_with_rank_0(folder: Path) -> int:
    """However rank 0 ends, SIGKILL included, this process does not outlive it. What is ready then is returned."""
    parent = parent_process()
    if parent is None:
        raise FrameworkError("a rank is started by rank 0, as a process of its own")
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="rank 0's end", daemon=True).start()
    return sentinel
