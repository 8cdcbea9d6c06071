"""Prefill and decode apart: the KV of a prompt on its way from the replica that computed it to the one that decodes.

As in vLLM with NIXL: the first computes the prompt and one token, and keeps the table until the copy has ended; the
second takes blocks for the whole prompt, reads what its own cache lacks, computes the last token of the prompt and
decodes. A request's blocks are so in a table of each while a link copies them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from framework.errors import FrameworkError, InvariantViolation
from framework.interfaces.allocator import Hit
from framework.interfaces.below import Below, EngineBelow, MakeBelow, ReplayedPool

if TYPE_CHECKING:
    from framework.engine.lifecycle import Lifecycle
    from framework.engine.request import Sequence as EngineSequence
    from framework.engine.state import EngineState

Blocks = npt.NDArray[np.int32]


class Agenda:
    """What is to be done at which time, seconds; first what was entered first."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Callable[[float], object]]] = []
        self._number = count()

    def at(self, when_s: float, work: Callable[[float], object]) -> None:
        """Do this at that time; it is given the time."""
        heapq.heappush(self._entries, (when_s, next(self._number), work))

    @property
    def next_s(self) -> float:
        """When the next is due; infinite where nothing is."""
        return self._entries[0][0] if self._entries else inf

    def do_next(self) -> None:
        """Do what is due next."""
        when_s, _, work = heapq.heappop(self._entries)
        work(when_s)


@dataclass(slots=True, eq=False, kw_only=True)
class Handoff:
    """The KV of one prompt, which a sender keeps for a receiver.

    Attributes:
        seq: of the sender's engine. kept: the sender has its table.
        offered_s: when the prompt was computed, seconds.
        receiver, target: that reads it, and the sequence there; None before.
        first: the first block of the tables that is copied. source_blocks, target_blocks: what is copied, and to where.
        copying: a link is copying. arrived: all is there. lost: nothing more comes.
    """

    sender: Sender
    seq: EngineSequence
    offered_s: float
    kept: bool = True
    receiver: Receiver | None = None
    target: EngineSequence | None = None
    first: int = 0
    source_blocks: Blocks = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    target_blocks: Blocks = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    copying: bool = False
    arrived: bool = False
    lost: bool = False

    def release(self, at_s: float) -> None:
        """The sender need not keep the table any longer. Idempotent."""
        if self.kept:
            self.kept = False
            self.sender.release(self, at_s)


@dataclass(slots=True)
class Plan:
    """What is read of a prompt: see EngineBelow.plan."""

    hit: Hit
    num_tokens: int


