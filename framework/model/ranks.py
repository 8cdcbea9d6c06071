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
from multiprocessing.util import _run_finalizers  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

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

dist: Any = torch.distributed  # its types leave out what is made in C++

TIMEOUT_S = 300.0
"""Seconds a rank may keep the others waiting, once it has loaded: the first step may compile kernels."""

_GRACE_S = 3.0
"""Seconds to wait for a rank's reason, after a collective with it failed."""


class Group:
    """The collectives of all ranks: NCCL on CUDA devices, gloo on this machine's loopback elsewhere.

    The process group is made directly, not as torch's default one: a process may belong to several, and to one of its
    own besides (vLLM's stateless groups do likewise). Every rank must make the same calls in the same order.

    Args:
        path: of a file that all ranks, and nobody else, can write: where they find each other. Not needed afterwards.
        timeout_s: seconds after which a call that some rank does not join fails.
        explain: turns what a failed call raised into the error to raise.

    Raises:
        RankError: not all ranks came within the timeout.
    """

    def __init__(
        self,
        shard: Shard,
        path: str,
        device: str,
        timeout_s: float,
        explain: Callable[[Exception], RankError] = lambda error: RankError(f"a collective failed: {one_line(error)}"),
    ) -> None:
        self.rank, self._explain = shard.rank, explain
        timeout, on_cpu = timedelta(seconds=timeout_s), device == "cpu"
        with self._explained():
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

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's `x`, in place and returned: the same bits on every rank."""
        with self._explained():
            self._processes.allreduce([x]).wait()
        return x

    def gather(self, x: Tensor, widths: list[int]) -> Tensor:
        """x (R, widths[rank]) of every rank side by side on rank 0; its own on the others."""
        sent = F.pad(x, (0, max(widths) - x.shape[1])).contiguous()
        options = dist.GatherOptions()
        options.rootRank = 0
        parts = [torch.empty_like(sent) for _ in widths] if self.rank == 0 else []
        with self._explained():
            self._processes.gather([parts] if parts else [], [sent], options).wait()
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1) if parts else x

    def abort(self) -> None:
        """Make the collectives that run on a device fail: nothing else wakes one that waits for a dead rank."""
        self._processes.abort()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise self._explain(error) from error


def one_line(error: BaseException) -> str:
    """The error's text on one line."""
    return " ".join(str(error).split())


@dataclass(slots=True)
class Worker:
    """One rank other than 0, which makes the calls that rank 0 sends: functions whose first argument it is.

    Attributes:
        decoder: its part of the model, once loaded.
        serving: what serves that part; the functions of `framework.parallel.serving` set and use it.
    """

    shard: Shard
    device: str
    decoder: Any = None
    serving: Any = None


def load(worker: Worker, decoder: Callable[[str, Shard], Decoder]) -> None:
    """Load the rank's part of the model."""
    worker.decoder = decoder(worker.device, worker.shard)


def join(worker: Worker, path: str, timeout_s: float) -> None:
    """Meet the other ranks at `path`, and compute with them from here on."""
    worker.decoder.join(Group(worker.shard, path, worker.device, timeout_s))


def dense(worker: Worker, tokens: list[int]) -> None:
    """Take part in the dense pass that rank 0 makes."""
    dense_logits(worker.decoder, tokens)


Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, which other processes can import, and its arguments after the worker."""


@dataclass(frozen=True, slots=True)
class Done:
    """What the last call of a message returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """How a rank ended.

    Attributes:
        consequence: a collective failed, because some other rank did.
    """

    text: str
    consequence: bool = False


