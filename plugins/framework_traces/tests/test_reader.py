"""Every trace format is read as published, damage is named by file, line and field, and nothing is lost silently."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from synthetic_workloads import example

from framework.errors import InvalidArgument, WorkloadError
from framework.interfaces.workload import WorkloadRequest, name_blocks
from framework.types import Namespace
from framework_traces.writing import write_trace
from framework_workloads.trace import detect_format, open_trace

MOONCAKE = {"timestamp": 27, "input_length": 1000, "output_length": 5, "hash_ids": [0, 7]}


def put(path: Path, *records: object) -> Path:
    lines = (record if isinstance(record, str) else json.dumps(record) for record in records)
    path.write_text("\n".join(lines) + "\n")
    return path


def ids(request: WorkloadRequest) -> list[int]:
    assert request.block_ids is not None
    assert request.block_ids.dtype == np.int64
    return list(request.block_ids.tolist())


EXAMPLES: dict[str, tuple[int, list[tuple[float, int, int, list[int] | None]]]] = {
    "mooncake": (512, [(0.0, 1300, 52, [0, 1, 2]), (2.75, 600, 7, [0, 9])]),
    "bailian": (16, [(0.5, 20, 3, [7, 8]), (61.1, 33, 9, [7, 9, 10])]),
    "runs": (64, [(0.0, 650, 3, [*range(1, 9), 20, 21]), (9.0, 700, 4, [*range(1, 11)])]),
    "azure": (0, [(0.0, 374, 44, None), (pytest.approx(4.314579, abs=1e-5), 396, 109, None)]),  # type: ignore[list-item]
    "burstgpt": (0, [(5.0, 472, 18, None), (45.0, 1087, 0, None)]),
    "vidur": (0, [(0.0, 3772, 54, None), (0.0, 90, 1, None)]),
}
"""Tokens a block; of each request arrival, prompt, answer, and names of blocks."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_read_whole(name: str, tmp_path: Path) -> None:
    trace = open_trace(example(name, tmp_path))
    found = [
        (one.arrival_s, one.input_tokens, one.output_tokens, None if one.block_ids is None else ids(one))
        for one in trace
    ]
    assert (trace.block_tokens, found) == EXAMPLES[name]
    assert (trace.format, trace.num_requests) == (name, 2)


def test_a_block_of_any_size_is_read_as_the_user_says(tmp_path: Path) -> None:
    path = put(tmp_path / "r.jsonl", {**MOONCAKE, "hash_ids": [1] * 8})
    (request,) = open_trace(path, format="hash_ids", block_tokens=128)
    assert (request.block_tokens, len(ids(request)), request.num_full_blocks) == (128, 8, 7)


def test_every_eighth_id_is_the_coarser_trace(tmp_path: Path) -> None:
    path = example("runs", tmp_path)
    coarse, _ = open_trace(path, block_tokens=512)
    assert (ids(coarse), coarse.block_tokens, coarse.namespace.salt) == ([8], 512, "a")
    pairs, _ = open_trace(path, block_tokens=128)
    assert ids(pairs) == [2, 4, 6, 8, 21]