class Side(EngineBelow):
    """One replica's side of handoffs, below its pool.

    Attributes:
        blocked: its engine has nothing to do before a link, or another replica, has done something.
    """

    def __init__(self, state: EngineState, life: Lifecycle, handoffs: Handoffs, index: int, block_bytes: int) -> None:
        super().__init__()
        self.state, self.life, self.handoffs, self.index, self.block_bytes = state, life, handoffs, index, block_bytes
        self.blocked = False

    def wait(self, until: float | None) -> None:
        if until is None:
            self.blocked = True
        else:
            self.state.executor.wait_until(until)

    def table(self, seq: EngineSequence, first: int, num_tokens: int) -> Blocks:
        """The blocks of the first `num_tokens` tokens of `seq`, from block number `first` on.

        Raises:
            FrameworkError: it has no table.
        """
        return self.state.guarded.table(seq.id)[first : -(-num_tokens // self.state.guarded.block_size)].copy()


class Sender(Side):
    """Below the pool of a replica that prefills: it keeps the tables of finished prompts until they were read."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.kept: dict[int, Handoff] = {}  # by number of the request here
        self._released: list[Handoff] = []

    @property
    def busy(self) -> bool:
        return bool(self.kept)

    def ending(self, seq: EngineSequence) -> bool:
        computed = len(seq.tokens) > len(seq.request.prompt)  # else it failed, or its client left
        if computed:
            self.kept[seq.request.number] = Handoff(sender=self, seq=seq, offered_s=self.state.executor.now())
        return computed

    def release(self, handoff: Handoff, at_s: float) -> None:
        """Free its table before the next step."""
        self._released.append(self.kept.pop(handoff.seq.request.number))
        if self.blocked:
            self.handoffs.agenda.at(at_s, lambda now_s: self.handoffs.wake(self.index, now_s))

    def poll(self) -> None:
        for handoff in self._released:
            self.life.free_table(handoff.seq)
        self._released.clear()

    def check(self, *, settle: bool = False) -> None:
        self.poll()
        if settle and self.kept:
            raise InvariantViolation(
                f"handoff: F2: all requests have ended, and replica {self.index} keeps the blocks of {len(self.kept)} "
                f"prompts for nobody, the first of request {next(iter(self.kept))}"
            )


class Receiver(Side):
    """Below the pool of a replica that decodes: it reads prompts that others computed into tables of its own.

    NOTE 1. A request gets blocks for its whole prompt before its read begins, or waits without any; one whose prompt is
    there and that has no row yet gives its blocks up for those that run. So full pools wait for no one for ever.
    NOTE 2. A request that ends while a link writes to its blocks keeps them until the link is done.
    NOTE 3. What cannot be read, since its lease has ended or its sender has left, is computed here.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.coming: dict[int, Handoff] = {}  # by number of the request here; no read has begun
        self.loading: list[Handoff] = []
        self._dropped: list[tuple[Handoff, bool]] = []  # whether it waits again

    @property
    def full(self) -> bool:
        return False

    @property
    def busy(self) -> bool:
        return bool(self.loading or self._dropped)

    def readable(self, handoff: Handoff) -> bool:
        """Whether its sender has it still."""
        return handoff.kept

    def plan(self, seq: EngineSequence, hit: Hit) -> Plan | None:
        handoff, num_tokens = self.coming.get(seq.request.number), len(seq.request.prompt) - 1
        if handoff is None:
            return None
        if not self.readable(handoff) or hit.num_tokens >= num_tokens:
            self.forget(seq.request.number)
            return None
        full = hit.num_tokens // self.state.guarded.block_size
        return Plan(Hit(full * self.state.guarded.block_size, hit.blocks[:full], hit.hashes, hit.version), num_tokens)

    def forget(self, number: int) -> None:
        """The request of this number reads nothing."""
        handoff = self.coming.pop(number, None)
        if handoff is not None:
            handoff.release(self.state.executor.now())

    def begin(self, seq: EngineSequence, hit: Hit, plan: Plan | None) -> bool:
        if plan is None:
            return False
        handoff = self.coming.pop(seq.request.number)
        handoff.target, handoff.first = seq, plan.hit.num_tokens // self.state.guarded.block_size
        self.loading.append(handoff)
        self.state.note("load", seq, blocks=-(-plan.num_tokens // self.state.guarded.block_size) - handoff.first)
        self.handoffs.copy(handoff, self, plan.num_tokens, self.state.executor.now())
        return True

    def poll(self) -> None:
        for handoff in [one for one in self.loading if one.arrived or one.lost]:
            self.loading.remove(handoff)
            assert handoff.target is not None
            if handoff.lost:
                self._free(handoff.target, returning=True)
                continue
            num_tokens = len(handoff.target.request.prompt) - 1
            self.state.guarded.commit(handoff.target.id, handoff.target.tokens[:num_tokens])
            self.state.note("loaded", handoff.target, blocks=len(handoff.target_blocks))
            self.ready.append((handoff.target, num_tokens))
        for entry in [one for one in self._dropped if not one[0].copying]:
            self._dropped.remove(entry)
            assert entry[0].target is not None
            self._free(entry[0].target, returning=entry[1])

    def drop(self, seq: EngineSequence, *, returning: bool = False) -> None:
        self.forget(seq.request.number)
        for handoff in self.loading:
            if handoff.target is seq:
                self.loading.remove(handoff)
                self.dropped(handoff, returning=returning)
                return
        if any(one is seq for one, _ in self.ready):
            self.ready[:] = [entry for entry in self.ready if entry[0] is not seq]
            self._free(seq, returning=returning)

    def dropped(self, handoff: Handoff, *, returning: bool) -> None:
        """The sequence that reads this is to be freed."""
        self._dropped.append((handoff, returning))

    def _free(self, seq: EngineSequence, *, returning: bool) -> None:
        self.life.free_table(seq)
        if returning and not seq.done:
            self.state.waiting.push(seq)

    def holds(self) -> list[Handoff]:
        """All that it reads, or is to read."""
        return [*self.coming.values(), *self.loading, *(handoff for handoff, _ in self._dropped)]

    def check(self, *, settle: bool = False) -> None:
        self.poll()


class Handoffs:
    """The links between replicas, and every prompt that is on its way.

    A copy takes a replica's port at both ends: copies of one replica follow one another.

    Args:
        bytes_per_s: of a port. latency_s: until a copy's first byte; ports are free meanwhile.
        lease_s: a sender keeps what nobody has begun to read so long.

    Attributes:
        agenda: of the fleet. wake: called with a replica's number and the time, as it may have something to do.
    """

    sender: ClassVar[type[Sender]] = Sender
    receiver: ClassVar[type[Receiver]] = Receiver

    def __init__(self, bytes_per_s: float, latency_s: float, lease_s: float) -> None:
        self._bytes_per_s, self._latency_s, self._lease_s = bytes_per_s, latency_s, lease_s
        self.agenda = Agenda()
        self.wake: Callable[[int, float], object] = lambda index, at_s: None
        self._free_s: dict[int, float] = {}  # when a replica's port is free again
        self.num_open = 0  # copies
        self.num_copies = self.num_blocks = self.num_bytes = self.num_expired = self.num_lost = 0
        self.seconds = 0.0

    def below(self, index: int, *, decodes: bool) -> SideBelow:
        """What lies below the pool of replica `index`."""
        return SideBelow(self, index, self.receiver if decodes else self.sender)

    def offer(self, sender: Sender, number: int, at_s: float) -> Handoff:
        """The prompt of the sender's request of this number is computed; its lease begins."""
        handoff = sender.kept[number]
        if self._lease_s < inf:
            self.agenda.at(at_s + self._lease_s, lambda now_s: self._expire(handoff, now_s))
        return handoff

    def _expire(self, handoff: Handoff, at_s: float) -> None:
        if handoff.kept and self.may_expire(handoff):
            self.num_expired += 1
            handoff.release(at_s)

    def may_expire(self, handoff: Handoff) -> bool:
        """Whether the lease of what is kept ends now: not while it is read."""
        return not handoff.copying

    def copy(self, handoff: Handoff, receiver: Receiver, num_tokens: int, at_s: float) -> None:
        """Copy its blocks from number `handoff.first` on to those of its target."""
        assert handoff.target is not None
        handoff.receiver, handoff.copying = receiver, True
        try:
            handoff.source_blocks = handoff.sender.table(handoff.seq, handoff.first, num_tokens)
        except FrameworkError as error:
            raise InvariantViolation(f"handoff: F1: a link begins to read blocks that nobody keeps: {error}") from error
        handoff.target_blocks = receiver.table(handoff.target, handoff.first, num_tokens)
        size = len(handoff.target_blocks) * receiver.block_bytes
        ports = (handoff.sender.index, receiver.index)
        begin_s = max(at_s, *(self._free_s.get(port, 0.0) for port in ports))
        end_s = begin_s + size / self._bytes_per_s
        self._free_s |= dict.fromkeys(ports, end_s)
        self.num_copies += 1
        self.num_open += 1
        self.num_blocks += len(handoff.target_blocks)
        self.num_bytes += size
        self.agenda.at(end_s + self._latency_s, lambda now_s: self._end(handoff, now_s))

    def _end(self, handoff: Handoff, at_s: float) -> None:
        self.num_open -= 1
        if not handoff.copying:  # one of the two has left
            return
        assert handoff.receiver is not None
        self.check(handoff)
        handoff.copying, handoff.arrived = False, True
        self.seconds += at_s - handoff.offered_s
        handoff.release(at_s)
        self.wake(handoff.receiver.index, at_s)

    def check(self, handoff: Handoff) -> None:
        """No block that a link reads or writes is free: a table of each side names it, from the first byte to the last.

        Raises:
            InvariantViolation: one is.
        """
        assert handoff.receiver is not None
        assert handoff.target is not None
        sides: tuple[tuple[Side, EngineSequence, Blocks], ...] = (
            (handoff.sender, handoff.seq, handoff.source_blocks),
            (handoff.receiver, handoff.target, handoff.target_blocks),
        )
        for side, seq, blocks in sides:
            try:
                present = side.state.guarded.table(seq.id)[handoff.first : handoff.first + len(blocks)]
            except FrameworkError:
                present = np.empty(0, dtype=np.int32)
            if not np.array_equal(present, blocks):
                which = "written" if side is handoff.receiver else "read"
                raise InvariantViolation(
                    f"handoff: F1: blocks of replica {side.index} were {which} by a link and not kept for it: "
                    f"{blocks.tolist()[:8]} of request {seq.request.number}, whose table has {present.tolist()[:8]}"
                )

    def left(self, side: Side, at_s: float) -> None:
        """This replica has left: what it had is gone, and what it was reading is not needed."""
        if isinstance(side, Sender):
            for handoff in side.kept.values():
                handoff.copying, handoff.kept, handoff.lost = False, False, True
                self.num_lost += 1
                if handoff.receiver is not None:
                    self.wake(handoff.receiver.index, at_s)
        elif isinstance(side, Receiver):
            for handoff in side.holds():
                handoff.copying = False
                handoff.release(at_s)

    def results(self) -> dict[str, Any]:
        """What a run's result says of them."""
        return {
            "handoffs": self.num_copies,
            "handoff_blocks": self.num_blocks,
            "handoff_bytes": self.num_bytes,
            "handoff_s_mean": self.seconds / self.num_copies if self.num_copies else None,
            "expired_handoffs": self.num_expired,
            "lost_handoffs": self.num_lost,
        }


class SideBelow(Below):
    """Makes one replica's side of handoffs; `made` is the latest. `block_bytes`: of the model that a replay assumes."""

    def __init__(self, handoffs: Handoffs, index: int, kind: type[Side]) -> None:
        self._handoffs, self._index, self._kind = handoffs, index, kind
        self.made: Side | None = None
        self.block_bytes = 0

    def replay(self, pool: Callable[[], ReplayedPool]) -> MakeBelow:
        self.block_bytes = self.block_bytes or pool().block_bytes

        def make(state: EngineState, life: Lifecycle) -> EngineBelow:
            self.made = self._kind(state, life, self._handoffs, self._index, self.block_bytes)
            return self.made

        return make
