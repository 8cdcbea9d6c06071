"""The connector that writes a trace of what vLLM serves; tests/engines runs it inside vLLM."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import ConfigError
from framework.export import vllm_trace
from framework.export.vllm_trace import TraceMethods, path_of
from framework.workload.traces import open_trace


class Request(SimpleNamespace):
    """What the connector reads of vLLM's Request; tests/engines runs it inside vLLM."""

    def __init__(self, name: str, prompt: int) -> None:
        super().__init__(request_id=name, num_prompt_tokens=prompt, num_tokens=prompt, session_id="talk", priority=3,
                         block_hashes=[b"a"])  # fmt: skip


def test_the_connector_writes_what_has_ended_and_survives_a_file_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connector: Any = TraceMethods()
    connector.path = tmp_path / "t"
    connector.bind_kv_cache_manager(SimpleNamespace(block_pool=SimpleNamespace(hash_block_size=4)))
    one, two = Request("1", 5), Request("2", 6)
    connector.on_new_request(one)
    connector.scheduled(7)
    connector.scheduled(0)  # nothing to compute: no step
    connector.on_new_request(two)
    one.num_tokens = 8
    assert connector.request_finished_all_groups(one, ()) == (False, None)
    (only,) = open_trace(tmp_path / "t")
    assert (only.input_tokens, only.output_tokens, only.priority) == (5, 3, -3)
    assert only.session not in (None, "talk")

    def full(record: Any) -> None:
        raise OSError(28, "No space left on device")

    connector.trace._put = full
    assert connector.request_finished_all_groups(two, ()) == (False, None)
    assert "the recording ends here, vLLM goes on" in caplog.text
    connector.on_new_request(Request("3", 5))
    connector.request_finished_all_groups(Request("3", 5), ())
    connector.shutdown()


def test_the_options_are_one_path() -> None:
    assert path_of({"path": "a.jsonl"}) == Path("a.jsonl")
    for extra in ({}, {"path": 3}, {"path": ""}):
        with pytest.raises(ConfigError, match="name a new file"):
            path_of(extra)
    with pytest.raises(ConfigError, match="has path, found salt"):
        path_of({"path": "a", "salt": "b"})


def test_a_name_that_the_module_does_not_offer_is_refused() -> None:
    with pytest.raises(AttributeError, match="it offers TraceConnector"):
        vllm_trace.Else  # type: ignore[attr-defined]
