"""A model over several processes: rank 0's view of the others, the process of one of them, their collectives."""

# Shapes: R rows  V vocabulary

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from framework.errors import ConfigError, RankError, plugin_note
from framework.model.config import ModelConfig
from framework.model.decoder import Decoder
from framework.model.dense import dense_logits
from framework.model.shard import Shard
from framework.registry.culprit import named

T = TypeVar("T")

dist: Any = torch.distributed  # its types leave out what is made in C++

TIMEOUT_S = 300.0
"""Seconds a rank may keep the others waiting in a collective: the first step may compile kernels."""

_GRACE_S = 3.0
"""Seconds to wait for the end of the rank that made a collective fail."""


@contextmanager
def _collective() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankError(f"a collective failed: {' '.join(str(error).split())}") from error


class Group:
    """The collectives of all ranks: NCCL on CUDA devices, gloo on this machine's loopback elsewhere.

    The process group is made directly, not as torch's default one: a process may belong to several, and to one of its
    own besides (vLLM's stateless groups do likewise). Every rank must make the same calls in the same order.

    Args:
        path: of a file that all ranks, and nobody else, can write: where they find each other. Not needed afterwards.

    Raises:
        RankError: a rank did not join a call within TIMEOUT_S, here and of `sum` and `gather`.
    """

    @_collective()
    def __init__(self, shard: Shard, path: str, device: str) -> None:
        self.rank, on_cpu, timeout = shard.rank, device == "cpu", timedelta(seconds=TIMEOUT_S)
        store = dist.FileStore(path, shard.size)
        store.set_timeout(timeout)
        options = dist.ProcessGroupGloo._Options() if on_cpu else dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        if on_cpu:
            options._threads = 1
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        make = dist.ProcessGroupGloo if on_cpu else dist.ProcessGroupNCCL
        self._processes = make(store, shard.rank, shard.size, options)
        self.sum(torch.zeros(1, device=device))  # NCCL reads the file at its first call

    @_collective()
    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's `x`, in place and returned: the same bits on every rank."""
        self._processes.allreduce([x]).wait()
        return x

    @_collective()
    def gather(self, x: Tensor, widths: list[int]) -> Tensor:
        """x (R, widths[rank]) of every rank side by side on rank 0; its own on the others."""
        sent = F.pad(x, (0, max(widths) - x.shape[1])).contiguous()
        options = dist.GatherOptions()
        options.rootRank = 0
        parts = [torch.empty_like(sent) for _ in widths] if self.rank == 0 else []
        self._processes.gather([parts] if parts else [], [sent], options).wait()
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1) if parts else x

    def abort(self) -> None:
        """Make the collectives that run on a device fail: nothing else wakes one that waits for a dead rank."""
        self._processes.abort()


@dataclass(slots=True)
class Worker:
    """One rank other than 0, which makes the calls that rank 0 sends: functions whose first argument it is.

    Attributes:
        decoder: its part of the model, once loaded.
        serving: what serves that part; the functions of `framework.engine.executors.leader` set and use it.
    """

    shard: Shard
    device: str
    decoder: Any = None
    serving: Any = None


def load(worker: Worker, decoder: Callable[[str, Shard], Decoder]) -> None:
    """Load the rank's part of the model."""
    worker.decoder = decoder(worker.device, worker.shard)


def join(worker: Worker, path: str) -> None:
    """Meet the other ranks at `path`, and compute with them from here on."""
    worker.decoder.join(Group(worker.shard, path, worker.device))