def test_ids_that_runs_count_anew_in_each_scope_are_different_content(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 64 * 5, "output_length": 1}
    far = {**line, "runs": [[2**61, 5]]}
    near, path = {**line, "runs": [[1, 5]]}, tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(one | {"scope": s}) + "\n" for one, s in ((near, "a"), (near, "b"), (far, "a"))))
    first, other, third = (ids(one) for one in open_trace(path))
    assert first == [1, 2, 3, 4, 5], "as they stand in the file, where nothing else has them"
    assert len({*first, *other, *third}) == 15, (first, other, third)
    assert np.diff(other).tolist() == [1] * 4, "neighbours stay neighbours"
    assert max(other + third) < 2**14, "small numbers, that nobody has to sort"
    again = [ids(one) for one in open_trace(path)]
    assert again == [first, other, third], "the same in every pass"


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_our_own_format_gives_back_what_was_written(tmp_path: Path, suffix: str) -> None:
    if suffix == ".zst":
        pytest.importorskip("zstandard")
    tokens, output = np.arange(40, dtype=np.int32), np.array([3, 4], dtype=np.int32)
    requests = [
        WorkloadRequest(arrival_s=0.5, prompt=tokens, output=output, session="s"),
        WorkloadRequest(
            arrival_s=0.5, input_tokens=33, output_tokens=7, block_ids=np.array([5, 6, 9]), block_tokens=16
        ),
        WorkloadRequest(arrival_s=1.25, input_tokens=9, output_tokens=0, namespace=Namespace(salt="x"), tenant="t"),
    ]
    path = tmp_path / f"own.jsonl{suffix}"
    assert write_trace(path, requests, block_tokens=16, source="test") == 3
    trace = open_trace(path)
    first, second, third = trace
    assert (trace.format, first.tokens.tolist(), first.output.tolist()) == ("own", tokens.tolist(), [3, 4])
    assert (first.arrival_s, first.session, first.output_tokens, first.input_tokens) == (0.5, "s", 2, 40)
    assert ids(first) == name_blocks(tokens, 16).tolist()
    assert (ids(second), second.block_tokens, second.output_tokens) == ([5, 6, 9], 16, 7)
    assert (third.block_ids, third.namespace.salt, third.tenant, third.arrival_s) == (None, "x", "t", 1.25)
    again = tmp_path / f"again.jsonl{suffix}"
    write_trace(again, trace, block_tokens=16, source="test")
    assert again.read_bytes() == path.read_bytes()


RECORDED_HEADER = {
    "format": "kvlab-recording", "version": 2, "eos_token_ids": [0], "max_model_len": 64, "window": None,
}  # fmt: skip
RECORDED = {
    "number": 0, "arrival_step": 3, "prompt": [5, 6, 7, 8, 9], "sampling": {"max_tokens": 8, "n": 1, "beam_width": 1},
    "seed": 1, "priority": 0, "tenant": "t", "namespace": {"model": "m", "adapter": "", "salt": ""},
    "outputs": [[1, 2, 0]], "tops": [],
}  # fmt: skip


def test_a_recorded_serve_run_is_a_trace_with_its_answers(tmp_path: Path) -> None:
    plain = {**RECORDED, "namespace": {"model": "", "adapter": "", "salt": ""}}
    searched = {**plain, "outputs": [], "sampling": {"max_tokens": 8, "n": 1, "beam_width": 3}}
    file = put(tmp_path / "recording.jsonl", RECORDED_HEADER, RECORDED, plain, searched)
    assert detect_format(file) == "recording"
    first, second, third = open_trace(file, block_tokens=4)
    assert (first.arrival_s, first.input_tokens, first.output_tokens, first.tenant) == (3.0, 5, 3, "t")
    assert first.tokens is not None
    assert first.tokens.tolist() == RECORDED["prompt"]
    assert first.output is not None
    assert first.output.tolist() == [1, 2, 0]
    assert ids(first) == name_blocks(first.tokens, 4).tolist()
    assert first.namespace != second.namespace == Namespace(), "another model is another namespace"
    assert (third.output, third.output_tokens, third.sampling.beam_width) == (None, 8, 3), "beams are searched anew"


def test_block_names_of_tokens_cover_the_whole_prefix() -> None:
    tokens = np.arange(50, dtype=np.int32)
    names = name_blocks(tokens, 16)
    changed = tokens.copy()
    changed[0] = 7
    assert len(set(names.tolist())) == 4
    assert names.tolist()[:3] == name_blocks(tokens[:48], 16).tolist()
    assert not set(names.tolist()) & set(name_blocks(changed, 16).tolist())


