"""What every test may rely on: one thread a process, no network, no W&B account, examples that repeat in CI."""

from __future__ import annotations

import atexit
import gc
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Before any test imports torch: workers share the machine's few cores, and their sums must not depend on its number.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Tests started in the background or by nohup ignore these signals, and so would the commands that tests send them to.
if threading.current_thread() is threading.main_thread():
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Keep what was imported and collected out of every later round of the garbage collector: it lives to the end.

    Rounds are also fewer than Python's own, which come after every 700 new objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        atexit.register(gc.unfreeze)  # modules in C++ report as leaks what is not freed at the very end


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """Anything but this machine is unreachable, as on a plane: a test that needs more says so by failing."""
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def local_connect(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
            raise ConnectionRefusedError(f"tests have no network: {address}")
        return connect(self, address)

    def local_resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host is not None and not _is_local(host):
            raise socket.gaierror(socket.EAI_NONAME, f"tests have no network: {host!r}")
        return resolve(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", local_connect)
        patch.setattr(socket, "getaddrinfo", local_resolve)
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout these tests lie in."""
    return ROOT


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of real traces: KVLAB_TRACES, else `shared/traces` next to the checkout; skips where there is none."""
    path = Path(os.environ.get("KVLAB_TRACES") or ROOT.parent / "shared" / "traces")
    if not path.is_dir():
        pytest.skip(f"no real traces at {path}; set KVLAB_TRACES to their folder")
    return path


def _is_local(host: str | bytes) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if name in ("localhost", "", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False
