"""Stop texts end a sequence at the token that completes them, wherever tokens begin and end; streams add up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fake_engines import make_llm
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.engine.request import Status
from framework.engine.streaming import RecordedEnd, StopTexts, TextStream, cut_at_stop, num_certain
from framework.errors import InvalidArgument, RequestFailed
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.model.tokenizer import ByteTokenizer
from framework.sampling import Sampling

PIECES = ["a", "b", "ab", "ba", "é", "\n", "aab", "🙂", "🙂a"]
BYTES = ByteTokenizer()


def decode(ids: Sequence[int]) -> str:
    return "".join(PIECES[i] for i in ids)


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, len(PIECES) - 1), max_size=12),
    stops=st.lists(st.text(alphabet="abé\n🙂", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_a_sequence_ends_with_the_first_token_whose_text_holds_a_stop(ids, stops):
    watch = StopTexts(decode, stops)
    found = [watch.push(token) for token in ids]
    for end in range(len(ids)):
        holds = any(stop in decode(ids[: end + 1]) for stop in stops)
        if not any(found[:end]):
            assert found[end] == holds, (ids[: end + 1], stops)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=20), stops=st.lists(st.text(min_size=1, max_size=3), max_size=2))
def test_bytes_of_any_text_are_streamed_as_that_text_and_stop_where_they_should(text, stops):
    stream, ids = TextStream(BYTES.decode), list(text.encode("utf-8", "replace"))
    whole = BYTES.decode(ids)
    assert "".join([stream.push(token) for token in ids]) + stream.pending == whole
    if stops:
        watch = StopTexts(BYTES.decode, stops)
        ends = [end for end, token in enumerate(ids, start=1) if watch.push(token)]
        texts = [BYTES.decode(ids[:end]).rstrip("\ufffd") for end in range(1, len(ids) + 1)]
        seen = [any(stop in text for stop in stops) for text in texts]
        assert (ends[0] if ends else 0) == (seen.index(True) + 1 if True in seen else 0), (whole, stops)


@given(text=st.text(alphabet="ab", max_size=10), stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4)))
def test_what_is_certain_is_part_of_the_answer_however_it_goes_on(text, stops):
    sure = text[: num_certain(text, stops)]
    if any(stop in text for stop in stops):
        return
    for more in ("", "a", "b", "ab", "ba", "bb", "aaa", "bab"):
        assert cut_at_stop(text + more, stops).startswith(sure), (text, more, stops)


def test_a_replay_ends_where_the_recording_did():
    end = RecordedEnd(2)
    assert [end.push(1), end.push(1)] == [False, True]
    assert not RecordedEnd(None).push(1)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", cache=CacheOptions(num_blocks=64, block_size=4), engine=EngineOptions(max_batch_requests=4))


def test_stop_texts_cut_greedy_text_at_any_place(llm: LLM):
    free = llm.generate("Hello world", Sampling(max_tokens=24, ignore_eos=True))[0].completions[0]
    for start in range(0, 20, 3):
        stop = free.text[start : start + 3]
        request = llm.generate("Hello world", Sampling(max_tokens=24, ignore_eos=True, stop=stop))[0]
        (found,) = request.completions
        where = free.text.find(stop)
        assert (found.text, found.finish_reason) == (free.text[:where], "stop")
        assert found.tokens == free.tokens[: where + 3], "one byte a token: the stop's own are kept"


def test_each_sample_stops_by_itself_and_streams_what_generate_returns(llm: LLM):
    sampling = Sampling(max_tokens=30, temperature=1.0, n=3, seed=7, stop=("a", "q1"), ignore_eos=True)
    whole = llm.generate("Hello", sampling)[0].completions
    plain = llm.generate("Hello", Sampling(max_tokens=30, temperature=1.0, n=3, seed=7, ignore_eos=True))[0].completions
    assert [c.text for c in whole] == [cut_at_stop(c.text, ("a", "q1")) for c in plain]
    parts = list(llm.stream("Hello", sampling))
    for index, completion in enumerate(whole):
        mine = [part for part in parts if part.index == index]
        assert "".join(part.text for part in mine) == completion.text
        assert [token for part in mine for token in part.tokens] == completion.tokens
        assert [part.finish_reason for part in mine] == [None] * (len(mine) - 1) + [completion.finish_reason]


def test_streams_take_turns_and_one_left_early_is_cancelled(llm: LLM):
    wanted = llm.generate("abc", Sampling(max_tokens=12, ignore_eos=True))[0].completions[0].text
    first = llm.stream("abc", Sampling(max_tokens=12, ignore_eos=True))
    with llm.stream("xyz", Sampling(max_tokens=100, ignore_eos=True)) as second:
        parts = [next(first), next(second), next(first)]
        assert [part.index for part in parts] == [0, 0, 0]
    assert second.request.status is Status.CANCELLED
    assert "".join(part.text for part in (parts[0], parts[2], *first)) == wanted
    assert llm.stats()["used_blocks"] == 0


def test_a_stream_that_cannot_be_says_why(llm: LLM):
    with pytest.raises(RequestFailed, match=r"rejected: .* raise cache.num_blocks: the pool's 64 blocks hold 256"):
        list(llm.stream("abc", Sampling(max_tokens=1000)))
    with pytest.raises(InvalidArgument, match="a beam search cannot be streamed"):
        llm.stream("abc", Sampling(beam_width=2))


def test_a_cancelled_request_ends_its_stream(llm: LLM):
    stream = llm.stream("abc", Sampling(max_tokens=50, ignore_eos=True))
    next(stream)
    llm.cancel(stream.request)
    assert [part.finish_reason for part in stream][-1] == "aborted"


def test_priorities_tenants_sessions_and_namespaces_are_one_for_all_or_one_each():
    events: list[tuple[str, int]] = []

    def log(event: str, **facts: object) -> None:
        if event == "admit":
            events.append((event, facts["request"]))

    llm = make_llm("tiny", num_blocks=64, log=log, engine=EngineOptions(max_batch_requests=1))
    requests = llm.generate(["a", "b", "c"], Sampling(max_tokens=2), priority=[0, 5, 1], tenant="t",
                            session=["x", None, "y"], namespace="salt")  # fmt: skip
    assert [number for _, number in events] == [1, 2, 0], "the most important first"
    assert [(r.tenant, r.session, r.namespace.salt) for r in requests] == [
        ("t", "x", "salt"), ("t", None, "salt"), ("t", "y", "salt"),
    ]  # fmt: skip
    with pytest.raises(InvalidArgument, match="2 prompts but 1 tenants; give one for all or one each"):
        llm.generate(["a", "b"], tenant=["t"])
    for wrong in ({"priority": 10**30}, {"priority": 1.5}, {"tenant": "\ud800"}, {"session": 3}):
        with pytest.raises(InvalidArgument):
            llm.generate("a", **wrong)
    assert llm.stats()["unfinished"] == 0
