"""Files of benchmarks: sessions that one sends, and requests that one has sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from framework.interfaces.workload import WorkloadRequest
from framework_workloads.trace.format import (
    MAX_TOKENS,
    FieldError,
    Line,
    Record,
    TraceReader,
    first_object,
    integer,
    integers,
    json_object,
    number,
    text,
)

_NANOSECONDS = 10**9
_TOOL_LENGTH, _LATENCY = "tool_call_output_length", "tool_call_latency"


class Trie(TraceReader):
    """Applied Compute's trie: a session a line, as lengths of its prompt, answers and tool outputs, tools' seconds.

    Every session is there from 0 s on: in a closed loop `mode.concurrency` says how many requests are under way. A turn
    comes after the answer before it and its tool; in an open loop answers take no time. A prompt holds all that came
    before it in its session, and sessions share nothing. Blocks have 512 tokens, or what `block_tokens` says.
    Source: github.com/Applied-Compute/trie, README, "Workload format".
    """

    block_tokens = 512
    sizes_vary = True
    unsorted = True

    example: ClassVar[Mapping[str, str]] = {
        "trie.jsonl": '{"num_turns": 2, "input_prompt_length": 1300, "assistant_response_length": [16, 20], '
        '"tool_call_output_length": [600, 12], "tool_call_latency": [0.5, 2.0], '
        '"final_assistant_response_length": 64}\n'
        '{"num_turns": 0, "input_prompt_length": 90, "assistant_response_length": [], "tool_call_output_length": [], '
        '"tool_call_latency": [], "final_assistant_response_length": 7}\n'
    }

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `num_turns`, `input_prompt_length` and `tool_call_latency`."""
        return {"num_turns", "input_prompt_length", "tool_call_latency"} <= first_object(head).keys()

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        fresh = 0
        for place, line in lines:
            try:
                turns = self._turns(json_object(line), str(place), fresh)
            except FieldError as error:
                yield place, error
                continue
            fresh += turns[-1].input_tokens // self.block_tokens
            for turn in turns:
                yield place, turn

    def _turns(self, record: Mapping[str, Any], session: str, first_name: int) -> list[WorkloadRequest]:
        count = integer(record, "num_turns", 0)
        answers, tools = (
            integers(record, name, MAX_TOKENS).tolist() for name in ("assistant_response_length", _TOOL_LENGTH)
        )
        waits = record.get(_LATENCY)
        delays = [number({_LATENCY: wait}, _LATENCY) for wait in waits] if isinstance(waits, list) else None
        if delays is None or not len(answers) == len(tools) == len(delays) == count:
            raise FieldError("num_turns", f"{count}, which is not how many answers, tool outputs and latencies follow")
        prompts = [integer(record, "input_prompt_length", 1)]
        for answer, tool in zip(answers, tools, strict=True):
            prompts.append(integer({_TOOL_LENGTH: prompts[-1] + answer + tool}, _TOOL_LENGTH, 1))
        answers.append(integer(record, "final_assistant_response_length", 0))
        names = np.arange(first_name, first_name + prompts[-1] // self.block_tokens, dtype=np.int64)
        return [
            WorkloadRequest(
                arrival_s=sum(delays[:turn]), after=(f"{session}:{turn - 1}",) if turn else (),
                delay_s=delays[turn - 1] if turn else 0.0, input_tokens=tokens, output_tokens=answers[turn],
                block_ids=names[: tokens // self.block_tokens], block_tokens=self.block_tokens, session=session,
                turn=turn, key=f"{session}:{turn}",
            )
            for turn, tokens in enumerate(prompts)
        ]  # fmt: skip


class AIPerf(TraceReader):
    """AIPerf's `profile_export.jsonl`: a request that was sent a line, with its times and lengths; no content.

    Requests that failed are left out. A session is a `x_correlation_id`, a turn comes after the one before it by the
    recorded gap. Prompts are as long as the file says.
    Source: ai-dynamo/aiperf, docs/tutorials/working-with-profile-exports.md.
    """

    absolute_times = True
    unsorted = True

    example: ClassVar[Mapping[str, str]] = {
        "profile_export.jsonl": '{"metadata": {"x_correlation_id": "a", "turn_index": 0, "request_start_ns": '
        '1759813207532900363, "request_end_ns": 1759813208532900363}, "metrics": {"input_sequence_length": '
        '{"value": 550, "unit": "tokens"}, "output_sequence_length": {"value": 9, "unit": "tokens"}}, "error": null}\n'
        '{"metadata": {"x_correlation_id": "a", "turn_index": 1, "request_start_ns": 1759813209532900363, '
        '"request_end_ns": 1759813209732900363}, "metrics": {"input_sequence_length": {"value": 600, "unit": "tokens"},'
        ' "output_sequence_length": {"value": 3, "unit": "tokens"}}, "error": null}\n'
    }

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `metrics` and `request_start_ns` in `metadata`."""
        record = first_object(head)
        metadata = record.get("metadata")
        return "metrics" in record and isinstance(metadata, dict) and "request_start_ns" in metadata

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        ended: dict[str, tuple[str, float]] = {}  # session -> its last turn's key, and when that was answered
        for place, line in lines:
            try:
                record = json_object(line)
                if record.get("error") is None:
                    yield place, _sent(record, ended)
            except FieldError as error:
                yield place, error


def _sent(record: Mapping[str, Any], ended: dict[str, tuple[str, float]]) -> WorkloadRequest:
    facts, metrics = _object(record, "metadata"), _object(record, "metrics")
    session, turn = text(facts, "x_correlation_id"), integer(facts, "turn_index", 0)
    if session is None:
        raise FieldError("x_correlation_id", "missing")
    start_s, end_s = (integer(facts, f"request_{end}_ns", 0, 2**63) / _NANOSECONDS for end in ("start", "end"))
    key, before = f"{session}:{turn}", ended.get(session)
    if end_s < start_s or (before is not None and start_s < before[1]):
        raise FieldError("request_start_ns", "after request_end_ns, or before the answer to the turn before it")
    if before is not None and before[0] == key:
        raise FieldError("turn_index", f"{turn} twice in session {session!r}")
    lengths = {
        name: _object(metrics, name).get("value") for name in ("input_sequence_length", "output_sequence_length")
    }
    request = WorkloadRequest(
        arrival_s=start_s, after=() if before is None else (before[0],),
        delay_s=0.0 if before is None else start_s - before[1],
        input_tokens=integer(lengths, "input_sequence_length", 1),
        output_tokens=integer(lengths, "output_sequence_length", 0), session=session, turn=turn, key=key,
    )  # fmt: skip
    ended[session] = key, end_s
    return request


def _object(record: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = record.get(field)
    if not isinstance(value, dict):
        raise FieldError(field, "expected an object")
    return value


class VllmBench(TraceReader):
    """What `vllm bench serve --save-result --save-detailed` writes: one object, with a list a fact; no content.

    Requests arrive at `start_times`, seconds of a clock of the client's; those with an error are left out. A file with
    one result alone: clocks of several are not comparable.
    Source: vllm-project/vllm, vllm/benchmarks/serve.py.
    """

    absolute_times = True
    unsorted = True

    example: ClassVar[Mapping[str, str]] = {
        "result.json": '{"total_input_tokens": 65, "total_output_tokens": 5, "request_throughput": 1.5, '
        '"input_lens": [32, 33], "output_lens": [2, 3], "start_times": [71.25, 71.75], "errors": ["", ""]}\n'
    }

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `total_input_tokens` and `request_throughput`."""
        return {"total_input_tokens", "request_throughput"} <= first_object(head).keys()

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        for count, (place, line) in enumerate(lines):
            if count:
                raise FieldError("line", "a second result, whose clock is another; give each a file of its own")
            record = json_object(line)
            if "input_lens" not in record or "start_times" not in record:
                raise FieldError(
                    "start_times" if "input_lens" in record else "input_lens",
                    "missing; `vllm bench serve --save-result --save-detailed` writes it, of a late version",
                )
            prompts, answers = (integers(record, name, MAX_TOKENS).tolist() for name in ("input_lens", "output_lens"))
            times, errors = record["start_times"], record.get("errors") or [""] * len(prompts)
            if not all(isinstance(one, list) and len(one) == len(prompts) for one in (answers, times, errors)):
                raise FieldError("start_times", "as many as input_lens, output_lens and errors are expected")
            for number_, (tokens, answer, at_s, error) in enumerate(zip(prompts, answers, times, errors, strict=True)):
                if not error:
                    yield (
                        place,
                        WorkloadRequest(
                            arrival_s=number({"start_times": at_s}, "start_times"),
                            input_tokens=integer({"input_lens": tokens}, "input_lens", 1),
                            output_tokens=answer, key=str(number_),
                        ),
                    )  # fmt: skip
