"""Our eviction policies as a libcachesim plugin cache."""

from __future__ import annotations

import importlib
from typing import Any

from framework.errors import InvalidArgument, Unsupported
from framework.registry.components import Component
from framework_engines.host_blocks import HostBlocks, build_policy


def as_libcachesim(policy: Component, cache_size: int, *, object_size: int = 1, seed: int = 0) -> Any:
    """A `libcachesim.PluginCache` that evicts as `policy` does: for their traces, readers and `process_trace`.

    Objects are independent blocks of one size: depth 0, one tenant, one priority, no children. Time is the number of
    requests seen. Needs `libcachesim`; interface as of 0.3.5.

    Args:
        policy: an installed policy's name ("s3fifo"), a mapping with a name and options, a class, or an object.
        cache_size: in libcachesim's unit, what `object_size` is given in.
        object_size: of every object; a request of another size is refused while the trace runs.
        seed: for policies that draw.

    Raises:
        InvalidArgument: no object fits, or no eviction policy.
        Unsupported: libcachesim is not installed, or the policy reads the future.
    """
    if object_size < 1 or cache_size < object_size:
        raise InvalidArgument(
            f"a cache of size {cache_size} holds no object of size {object_size}; both in whole units"
        )
    num_blocks = int(cache_size) // object_size
    made = build_policy(policy, num_blocks, seed=seed)
    try:
        library = importlib.import_module("libcachesim")
    except ImportError as error:
        raise Unsupported(f"libcachesim cannot be imported ({error}); pip install libcachesim") from error
    hooks = _Hooks(HostBlocks(made, num_blocks), object_size)
    return library.PluginCache(
        cache_size=num_blocks * object_size,
        cache_init_hook=hooks.start,
        cache_hit_hook=_Hooks.hit,
        cache_miss_hook=_Hooks.miss,
        cache_eviction_hook=_Hooks.evict,
        cache_remove_hook=_Hooks.remove,
        cache_free_hook=_Hooks.free,
        cache_name=type(made).__name__,
        hashpower=max(4, num_blocks.bit_length()),
    )


class _Hooks:
    """The cache's data as libcachesim hands it to every hook. A miss on a full cache calls `evict`, then `miss`."""

    def __init__(self, host: HostBlocks, object_size: int) -> None:
        self.host, self.object_size = host, object_size

    def start(self, _: Any) -> _Hooks:
        return self

    def hit(self, request: Any) -> None:
        self.host.tick()
        self.host.hit([request.obj_id])

    def evict(self, request: Any) -> int:
        self._require(request)
        self.host.tick()
        try:
            name = self.host.victim()
            self.host.evict(name)
        finally:
            self.host.tick(-1)  # the miss that follows is the same access
        return int(name)

    def miss(self, request: Any) -> None:
        self._require(request)
        self.host.tick()
        name = request.obj_id
        self.host.add(name, int(name).to_bytes(8, "little"))
        self.host.admit([name])
        self.host.release([name])

    def remove(self, name: int) -> None:
        if name in self.host.block_of:
            self.host.evict(name)

    def free(self) -> None:
        """Nothing to free; libcachesim insists on the hook."""

    def _require(self, request: Any) -> None:
        if request.obj_size != self.object_size:
            raise InvalidArgument(
                f"object {request.obj_id} has size {request.obj_size}, this cache was made for objects of size "
                f"{self.object_size}; give object_size, or read the trace with ignore_obj_size"
            )
