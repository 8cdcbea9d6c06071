"""A store that does not return: the run ends, and says which call it was."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

HANGS = """
import time
from framework_builtin.store.host import Host

class Hangs(Host):
    def {method}(self, key, *rest):
        time.sleep(10**6)
"""


@pytest.mark.parametrize("method", ["write", "read"])
def test_a_store_that_hangs_is_named_and_the_run_ends(
    method: str, elsewhere: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    (elsewhere / f"hangs_in_{method}.py").write_text(HANGS.format(method=method))
    start = time.monotonic()
    status, out, err = command(
        "workload=chat", "workload.num_requests=16", "cache.num_blocks=40", "run.progress=false", "run.dir=run",
        "run.stall_timeout_s=1", "+tiering=on_eviction",
        f"tiers=[{{store: 'hangs_in_{method}.py:Hangs', num_blocks: 500}}]",
    )  # fmt: skip
    assert status == 1, out + err
    assert time.monotonic() - start < 60
    result = json.loads((elsewhere / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert f"store Hangs.{method} (hangs_in_{method}.py:7): has not returned for 1 seconds" in result["reasons"][0]


RAISES = """
from framework_builtin.store.host import Host

class Raises(Host):
    def {method}(self, *given):
        raise {error}
"""


@pytest.mark.parametrize(
    ("method", "error"), [("write", "KeyboardInterrupt"), ("remove", "ValueError(1)"), ("close", "ValueError(1)")]
)
def test_a_store_that_raises_fails_no_request_and_the_run_says_so(
    method: str, error: str, elsewhere: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    (elsewhere / f"raises_in_{method}.py").write_text(RAISES.format(method=method, error=error))
    status, _, err = command(
        "workload=chat", "workload.num_requests=16", "cache.num_blocks=40", "run.progress=false", "run.dir=run",
        "run.check_requests=0", "+tiering=on_eviction",
        f"tiers=[{{store: 'raises_in_{method}.py:Raises', num_blocks: 8}}]",
    )  # fmt: skip
    assert status == 1
    result = json.loads((elsewhere / "run" / "result.json").read_text())
    assert (result["status"], result["num_failed"], result["num_finished"] > 0) == ("ok", 0, True), result
    assert "Raises" in result["store_failure"], result["store_failure"]
    assert f"a tier's store failed: {result['store_failure']}" in err, err