def dense(worker: Worker, tokens: list[int]) -> None:
    """Take part in the dense pass that rank 0 makes."""
    dense_logits(worker.decoder, tokens)


Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, which other processes can import, and its arguments after the worker."""


def work(shard: Shard, device: str, num_threads: int, pipe: Connection) -> None:
    """The whole life of one rank, in a process of its own: messages of calls, and whether an answer is wanted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; rank 0 decides what it means
    threading.Thread(target=_end_with_rank_0, name="rank 0's end", daemon=True).start()
    try:
        if device == "cpu":
            torch.set_num_threads(num_threads)
        else:
            torch.cuda.set_device(device)
        worker = Worker(shard, device)
        while True:
            calls, answered = pipe.recv()
            for function, arguments in calls:
                value = function(worker, *arguments)
            if answered:
                pipe.send(value)
    except RankError:  # another rank failed, and says why
        pass
    except BaseException as error:
        with suppress(OSError):
            pipe.send(RankError(f"rank {shard.rank} of {shard.size} failed: {_said(error)}"))
    os._exit(0)  # connections close at once, and the other ranks need not wait for a timeout


def _said(error: BaseException) -> str:
    return plugin_note(named(error)) or f"{type(error).__name__}: {' '.join(str(error).split())}"


def _end_with_rank_0() -> None:
    """However rank 0 ends, SIGKILL included, this process does not outlive it."""
    rank_0 = parent_process()
    assert rank_0 is not None
    rank_0.join()
    os._exit(1)


