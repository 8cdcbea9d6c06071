"""The connector that writes a trace of what vLLM serves; tests/engines runs it inside vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import ConfigError, WorkloadError
from framework_engines.vllm_trace import TimedSteps, TraceMethods
from framework_workloads.trace import open_trace


class Request(SimpleNamespace):
    """What the connector reads of vLLM's Request; plugins/framework_engines/tests/engines runs it inside vLLM."""

    def __init__(self, name: str, prompt: int) -> None:
        super().__init__(request_id=name, num_prompt_tokens=prompt, num_tokens=prompt, session_id="talk", priority=3,
                         block_hashes=[b"a"], cache_salt="firm", lora_request=None)  # fmt: skip


def test_the_connector_writes_what_has_ended_and_survives_a_file_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connector: Any = TraceMethods()
    connector.path = tmp_path / "t"
    connector.bind_kv_cache_manager(SimpleNamespace(block_pool=SimpleNamespace(hash_block_size=4)))
    one, two = Request("1", 5), Request("2", 6)
    connector.on_new_request(one)
    connector.scheduled(SimpleNamespace(total_num_scheduled_tokens=7))
    connector.scheduled(SimpleNamespace(total_num_scheduled_tokens=0))  # nothing to compute: no step
    connector.on_new_request(two)
    one.num_tokens = 8
    assert connector.request_finished_all_groups(one, ()) == (False, None)
    (only,) = open_trace(tmp_path / "t")
    assert (only.input_tokens, only.output_tokens, only.priority) == (5, 3, -3)
    assert only.session not in (None, "talk")
    assert only.tenant not in ("", "firm", only.session), "veiled, too"

    def full(record: Any) -> None:
        raise OSError(28, "No space left on device")

    connector.trace._put = full
    assert connector.request_finished_all_groups(two, ()) == (False, None)
    assert "the recording ends here, vLLM goes on" in caplog.text
    connector.on_new_request(Request("3", 5))
    connector.request_finished_all_groups(Request("3", 5), ())
    connector.shutdown()


def test_a_trace_of_tokens_names_what_is_not_text_as_vllm_does(tmp_path: Path) -> None:
    connector: Any = TraceMethods()
    connector.path, connector.tokens = tmp_path / "t", True
    connector.bind_kv_cache_manager(SimpleNamespace(block_pool=SimpleNamespace(hash_block_size=4)))
    request, place = Request("1", 6), SimpleNamespace(offset=1, length=4)
    request.all_token_ids, request.num_tokens = [5, 9, 9, 9, 9, 6, 7], 7
    request.mm_features = [SimpleNamespace(identifier="3f" * 32, mm_position=place)]
    connector.on_new_request(request)
    connector.request_finished_all_groups(request, ())
    connector.shutdown()
    (only,) = open_trace(tmp_path / "t")
    assert only.namespace.contents == ((1, 5, "3f" * 32),)


def scheduled(new: dict[str, tuple[int, int]], running: dict[str, tuple[int, int]]) -> Any:
    """vLLM's SchedulerOutput of requests with (tokens to compute, tokens computed)."""
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=at) for name, (_, at) in new.items()],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(running), num_computed_tokens=[at for _, at in running.values()]
        ),
        num_scheduled_tokens={name: count for name, (count, _) in {**running, **new}.items()},
        total_num_scheduled_tokens=sum(count for count, _ in [*running.values(), *new.values()]),
    )


@pytest.mark.parametrize(("ahead", "seconds"), [(False, [2.0, 5.0, None]), (True, [5.0, None, None])])
def test_a_step_lasts_until_its_end_is_seen_and_the_last_one_has_none(
    tmp_path: Path, ahead: bool, seconds: list[float | None]
) -> None:
    times = iter([10.0, 12.0, 17.0, 90.0, 91.0])
    connector: Any = TraceMethods()
    connector.path = tmp_path / "trace"
    connector.bind_kv_cache_manager(SimpleNamespace(block_pool=SimpleNamespace(hash_block_size=4)))
    connector.steps = TimedSteps(tmp_path / "steps", ahead=ahead, clock=lambda: next(times))
    for name in "ab":
        connector.on_new_request(Request(name, 9))
    connector.scheduled(scheduled({"a": (5, 4)}, {}))
    connector.scheduled(scheduled({}, {}))  # nothing to compute: no step
    connector.scheduled(scheduled({"b": (9, 0)}, {"a": (1, 9)}))
    connector.scheduled(scheduled({}, {"a": (1, 10), "b": (1, 9)}))
    for name in "ab":
        connector.request_finished_all_groups(Request(name, 9), ())
    connector.on_new_request(Request("c", 9))
    connector.scheduled(scheduled({"c": (3, 0)}, {}))  # long after: the wait is no step's
    connector.scheduled(scheduled({}, {"c": (1, 3)}))
    connector.shutdown()
    lines = [json.loads(line) for line in (tmp_path / "steps").read_text().splitlines()]
    assert [line["step_s"] for line in lines] == [*seconds, *([None, None] if ahead else [1.0, None])]
    assert lines[1] == {"rows": 2, "new_tokens": 10, "context_tokens": 9, "pairs": 45 + 10, "step_s": seconds[1]}
    with pytest.raises(ConfigError, match="choose another name"):
        TimedSteps(tmp_path / "steps")


def test_a_recording_has_arrivals_on_both_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("framework_engines.vllm_trace.time.monotonic", lambda: now[0])
    connector: Any = TraceMethods()
    connector.path = tmp_path / "t"
    connector.bind_kv_cache_manager(SimpleNamespace(block_pool=SimpleNamespace(hash_block_size=4)))
    for number in range(3):
        now[0] = 100.0 + 2.5 * number
        request = Request(str(number), 5)
        connector.on_new_request(request)
        connector.scheduled(SimpleNamespace(total_num_scheduled_tokens=5))
        connector.request_finished_all_groups(request, ())
    connector.shutdown()
    steps, seconds = open_trace(tmp_path / "t"), open_trace(tmp_path / "t", in_seconds=True)
    assert (steps.in_steps, seconds.in_steps) == (True, False)
    assert [one.arrival_s for one in steps] == [0.0, 1.0, 2.0]
    assert [one.arrival_s for one in seconds] == [0.0, 2.5, 5.0]
    from framework_workloads.trace_file import TraceFile

    assert [one.arrival_s for one in TraceFile(path=tmp_path / "t", clock="seconds").requests()] == [0.0, 2.5, 5.0]
    (tmp_path / "r").write_text((tmp_path / "t").read_text().replace('"seconds"', '"hours"'))
    with pytest.raises(WorkloadError, match="seconds"):
        list(open_trace(tmp_path / "r", in_seconds=True))