def work(shard: Shard, device: str, num_threads: int, pipe: Connection) -> None:
    """The whole life of one rank, in a process of its own: messages (calls, whether an answer is wanted), then None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; rank 0 decides what it means
    threading.Thread(target=_end_with_rank_0, name="rank 0's end", daemon=True).start()
    try:
        if device == "cpu":
            torch.set_num_threads(num_threads)
        else:
            torch.cuda.set_device(device)
        worker = Worker(shard, device)
        while (message := pipe.recv()) is not None:
            calls, answered = message
            for function, arguments in calls:
                value = function(worker, *arguments)
            if answered:
                pipe.send(Done(value))
    except BaseException as error:
        with suppress(OSError):
            pipe.send(Failed(f"failed: {_said(error)}", isinstance(error, RankError)))
        os._exit(1)  # connections close at once, and the other ranks need not wait for a timeout
    _run_finalizers()  # semaphores of libraries, which would be reported as leaked
    os._exit(0)  # past the end of a process group's threads, which may outlast it


def _said(error: BaseException) -> str:
    return plugin_note(named(error)) or f"{type(error).__name__}: {one_line(error)}"


def _end_with_rank_0() -> None:
    """However rank 0 ends, SIGKILL included, this process does not outlive it."""
    rank_0 = parent_process()
    assert rank_0 is not None
    rank_0.join()
    os._exit(1)


@dataclass(slots=True)
class _Member:
    """One other rank, and what it last said."""

    rank: int
    process: Any
    pipe: Connection
    answer: Done | Failed | None = None

    def listen(self) -> None:
        """Wait for what it says, or for its end."""
        try:
            self.answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(_GRACE_S)
            self.answer = Failed(self._end())

    def _end(self) -> str:
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
        leader: the executor that uses them: they hold one pool at a time.
        broken: a rank failed or was left in the middle of a step: nothing can be computed any more.
    """

    decoder: Decoder

    def __init__(self, size: int, device: str) -> None:
        self.size, self.device = size, device
        self.leader: object = None
        self.broken = False
        self._error: RankError | None = None
        self._members: list[_Member] = []
        self._num_threads = torch.get_num_threads()
        """Threads of torch before; on a CPU the ranks share them."""

    @classmethod
    def start(cls, decoder: Callable[[str, Shard], Decoder], config: ModelConfig, size: int, device: str) -> Ranks:
        """Load a model over `size` ranks, all at the same time, and connect them.

        Args:
            decoder: loads the part of one rank on a device; is called in the process of each.
            config: of the whole model.
            device: "cpu", or "cuda" for as many devices as ranks.

        Raises:
            InvalidArgument: the model does not divide so.
            ConfigError: too few devices, or one device for all. Nothing was started.
            RankError: another rank failed.
        """
        Shard(0, size).require(config)
        require_devices(device, size)
        device = "cpu" if torch.device(device).type == "cpu" else device  # "cpu:0" is no other
        ranks, own_device = cls(size, device), rank_device(device, 0)
        try:
            ranks._spawn()
            ranks.post(load, decoder)
            ranks.decoder = decoder(own_device, Shard(0, size))
            ranks.answers(timeout_s=None)
            with tempfile.TemporaryDirectory(prefix="kvlab-ranks-") as folder:
                path = str(Path(folder) / "store")
                ranks.post(join, path, TIMEOUT_S)
                group = Group(Shard(0, size), path, own_device, TIMEOUT_S, ranks.failure)
                ranks.answers()
            ranks.decoder.join(group)
            ranks.decoder.during_dense = ranks.dense
            if device != "cpu":
                ranks._watch(group)
        except BaseException:
            ranks._end(kill=True)
            raise
        return ranks

    @property
    def pids(self) -> list[int]:
        """Process ids of ranks 1 and up."""
        return [member.process.pid for member in self._members]

    def _spawn(self) -> None:
        num_threads = max(1, self._num_threads // self.size)
        if self.device == "cpu":
            torch.set_num_threads(num_threads)
        context = torch.multiprocessing.get_context("spawn")
        for rank in range(1, self.size):
            ours, theirs = context.Pipe()
            given = (Shard(rank, self.size), rank_device(self.device, rank), num_threads, theirs)
            process = context.Process(target=work, args=given, name=f"rank {rank}", daemon=True)
            try:
                process.start()
            except AssertionError as error:  # multiprocessing's own, in a daemonic process
                raise ConfigError(
                    f"tensor_parallel_size={self.size} starts processes, which this one may not: {error}"
                ) from error
            theirs.close()
            self._members.append(_Member(rank, process, ours))

    # What rank 0 asks

    def post(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have every other rank call `function(worker, *arguments)` and answer, while this one goes on.

        Raises:
            ConfigError: an argument that cannot be sent to another process. Nobody was asked.
            RankError: a rank failed.
        """
        self._send([(function, arguments)], answered=True)

    def tell(self, calls: Sequence[Call]) -> None:
        """Have every other rank make these calls, in order, without an answer. Raises as `post`."""
        self._send(calls, answered=False)

    def answers(self, *, timeout_s: float | None = TIMEOUT_S) -> list[Any]:
        """What every other rank's call returned, by rank.

        Raises:
            RankError: a rank failed, or did not answer in time.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._listen(deadline):
            if any(isinstance(member.answer, Failed) for member in self._members):
                raise self.failure(RuntimeError("a rank ended"))
        values = [member.answer.value for member in self._members if isinstance(member.answer, Done)]
        if len(values) < len(self._members):
            raise self.failure(TimeoutError())
        for member in self._members:
            member.answer = None
        return values

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
        if self.broken:
            raise RankError(f"the {self.size} ranks of this model were ended; load it again")
        if not all(member.process.is_alive() for member in self._members):
            raise self.failure(RuntimeError("a rank ended"))

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Whatever leaves a step early leaves the others waiting in the middle of it: they are of no use any more."""
        try:
            yield
        except BaseException as error:
            if self._error is None:
                why = f"the {self.size} ranks of this model were ended by {_said(error)}; load it again"
                self._error = RankError(why)
            self._end(kill=True)
            raise

    def _send(self, calls: Sequence[Call], *, answered: bool) -> None:
        self.require_alive()
        try:
            message = pickle.dumps((calls, answered), protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"cannot be sent to the other ranks' processes: {error}; give a component by name, or as a class that "
                "can be imported"
            ) from error
        try:
            for member in self._members:
                member.pipe.send_bytes(message)
        except OSError as error:
            raise self.failure(error) from error

    # How they fail and end

    def _listen(self, deadline: float | None) -> bool:
        """Hear one rank more; False when all have said something, or at the deadline."""
        silent = {member.pipe: member for member in self._members if member.answer is None}
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        heard = wait(list(silent), timeout=left) if silent else []
        for pipe in heard:
            assert isinstance(pipe, Connection)
            silent[pipe].listen()
        return bool(heard)

    def failure(self, cause: Exception) -> RankError:
        """Which rank made a collective fail, and how. Ends all."""
        if self._error is None:
            self._error = RankError(self._story(cause))
            self._end(kill=True)
        return self._error

    def _story(self, cause: Exception) -> str:
        deadline = time.monotonic() + _GRACE_S
        while not (guilty := self._guilty()) and self._listen(deadline):
            pass
        if guilty:
            return f"rank {guilty[0].rank} of {self.size} {guilty[0].answer.text}"  # type: ignore[union-attr]
        silent = [str(member.rank) for member in self._members if not isinstance(member.answer, Failed)]
        if silent:
            return f"no answer from rank {', '.join(silent)} of {self.size} within {TIMEOUT_S:g} s"
        return f"the {self.size} ranks lost each other: {one_line(cause)}"

    def _guilty(self) -> list[_Member]:
        """Those that failed, but for those that failed because they were left alone."""
        return [one for one in self._members if isinstance(one.answer, Failed) and not one.answer.consequence]

    def _watch(self, group: Group) -> None:
        """A rank that dies must not leave this one waiting for its device: see Group.abort."""
        sentinels = [member.process.sentinel for member in self._members]

        def watch() -> None:
            wait(sentinels)
            with suppress(RuntimeError):
                group.abort()

        threading.Thread(target=watch, name="ranks", daemon=True).start()

    def close(self) -> None:
        """End the other ranks, which are between steps. Idempotent."""
        if not self.broken:
            for member in self._members:
                with suppress(OSError):
                    member.pipe.send(None)
            self._end(kill=False)

    def _end(self, *, kill: bool) -> None:
        """End the other ranks, with `kill` at once, whatever they are doing. Idempotent."""
        if self.broken:
            return
        self.broken = True
        for member in self._members:
            if not kill:
                member.process.join(_GRACE_S)
            member.process.kill()
            member.process.join()
            member.pipe.close()
        torch.set_num_threads(self._num_threads)


def rank_device(device: str, rank: int) -> str:
    """The device of one rank: the CPU for all, or a CUDA device each."""
    return device if device == "cpu" else f"{device}:{rank}"


def require_devices(device: str, size: int) -> None:
    """Raise unless `device` is "cpu", or "cuda" with a device for each rank.

    Raises:
        ConfigError: says how many there are, or that this torch cannot connect processes.
    """
    kind = torch.device(device).type
    if kind != "cpu" and device != "cuda":
        raise ConfigError(f"tensor_parallel_size={size} takes device cpu, or cuda for a device a rank; found {device}")
    if kind == "cuda" and (found := torch.cuda.device_count()) < size:
        raise ConfigError(
            f"tensor_parallel_size={size} needs as many CUDA devices, found {found}; lower it, or show more "
            "with CUDA_VISIBLE_DEVICES"
        )
    backend = "gloo" if kind == "cpu" else "nccl"
    if not dist.is_available() or not dist.is_backend_available(backend):
        raise ConfigError(f"tensor_parallel_size={size} needs {backend}; torch {torch.__version__} was built without")
