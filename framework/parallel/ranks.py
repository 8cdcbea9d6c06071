"""A model over several processes: rank 0's view of the others, and the process of one of them."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import _run_finalizers  # type: ignore[attr-defined]
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from framework.engine.rows import IntArray, Rows
from framework.errors import ConfigError, FrameworkError, RankError
from framework.model.dense import dense_logits
from framework.model.loading import ModelSource
from framework.model.shard import Shard
from framework.parallel.messages import Group, Op, Order, Outbox, orders, packed

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


_LONG_S = 3600.0
"""Seconds waited at once: the system takes no more than 24 days."""

_GRACE_S = 3.0
"""Seconds to wait for a rank's reason, after a collective with it failed."""


class _Member:
    """One other rank: its process, its pipe, and what it last said."""

    def __init__(self, rank: int, process: Any, pipe: Connection) -> None:
        self.rank, self.process, self.pipe = rank, process, pipe
        self.answer: Done | None = None
        self.failure: Failed | None = None
        self.ended = False

    def listen(self) -> None:
        """Read what has come, without waiting."""
        try:
            while not self.ended and self.failure is None and self.pipe.poll():
                said = self.pipe.recv()
                if isinstance(said, Failed):
                    self.failure = said
                else:
                    self.answer = said
        except (EOFError, OSError):
            self.ended = True

    def story(self) -> str:
        """How it failed."""
        if self.failure is not None:
            return f"failed: {self.failure.text}"
        self.process.join(_GRACE_S)
        status = self.process.exitcode
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            return f"was killed by {name}" + (", as a host out of memory does" if name == "SIGKILL" else "")
        return (
            f"ended with status {status} without a word; what it wrote to stderr says why. A script that loads a model "
            "over several ranks must do so below `if __name__ == '__main__':`"
        )


