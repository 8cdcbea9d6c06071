"""A pytest plugin: every KVCacheManager of vLLM's that may, has its evictions led by `lru` through PolicyConnector."""

from __future__ import annotations

from typing import Any

import pytest

led: list[Any] = []
refused: dict[str, int] = {}


def pytest_configure(config: pytest.Config) -> None:
    from vllm.v1.core import kv_cache_manager

    from framework.errors import Unsupported
    from framework_engines.vllm_connector import lead

    made = kv_cache_manager.KVCacheManager.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        try:
            led.append(lead(self, "lru"))
        except Unsupported as error:
            reason = str(error).split(";")[0]
            refused[reason] = refused.get(reason, 0) + 1

    kv_cache_manager.KVCacheManager.__init__ = init


def pytest_terminal_summary(terminalreporter: Any) -> None:
    failed = sum(watch.queue.failure is not None for watch in led)
    terminalreporter.write_line(f"managers led by lru: {len(led)}, of which the policy failed in {failed}")
    for reason, count in refused.items():
        terminalreporter.write_line(f"not led: {count} ({reason})")
