"""Memory that a device has free."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch


def free_bytes(device: str | torch.device) -> int:
    """Bytes that could be allocated: the CUDA driver's free memory plus what torch caches unused, or the host's."""
    device = torch.device(device)
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return min(_available_host_bytes(), _cgroup_headroom(), _process_headroom())


def counts(device: str | torch.device) -> bool:
    """Whether torch counts what is held on this device: `peak_bytes` can say."""
    return torch.device(device).type == "cuda"


def peak_bytes(device: str | torch.device, work: Callable[[], object]) -> int:
    """Bytes that `work` holds at its height beyond what is held already, on a device that `counts`."""
    device = torch.device(device)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _available_host_bytes() -> int:
    meminfo = Path("/proc/meminfo")
    for line in meminfo.read_text().splitlines() if meminfo.exists() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _cgroup_headroom() -> int:
    """What the container still allows, page cache it could drop included; practically endless without one."""
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        if limit == "max":
            return 2**62
        facts = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        used = int((root / "memory.current").read_text()) - int(facts.get("inactive_file", 0))
        return max(0, int(limit) - used)
    except (OSError, ValueError):
        return 2**62


def _process_headroom() -> int:
    """What `ulimit -v` still allows this process; practically endless without one."""
    try:
        import resource
    except ImportError:  # no POSIX
        return 2**62
    limit, status = resource.getrlimit(resource.RLIMIT_AS)[0], Path("/proc/self/statm")
    if limit == resource.RLIM_INFINITY or not status.exists():
        return 2**62
    return max(0, limit - int(status.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE"))