class Ranks:
    """Ranks 1 and up of one model, each a process with its part of the weights. See `start`.

    Attributes:
        size: ranks, this process included.
        decoder: rank 0's part.
        group: the collectives of all ranks.
        broken: a rank failed or was left in the middle of a step: nothing can be computed any more.
    """

    decoder: Any
    group: Group

    def __init__(self, size: int, device: str, timeout_s: float) -> None:
        self.size, self.device, self.timeout_s = size, device, timeout_s
        self.broken = False
        self._error: RankError | None = None
        self._members: list[_Member] = []
        self._turn = 0
        self._folder = tempfile.mkdtemp(prefix="kvlab-ranks-")
        threads = torch.get_num_threads()
        self._num_threads = max(1, threads // size) if device == "cpu" else threads
        if self._num_threads != threads:
            torch.set_num_threads(self._num_threads)
        self._end = weakref.finalize(self, _end, self._members, self._folder, threads)

    @classmethod
    def start(cls, source: ModelSource, size: int, device: str, timeout_s: float) -> Ranks:
        """Load `source` over `size` ranks, all at the same time, and connect them.

        Args:
            device: "cpu", or "cuda" for as many devices as ranks.
            timeout_s: seconds a rank may keep the others waiting, once it has loaded.

        Raises:
            InvalidArgument: the model does not divide so.
            ConfigError: too few devices, or one device for all. Nothing was started.
            RankError: another rank failed.
        """
        Shard(0, size).require(source.config)
        require_devices(device, size)
        device = "cpu" if torch.device(device).type == "cpu" else device  # "cpu:0" is no other
        ranks = cls(size, device, timeout_s)
        try:
            ranks._spawn(source)
            ranks.decoder = source.decoder(rank_device(device, 0), Shard(0, size))
            ranks._hear(None)
            for member in ranks._members:
                member.pipe.send("join")
            ranks.group = Group(0, size, ranks._meeting_point, device, timeout_s, ranks.failure)
            ranks.decoder.join(ranks.group)
            ranks.decoder.during_dense = ranks.dense
            if device != "cpu":
                ranks._watch()
        except BaseException:
            ranks.give_up()
            raise
        return ranks

    @property
    def pids(self) -> list[int]:
        """Process ids of ranks 1 and up."""
        return [member.process.pid for member in self._members]

    @property
    def _meeting_point(self) -> str:
        return str(Path(self._folder) / "store")

    def _spawn(self, source: ModelSource) -> None:
        context = torch.multiprocessing.get_context("spawn")
        for rank in range(1, self.size):
            ours, theirs = context.Pipe()
            plan = Plan(
                source=source,
                rank=rank,
                size=self.size,
                device=rank_device(self.device, rank),
                meeting_point=self._meeting_point,
                timeout_s=self.timeout_s,
                num_threads=self._num_threads,
            )
            process = context.Process(target=work, args=(plan, theirs), name=f"rank {rank}", daemon=True)
            try:
                with _interrupts_kept_away():
                    process.start()
            except AssertionError as error:  # multiprocessing's own, in a daemonic process
                raise ConfigError(
                    f"tensor_parallel_size={self.size} starts processes, which this one may not: {error}"
                ) from error
            theirs.close()
            self._members.append(_Member(rank, process, ours))

    # What rank 0 asks

    def call(self, name: str, **arguments: Any) -> list[Any]:
        """`post`, then `answers`."""
        self.post(name, **arguments)
        return self.answers()

    def post(self, name: str, **arguments: Any) -> None:
        """Ask every other rank to call a method of its Worker, while this one goes on.

        Raises:
            ConfigError: an argument that cannot be sent to another process. Nobody was asked.
            RankError: a rank failed.
        """
        self.require_alive()
        try:
            payload = bytes(ForkingPickler.dumps((name, arguments)))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"cannot be sent to the other ranks' processes: {error}; give a component by name, or as a class that "
                "can be imported"
            ) from error
        box = Outbox()
        box.call()
        self.group.send(box.take())
        for member in self._members:
            member.answer = None
            with suppress(OSError):  # heard of in `answers`
                member.pipe.send_bytes(payload)

    def answers(self) -> list[Any]:
        """What every other rank's call returned, by rank.

        Raises:
            RankError: a rank failed, or did not answer in time.
        """
        return self._hear(self.timeout_s)

    @contextmanager
    def dense(self, tokens: Tensor) -> Iterator[None]:
        """Have the others take part in the dense pass over these tokens (T,) that is made within."""
        self.require_alive()
        box = Outbox()
        box.dense(tokens.cpu().numpy())
        with self.in_step():
            self.group.send(box.take())
            yield

    # Who may use them

    def take_turn(self) -> int:
        """A number for the executor that uses the ranks from now on: they hold one pool at a time."""
        self._turn += 1
        return self._turn

    def require_turn(self, turn: int) -> None:
        """Raise unless the ranks are well and still that executor's.

        Raises:
            RankError: a rank failed, or another executor has taken over.
        """
        self.require_alive()
        if turn != self._turn:
            raise RankError("another LLM was made over the same ranks, and their KV pool is now its own; load twice")

    def require_alive(self) -> None:
        """Raise if a rank failed or was ended.

        Raises:
            RankError: with the first failure's text.
        """
        if self._error is not None:
            raise self._error
        if self.broken or not self._end.alive:
            raise RankError(f"the {self.size} ranks of this model were ended; load it again")

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Whatever leaves a step early leaves the others waiting in the middle of it: they are of no use any more."""
        try:
            yield
        except BaseException:
            self.give_up()
            raise

    # How they fail and end

    def failure(self, cause: Exception) -> RankError:
        """Which rank made a collective fail, and how. Ends all."""
        if self._error is None:
            self._error = RankError(self._story(cause))
            self.give_up()
        return self._error

    def _story(self, cause: Exception) -> str:
        deadline = time.monotonic() + _GRACE_S
        while True:
            for member in self._members:
                member.listen()
            # Who was left alone fails too: that is a consequence, whoever says it.
            guilty = [m for m in self._members if m.failure is not None and not m.failure.consequence]
            guilty = guilty or [m for m in self._members if m.ended and m.failure is None]
            left = deadline - time.monotonic()
            if guilty or left <= 0:
                break
            wait([m.pipe for m in self._members if not m.ended and m.failure is None] or [], timeout=min(left, 0.2))
        if guilty:
            return f"rank {guilty[0].rank} of {self.size} {guilty[0].story()}"
        silent = [str(m.rank) for m in self._members if m.failure is None]
        if silent:
            return (
                f"no answer from rank {', '.join(silent)} of {self.size} within {self.timeout_s:g} s; raise "
                "engine.collective_timeout_s if it is only slow"
            )
        return f"the {self.size} ranks lost each other: {' '.join(str(cause).split())}"

    def _hear(self, timeout_s: float | None) -> list[Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            for member in self._members:
                member.listen()
            if any(member.failure is not None or member.ended for member in self._members):
                raise self.failure(RuntimeError("a rank ended"))
            silent = [member for member in self._members if member.answer is None]
            if not silent:
                break
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise self.failure(TimeoutError())
            wait([member.pipe for member in self._members], timeout=None if left is None else min(left, _LONG_S))
        values = [member.answer.value for member in self._members if member.answer is not None]
        for member in self._members:
            member.answer = None
        return values

    def _watch(self) -> None:
        """A rank that dies must not leave this one waiting for its device: see Group.abort."""
        group, sentinels = self.group, [member.process.sentinel for member in self._members]

        def watch() -> None:
            wait(sentinels)
            with suppress(RuntimeError):
                group.abort()

        threading.Thread(target=watch, name="ranks", daemon=True).start()

    def give_up(self) -> None:
        """End the other ranks at once, whatever they are doing. Idempotent."""
        self.broken = True
        self._end()

    def close(self) -> None:
        """End the other ranks, which are between steps. Idempotent."""
        if self._end.alive and not self.broken:
            box = Outbox()
            box.stop()
            with suppress(FrameworkError):
                self.group.send(box.take())
                for member in self._members:
                    member.process.join(_GRACE_S)
        self._end()


@contextmanager
def _interrupts_kept_away() -> Iterator[None]:
    """A process begun here is born deaf to Ctrl-C, which it would answer with a traceback until `work` ignores it."""
    resource_tracker.ensure_running()  # starting it lets interrupts in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def rank_device(device: str, rank: int) -> str:
    """The device of one rank: the CPU for all, or a CUDA device each."""
    return device if device == "cpu" else f"{device}:{rank}"


def require_devices(device: str, size: int) -> None:
    """Raise unless `device` is "cpu", or "cuda" with a device for each rank.

    Raises:
        ConfigError: says how many there are, or that this torch cannot connect processes.
    """
    distributed: Any = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        raise ConfigError(f"tensor_parallel_size={size} needs gloo; torch {torch.__version__} was built without")
    kind = torch.device(device).type
    if kind == "cpu":
        return
    if kind != "cuda" or ":" in device:
        raise ConfigError(f"tensor_parallel_size={size} takes device cpu, or cuda for a device a rank; found {device}")
    found = torch.cuda.device_count()
    if found < size:
        raise ConfigError(
            f"tensor_parallel_size={size} needs as many CUDA devices, found {found}; lower it, or show more "
            "with CUDA_VISIBLE_DEVICES"
        )
    if not distributed.is_nccl_available():
        raise ConfigError(f"tensor_parallel_size={size} needs NCCL; torch {torch.__version__} was built without")


def _end(members: list[_Member], folder: str, num_threads: int) -> None:
    for member in members:
        if member.process.is_alive():
            member.process.kill()
    for member in members:
        member.process.join()
        member.pipe.close()
    shutil.rmtree(folder, ignore_errors=True)
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)