BAD_LINES = [
    ('{"timestamp": 1, "input_length": 10', "line: no JSON"),
    ("[1, 2]", "line: expected a JSON object"),
    ("\x00\x00", "line: no JSON"),
    (json.dumps({**MOONCAKE, "timestamp": -1}), "timestamp: expected a finite number, at least 0, found -1"),
    (json.dumps({**MOONCAKE, "timestamp": None}), "timestamp: missing"),
    (json.dumps({**MOONCAKE, "timestamp": True}), "timestamp: expected a number"),
    (json.dumps({**MOONCAKE, "timestamp": 26}), "arrival time: 0.026 s after 0.027 s"),
    ('{"timestamp": NaN, "input_length": 1000, "output_length": 5, "hash_ids": [0, 7]}', "line: no JSON"),
    (json.dumps({**MOONCAKE, "input_length": 10**9}), "input_length: expected 1 to 100000000, found 1000000000"),
    (json.dumps({**MOONCAKE, "input_length": 0}), "input_length: expected 1 to"),
    (json.dumps({**MOONCAKE, "input_length": 1000.5}), "input_length: expected a whole number, found 1000.5"),
    (json.dumps({**MOONCAKE, "output_length": -1}), "output_length: expected 0 to"),
    (json.dumps({**MOONCAKE, "hash_ids": [0]}), None),
    (json.dumps({**MOONCAKE, "hash_ids": [0, 1, 2]}), "hash_ids: 3 block ids for 1000 input tokens, expected 2 of 512"),
    (json.dumps({**MOONCAKE, "hash_ids": [0, True]}), "hash_ids: expected a flat list of whole numbers"),
    (json.dumps({**MOONCAKE, "hash_ids": [0, 1.5]}), "hash_ids: expected a flat list"),
    (json.dumps({**MOONCAKE, "hash_ids": [0, [1]]}), "hash_ids: expected a flat list"),
    (json.dumps({**MOONCAKE, "hash_ids": [0, -1]}), "hash_ids: expected a flat list of whole numbers, 0 to"),
    (json.dumps({**MOONCAKE, "hash_ids": [0, 2**70]}), "hash_ids: expected a flat list"),
    (json.dumps({**MOONCAKE, "hash_ids": "0"}), "hash_ids: expected a list"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_a_bad_line_is_named_by_file_line_and_field(tmp_path: Path, line: str, message: str | None) -> None:
    path = put(tmp_path / "bad.jsonl", MOONCAKE, line, MOONCAKE)
    if message is None:
        assert len(list(open_trace(path))) == 3
        return
    with pytest.raises(WorkloadError) as error:
        list(open_trace(path))
    assert f"{path}:2: {message}" in str(error.value)
    assert "on_error=skip" in str(error.value)
    trace = open_trace(path, on_error="skip")
    assert len(list(trace)) == 2
    assert (trace.num_requests, trace.num_skipped) == (2, 1)
    assert f"{path}:2: " in trace.first_error


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2023-11-16 18:15:51,1", "line: 2 columns, the header has 3"),
        ("yesterday,1,1", "TIMESTAMP: expected a date and time"),
        ("2023-11-16 18:15:51,x,1", "ContextTokens: expected a whole number, found 'x'"),
        ("2023-11-16 18:15:51,1,", "GeneratedTokens: expected a whole number, found ''"),
        ("2023-11-16 18:15:49,1,1", "arrival time: "),
    ],
)
def test_a_bad_csv_row_is_named_too(tmp_path: Path, row: str, message: str) -> None:
    path = example("azure", tmp_path)
    put(path, path.read_text().rstrip(), row)
    with pytest.raises(WorkloadError) as error:
        list(open_trace(path))
    assert f"{path}:4: {message}" in str(error.value)


