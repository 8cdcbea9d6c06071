"""CUDA streams that are not there: work on the host's tensors is queued by stream, and runs as late as it may.

Inside `pretended_cuda`, `torch.cuda`'s streams and events are queues of this module, and every operator that writes a
tensor waits in the queue of the current stream. An eager stream runs its work as soon as what it waits for has run; a
lazy one only when somebody waits for it. A missing wait therefore shows in the bytes, whichever side is the faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes


class Event:
    """A place in a stream's queue."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.done = stream, False

    def synchronize(self) -> None:
        self.stream.cuda.log.append(f"host waits for {self.stream.name}")
        self.stream.run_until(self)


class Stream:
    """A queue of work, events and waits for events of other streams."""

    def __init__(self, cuda: Cuda, name: str, *, lazy: bool) -> None:
        self.cuda, self.name, self.lazy = cuda, name, lazy
        self.queue: deque[Event | tuple[Event] | Callable[[], object]] = deque()

    def record_event(self) -> Event:
        event = Event(self)
        self.add(event)
        return event

    def wait_event(self, event: Event) -> None:
        self.cuda.log.append(f"{self.name} waits for {event.stream.name}")
        self.add((event,))

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def add(self, entry: Any) -> None:
        self.queue.append(entry)
        self.progress()

    def progress(self) -> None:
        """What an eager stream can run now."""
        while not self.lazy and self.queue and not (isinstance(self.queue[0], tuple) and not self.queue[0][0].done):
            self._run_next()

    def run_until(self, event: Event) -> None:
        while not event.done:
            self._run_next()

    def _run_next(self) -> None:
        entry = self.queue[0]
        if isinstance(entry, tuple):
            entry[0].stream.run_until(entry[0])
            if self.queue and self.queue[0] is entry:  # else it went on as the event was reached
                self.queue.popleft()
            return
        self.queue.popleft()
        if isinstance(entry, Event):
            entry.done = True
            self.cuda.progress()
        else:
            with _disable_current_modes():
                entry()


class Cuda(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A device whose memory is the host's.

    Attributes:
        log: copies and waits in the order of asking.
        pins: whether the runtime pins what it is asked to pin.
    """

    def __init__(self, late: Collection[str]) -> None:
        super().__init__()
        self.late, self.log, self.pins = late, list[str](), True
        self.engine = Stream(self, "engine", lazy="engine" in late)
        self.streams, self.current = [self.engine], self.engine
        self.pinned: list[tuple[int, int]] = []
        self.device_memory: list[tuple[int, int]] = []

    def progress(self) -> None:
        for stream in self.streams:
            stream.progress()

    def make_stream(self, device: Any = None) -> Stream:
        name = f"stream {len(self.streams)}"
        self.streams.append(Stream(self, name, lazy=name in self.late))
        return self.streams[-1]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def synchronize(self, device: Any = None) -> None:
        for stream in self.streams:
            stream.synchronize()

    def cudaHostRegister(self, start: int, size: int, flags: int) -> int:  # noqa: N802
        self._forget((start, start + size))
        if self.pins:
            self.pinned.append((start, start + size))
        return 0

    def cudaHostUnregister(self, start: int) -> int:  # noqa: N802
        self.pinned = [span for span in self.pinned if span[0] != start]
        return 0

    def put_on_device(self, tensor: torch.Tensor) -> None:
        """Its memory counts as the device's."""
        self.device_memory.append(_span(tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = str(func), dict(kwargs or {})
        if name == "aten.is_pinned.default":
            return _inside(args[0], self.pinned)
        if name in ("aten.empty.memory_format", "aten.zeros.default"):
            pinned = kwargs.pop("pin_memory", False) and self.pins
            made = func(*args, **kwargs)
            self._forget(_span(made))
            (self.pinned if pinned else self.device_memory).append(_span(made))
            return made
        beside = self.current is not self.engine  # else it is the engine's own affair
        if name == "aten.copy_.default" and beside and self._crosses(args[0], args[1]):
            way = "in" if _inside(args[0], self.device_memory) else "out"
            host = args[1] if way == "in" else args[0]
            assert _inside(host, self.pinned), f"{self.current.name}: a copy {way} over pageable memory"
            self.log.append(f"{self.current.name} copies {way}")
        elif name in ("aten.cat.out", "aten._foreach_copy_.default", "aten.fill_.Scalar", "aten.copy_.default"):
            self.log.append(f"{self.current.name} runs {name.split('.')[1].strip('_')}")
        else:
            return func(*args, **kwargs)
        self.current.add(lambda: func(*args, **kwargs))
        return kwargs["out"] if "out" in kwargs else None if "foreach" in name else args[0]

    def _forget(self, span: tuple[int, int]) -> None:
        """What lay here before was freed."""
        for spans in (self.pinned, self.device_memory):
            spans[:] = [(start, end) for start, end in spans if end <= span[0] or span[1] <= start]

    def _crosses(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        return _inside(one, self.device_memory) != _inside(other, self.device_memory)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()


def _inside(tensor: torch.Tensor, spans: list[tuple[int, int]]) -> bool:
    start, end = _span(tensor)
    return any(first <= start and end <= last for first, last in spans)


@contextmanager
def pretended_cuda(late: Collection[str]) -> Iterator[Cuda]:
    """torch.cuda's streams as queues, those named in `late` lazy: "engine", "stream 1" and so on as they are made."""
    cuda = Cuda(late)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "Stream", cuda.make_stream)
        patch.setattr(torch.cuda, "current_stream", lambda device=None: cuda.current)
        patch.setattr(torch.cuda, "stream", cuda.stream)
        patch.setattr(torch.cuda, "synchronize", cuda.synchronize)
        patch.setattr(torch.cuda, "cudart", lambda: cuda)
        with cuda:
            yield cuda