class Ranks:
    """Ranks 1 and up of one model, each a process with its part of the weights, loaded at the same time and connected.

    Args:
        decoder: loads the part of one rank on a device; is called in the process of each.
        config: of the whole model.
        device: "cpu", or "cuda" for as many devices as ranks.

    Attributes:
        size: ranks, this process included.
        decoder: rank 0's part.
        leader: the executor that uses them: they hold one pool at a time.

    Raises:
        InvalidArgument: the model does not divide so.
        ConfigError: too few devices. Nothing was started.
        RankError: another rank failed.
    """

    def __init__(self, decoder: Callable[[str, Shard], Decoder], config: ModelConfig, size: int, device: str) -> None:
        Shard(0, size).require(config)
        devices = rank_devices(device, size)
        self.size, self._num_threads = size, torch.get_num_threads()
        self.leader: object = None
        self._members: list[tuple[Any, Connection]] = []
        self._error: RankError | None = None
        with tempfile.TemporaryDirectory(prefix="kvlab-ranks-") as folder, self.in_step():
            self._spawn(devices)
            path = str(Path(folder) / "store")
            self.decoder, _ = self.run(lambda: decoder(devices[0], Shard(0, size)), load, decoder)
            group, _ = self.run(lambda: Group(Shard(0, size), path, devices[0]), join, path)
        self.decoder.join(group)
        self.decoder.during_dense = self.dense
        if devices[0] != "cpu":
            threading.Thread(target=self._watch, args=(group,), name="ranks", daemon=True).start()

    @property
    def pids(self) -> list[int]:
        """Process ids of ranks 1 and up."""
        return [process.pid for process, _ in self._members]

    @property
    def broken(self) -> bool:
        """They were ended: nothing can be computed any more."""
        return self._error is not None

    def _spawn(self, devices: list[str]) -> None:
        num_threads = max(1, self._num_threads // self.size)
        if devices[0] == "cpu":
            torch.set_num_threads(num_threads)
        context = torch.multiprocessing.get_context("spawn")
        for rank in range(1, self.size):
            ours, theirs = context.Pipe()
            given = (Shard(rank, self.size), devices[rank], num_threads, theirs)
            process = context.Process(target=work, args=given, name=f"rank {rank}", daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def run(
        self, own: Callable[[], T], function: Callable[..., Any], *arguments: Any, before: Sequence[Call] = ()
    ) -> tuple[T, list[Any]]:
        """What `own()` returns here, and `function(worker, *arguments)` meanwhile on each of the others, by rank.

        Args:
            before: calls that the others make first.

        Raises:
            ConfigError: an argument that cannot be sent to another process. Nobody was asked.
            RankError: a rank failed.
        """
        self.tell([*before, (function, arguments)], answered=True)
        with self.in_step():
            return own(), [_answer(pipe.recv()) for _, pipe in self._members]

    def tell(self, calls: Sequence[Call], *, answered: bool = False) -> None:
        """Have every other rank make these calls, in order; the last one returns the answer. Raises as `run`."""
        self.require_alive()
        try:
            message = pickle.dumps((calls, answered), protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"cannot be sent to the other ranks' processes: {error}; give a component by name, or as a class that "
                "can be imported"
            ) from error
        with self.in_step():
            for _, pipe in self._members:
                pipe.send_bytes(message)

    @contextmanager
    def dense(self, tokens: Tensor) -> Iterator[None]:
        """Have the others take part in the dense pass over these tokens (T,) that is made within."""
        with self.in_step():
            self.tell([(dense, (tokens.tolist(),))])
            yield

    def require_alive(self) -> None:
        """Raise if a rank failed or was ended.

        Raises:
            RankError: with the first failure's text.
        """
        if self._error is not None:
            raise self._error
        if not all(process.is_alive() for process, _ in self._members):
            with self.in_step():
                raise RankError("a rank ended")

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Whatever leaves it early leaves the others in the middle of something: it ends them all.

        Raises:
            RankError: how another rank failed, where that made this one fail.
        """
        try:
            yield
        except BaseException as error:
            if self._error is not None:
                raise
            lost = isinstance(error, (RankError, EOFError, OSError))
            if lost and (failure := self._first_failure()):
                self._end(failure)
                raise failure from error
            self._end(RankError(f"the {self.size} ranks of this model were ended by {_said(error)}; load it again"))
            raise

    def _first_failure(self) -> RankError | None:
        """How a rank failed by itself, waiting for its end a moment; those that ended for want of it do not say."""
        running = {process.sentinel: rank for rank, (process, _) in enumerate(self._members, 1)}
        deadline = time.monotonic() + _GRACE_S
        while running and (ended := wait(list(running), timeout=max(0.0, deadline - time.monotonic()))):
            for rank in (running.pop(one) for one in ended):
                process, pipe = self._members[rank - 1]
                with suppress(EOFError, OSError):
                    while True:
                        if isinstance(message := pipe.recv(), RankError):
                            return message
                process.join()
                if process.exitcode:
                    return RankError(f"rank {rank} of {self.size} {_end_of(process.exitcode)}")
        return None

    def close(self) -> None:
        """End the other ranks. Idempotent."""
        self._end(RankError(f"the {self.size} ranks of this model were ended; load it again"))

    def _end(self, error: RankError) -> None:
        if self._error is not None:
            return
        self._error = error
        for process, pipe in self._members:
            process.kill()
            process.join()
            pipe.close()
        torch.set_num_threads(self._num_threads)

    def _watch(self, group: Group) -> None:
        """A rank that dies must not leave this one waiting for its device: see Group.abort."""
        wait([process.sentinel for process, _ in self._members])
        with suppress(RuntimeError):
            group.abort()


def _answer(answer: Any) -> Any:
    if isinstance(answer, RankError):
        raise answer
    return answer


def _end_of(status: int) -> str:
    if status < 0:
        name = signal.Signals(-status).name
        return f"was killed by {name}" + (", as a host out of memory does" if name == "SIGKILL" else "")
    return (
        f"ended with status {status} without a word; what it wrote to stderr says why. A script that loads a model "
        "over several ranks must do so below `if __name__ == '__main__':`"
    )


def rank_devices(device: str, size: int) -> list[str]:
    """The device of each rank: the CPU for all, or a CUDA device each.

    Raises:
        ConfigError: too few devices.
    """
    if torch.device(device).type == "cpu":
        return ["cpu"] * size
    if (available := torch.cuda.device_count() if device == "cuda" else 1) < size:
        raise ConfigError(
            f"tensor_parallel_size={size} needs as many CUDA devices, found {available}; lower it, take device=cuda, "
            "or show more with CUDA_VISIBLE_DEVICES"
        )
    return [f"{device}:{rank}" for rank in range(size)]