def test_a_byte_order_mark_crlf_and_blank_lines_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "dos.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(MOONCAKE).encode() + b"\r\n\r\n" + json.dumps(MOONCAKE).encode())
    assert len(list(open_trace(path))) == 2


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_file_cut_short_inside_its_compression_is_an_error(tmp_path: Path, suffix: str) -> None:
    lines = b"".join(json.dumps({**MOONCAKE, "timestamp": i + 27}).encode() + b"\n" for i in range(3000))
    if suffix == "gz":
        data = gzip.compress(lines)
    else:
        data = pytest.importorskip("zstandard").compress(lines)
    path = tmp_path / f"cut.{suffix}"
    path.write_bytes(data)
    assert len(list(open_trace(path))) == 3000
    path.write_bytes(data[: len(data) - 40])
    for choice in ("raise", "skip"):
        with pytest.raises(WorkloadError, match="damaged or cut short"):
            list(open_trace(path, format="mooncake", on_error=choice))


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot be read"):
        open_trace(tmp_path / "none.jsonl")
    with pytest.raises(WorkloadError, match="empty"):
        open_trace(put(tmp_path / "empty.jsonl", ""))
    with pytest.raises(WorkloadError, match="no known trace format"):
        open_trace(put(tmp_path / "prompts.jsonl", {"prompt": "hello"}))
    with pytest.raises(WorkloadError, match="this reader knows version 1, found 2"):
        open_trace(put(tmp_path / "new.jsonl", {"format": "kvlab-trace", "version": 2, "block_tokens": 16}))
    path = put(tmp_path / "m.jsonl", MOONCAKE)
    with pytest.raises(InvalidArgument, match="no trace format 'mooncaek'"):
        open_trace(path, format="mooncaek")
    with pytest.raises(InvalidArgument, match=r"700 is no multiple of that; give cache\.block_size=512"):
        open_trace(path, block_tokens=700)
    with pytest.raises(InvalidArgument, match="on_error"):
        open_trace(path, on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match=r":1: header: no column TIMESTAMP"):
        list(open_trace(path, format="azure"))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = tmp_path / f"{count}.jsonl"
        write_trace(path, _many(count))
        tracemalloc.start()
        try:
            assert sum(1 for _ in open_trace(path)) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(200), peak(4_000)
    assert large < small + 50_000, (small, large)


def _many(count: int) -> Iterator[WorkloadRequest]:
    for i in range(count):
        block_ids = np.arange(20 * i, 20 * i + 20)
        yield WorkloadRequest(arrival_s=i, input_tokens=320, output_tokens=1, block_ids=block_ids, block_tokens=16)


def test_the_writer_refuses_what_no_reader_would_take(tmp_path: Path) -> None:
    late = [WorkloadRequest(arrival_s=t, input_tokens=1, output_tokens=1) for t in (2.0, 1.0)]
    with pytest.raises(InvalidArgument, match=r"request 1 arrives at 1.0 s, after one at 2.0 s"):
        write_trace(tmp_path / "t.jsonl", late)
    blocks = WorkloadRequest(arrival_s=0, input_tokens=8, output_tokens=1, block_ids=np.array([1]), block_tokens=8)
    with pytest.raises(InvalidArgument, match="blocks of 8 tokens, the file 16"):
        write_trace(tmp_path / "t.jsonl", [blocks], block_tokens=16)


def test_contents_are_written_and_read_and_in_the_names_of_blocks(tmp_path: Path) -> None:
    space = Namespace(salt="s", contents=((1, 4, "cat"),))
    request = WorkloadRequest(prompt=np.arange(20), output_tokens=1, namespace=space)
    write_trace(tmp_path / "t.jsonl", [request])
    (read,) = open_trace(tmp_path / "t.jsonl")
    assert read.namespace == space
    named, plain = (name_blocks(np.arange(20), 16, one).tolist() for one in (space, space.root))
    assert ids(read) == named != plain


def test_real_traces_are_distinguished_by_their_first_line(traces: Path) -> None:
    expected = {
        "mooncake_conversation_trace.jsonl.gz": ("mooncake", 12_031),
        "agentic_coding_100_sessions.jsonl.gz": ("runs", 4_732),
        "AzureLLMInferenceTrace_conv.csv.gz": ("azure", 19_366),
        "vidur_arxiv_summarization_lengths.csv.gz": ("vidur", 28_257),
    }
    for name, (format_name, count) in expected.items():
        path = traces / name
        if not path.exists():
            continue
        assert detect_format(path) == format_name
        assert sum(1 for _ in open_trace(path)) == count, name


