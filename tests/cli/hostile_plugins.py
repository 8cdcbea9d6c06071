"""A distribution of bad plugins, as text: each breaks its contract in one way and says which."""

from __future__ import annotations

POLICIES = '''
from framework.errors import NoCandidate
from framework.interfaces.eviction import EvictionPolicy

class Base(EvictionPolicy):
    """LRU, written plainly."""
    def attach(self, blocks):
        super().attach(blocks)
        self.candidates = set()
    def pin(self, blocks, now):
        self.candidates -= set(blocks)
    def release(self, blocks, now):
        self.candidates |= set(blocks)
    def victim(self, now):
        if not self.candidates:
            raise NoCandidate("none")
        last, depth = self.blocks.last_access, self.blocks.depth
        return min(self.candidates, key=lambda block: (last[block], -depth[block], block))
    def evicted(self, block, now):
        self.candidates.discard(block)

class RaisesAttach(Base):
    """Fails before anything."""
    def attach(self, blocks):
        raise RuntimeError("attach is broken")

class RaisesVictim(Base):
    """Fails when it is asked."""
    def victim(self, now):
        raise RuntimeError("victim is broken")

class WritesFacts(Base):
    """Writes to the columns it may read."""
    def release(self, blocks, now):
        super().release(blocks, now)
        self.blocks.hits[blocks[0]] = 10**6

class Spins(Base):
    """Never decides."""
    def victim(self, now):
        while True:
            pass

class Sleeps(Base):
    """Waits for better times."""
    def victim(self, now):
        import time
        time.sleep(10**6)

class Exits(Base):
    """Ends the process, and says that all is well."""
    def victim(self, now):
        raise SystemExit(0)

class ExitsAtOnce(Base):
    """The same, from its constructor."""
    def __init__(self):
        raise SystemExit(0)
'''

ALLOCATORS = '''
from framework.paged.allocator import PagedAllocator

class RaisesFree(PagedAllocator):
    """Fails as blocks come back."""
    share_prefix, share_forks = True, "all"
    def free(self, request, next_use=()):
        raise RuntimeError("free is broken")

'''

BACKENDS = '''
import torch
from framework.interfaces.backend import Capabilities, DenseBackend

class Base(DenseBackend):
    """Plain attention."""
    capabilities = Capabilities(dtypes=frozenset({"float32"}), devices=frozenset({"cpu"}))
    def attend_one(self, q, k, v, row):
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,chd->hqc", q, k) * row.spec.softmax_scale
        scores.masked_fill_(~row.visible(q.device), float("-inf"))
        return torch.einsum("hqc,chd->qhd", scores.softmax(-1), v)

class RaisesAttend(Base):
    """Fails."""
    def attend_one(self, q, k, v, row):
        raise RuntimeError("attend_one is broken")

class GivesNan(Base):
    """Answers NaN."""
    def attend_one(self, q, k, v, row):
        return torch.full_like(q, float("nan"))

class WrongNumbers(Base):
    """Forgets the mask and half the context."""
    def attend_one(self, q, k, v, row):
        return super().attend_one(q, k, v, row) * 0.5
'''
MODULES = {"villain_eviction": POLICIES, "villain_allocator": ALLOCATORS, "villain_backend": BACKENDS}

SPOILS_A_RUN = {
    "eviction": ("RaisesAttach", "RaisesVictim", "WritesFacts"),
    "allocator": ("RaisesFree",),
    "backend": ("RaisesAttend", "GivesNan", "WrongNumbers"),
}
"""Kind -> classes whose fault ends a run or is reported by it."""


def entry_points() -> str:
    """What the distribution declares: every class under its name, and a name that we offer too."""
    own = {**SPOILS_A_RUN, "eviction": (*SPOILS_A_RUN["eviction"], "Spins", "Sleeps", "Exits", "ExitsAtOnce")}
    groups = [
        "\n".join([f"[framework.{kind}]", *(f"{name} = villain_{kind}:{name}" for name in names)])
        for kind, names in own.items()
    ]
    return "\n".join([*groups, "[framework.eviction]", "slru = villain_eviction:Base"])