def test_arrivals_sessions_and_names_of_a_vidur_file_are_read(tmp_path: Path) -> None:
    """They vanished without a word: every request came at 0 s."""
    path = put(
        tmp_path / "v.csv",
        "arrived_at,num_prefill_tokens,num_decode_tokens,session_id,block_hash_ids",
        f"0.5,40,3,a,11|22|{2**64 - 1}",
        "7.25,32,4,b,11|22",
    )
    trace = open_trace(path)
    first, second = trace
    assert (trace.format, trace.block_tokens, second.block_tokens) == ("vidur", 16, 16)
    assert [(one.arrival_s, one.session) for one in (first, second)] == [(0.5, "a"), (7.25, "b")]
    assert (ids(first), ids(second)) == ([11, 22, 2**62], [11, 22])
    (again, _) = open_trace(put(tmp_path / "w.csv", "num_prefill_tokens,num_decode_tokens,block_hash_ids",
                                "40,3,11|22|33|44|55", "8,1,11"), block_tokens=8)  # fmt: skip
    assert len(ids(again)) == 5
    with pytest.raises(WorkloadError, match="2: block_hash_ids: 5 block ids for 40 input tokens, expected 3 of 16"):
        list(open_trace(tmp_path / "w.csv"))


@pytest.mark.parametrize(
    ("times", "asked", "unit", "arrivals"),
    [
        ([0.0, 0.2, 0.4], "auto", "s", [0.0, 0.2, 0.4]),
        ([0.0, 0.2, 0.4], "ms", "ms", [0.0, 0.0002, 0.0004]),
        ([0, 200, 400], "auto", "ms", [0.0, 0.2, 0.4]),
        ([0.0, 200.5, 400.5], "auto", "ms", [0.0, 0.2005, 0.4005]),
        ([0.0, 0.0, 0.0], "auto", "ms", [0.0, 0.0, 0.0]),
        ([0, 1, 2], "s", "s", [0.0, 1.0, 2.0]),
    ],
)
def test_times_in_seconds_are_known_from_milliseconds(
    times: list[float], asked: str, unit: str, arrivals: list[float], tmp_path: Path
) -> None:
    path = put(tmp_path / "g.jsonl", *({**MOONCAKE, "timestamp": time} for time in times))
    trace = open_trace(path, time_unit=asked)
    assert [one.arrival_s for one in trace] == pytest.approx(arrivals)
    assert (trace.time_unit, trace.guessed_time_unit) == (unit, asked == "auto" and unit == "s")


def test_a_unit_is_refused_where_a_format_has_one_alone(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "num_prefill_tokens,num_decode_tokens", "5,5")
    with pytest.raises(InvalidArgument, match="times of format vidur have one unit; leave time_unit out"):
        open_trace(path, time_unit="ms")
    with pytest.raises(InvalidArgument, match="time_unit must be auto, s, ms, us, found 'h'"):
        open_trace(path, time_unit="h")


def test_names_of_64_bits_are_names(tmp_path: Path) -> None:
    """Dynamo's hashes are u64. Two bounds stood in two messages, and larger names were refused."""
    large = [2**62, 2**63, 2**64 - 1]
    path = put(
        tmp_path / "u.jsonl", {**MOONCAKE, "hash_ids": large[:2]}, {**MOONCAKE, "hash_ids": [large[1], large[2]]}
    )
    trace = open_trace(path)
    for _ in range(2):  # each pass names alike
        assert [ids(one) for one in trace] == [[2**62, 2**62 + 1], [2**62 + 1, 2**62 + 2]]
    for wrong in (-1, 2**64, 2**70, 1.5):
        with pytest.raises(WorkloadError, match=f"hash_ids: .* whole numbers, 0 to {2**64 - 1}, found {wrong};"):
            list(open_trace(put(tmp_path / "x.jsonl", {**MOONCAKE, "hash_ids": [0, wrong]})))
    own = tmp_path / "own.jsonl"
    write_trace(own, open_trace(path))
    assert [ids(one) for one in open_trace(own)] == [ids(one) for one in trace]
