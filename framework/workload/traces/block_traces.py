"""Traces that name prompt blocks: Mooncake, Qwen-Bailian and its kin, run-length coded agent traces."""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.workload.traces.record import (
    MAX_TOKENS,
    BlockIdArray,
    FieldError,
    TraceRequest,
    check_block_count,
    integer,
    integers,
    number,
    text,
)

MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16
RUNS_BLOCK_TOKENS = 64


def mooncake(record: dict[str, Any], block_tokens: int) -> TraceRequest:
    """One line of a Mooncake trace: `timestamp` ms, `input_length`, `output_length`, `hash_ids` of prefix blocks.

    Source: Qin et al., FAST'25, arXiv:2407.00079 §4.1; github.com/kvcache-ai/Mooncake.
    """
    return _hash_ids(record, block_tokens, per_second=1000)


def bailian(record: dict[str, Any], block_tokens: int) -> TraceRequest:
    """One line of a Qwen-Bailian trace: as Mooncake's, `timestamp` in seconds, with `chat_id`, `turn` and `type`.

    `session` is the line's own `chat_id`; each turn has one, and its `parent_chat_id` is not followed.
    Source: Wang et al., ATC'25, arXiv:2506.02634; github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
    """
    return _hash_ids(record, block_tokens, per_second=1)


def _hash_ids(record: dict[str, Any], block_tokens: int, per_second: int) -> TraceRequest:
    input_tokens = integer(record, "input_length", 1)
    ids = integers(record, "hash_ids")
    check_block_count("hash_ids", len(ids), input_tokens, block_tokens)
    session = text(record, "session_id") or text(record, "chat_id")
    return TraceRequest(
        arrival_s=number(record, "timestamp") / per_second,
        input_tokens=input_tokens,
        output_tokens=integer(record, "output_length", 0),
        block_ids=ids,
        block_tokens=block_tokens,
        session=session,
        tenant=text(record, "tenant"),
    )


def runs(record: dict[str, Any], block_tokens: int) -> TraceRequest:
    """One line of a run-length coded agent trace: `runs` = [[first id, count], ...] instead of `hash_ids`.

    `timestamp` is in milliseconds; ids are unique within `scope`; only full blocks are named.
    Source: the kv-cache-tester agent traces (callanjfox/kv-cache-tester), coded in runs.
    """
    input_tokens = integer(record, "input_length", 1)
    value = record.get("runs")
    if not isinstance(value, list):
        raise FieldError("runs", "missing" if value is None else "expected a list of [first id, count]")
    pairs = [_pair(run) for run in value]
    check_block_count("runs", sum(count for _, count in pairs), input_tokens, block_tokens)
    return TraceRequest(
        arrival_s=number(record, "timestamp") / 1000,
        input_tokens=input_tokens,
        output_tokens=integer(record, "output_length", 0),
        block_ids=_expand(pairs),
        block_tokens=block_tokens,
        scope=text(record, "scope"),
        session=text(record, "scope"),
    )


def _pair(run: Any) -> tuple[int, int]:
    if not isinstance(run, list) or len(run) != 2:
        raise FieldError("runs", f"expected [first id, count], found {str(run)[:40]}")
    fields = {"runs": run[0], "runs count": run[1]}
    return integer(fields, "runs", 0, 2**62), integer(fields, "runs count", 1, MAX_TOKENS)


def _expand(pairs: list[tuple[int, int]]) -> BlockIdArray:
    if not pairs:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([np.arange(first, first + count, dtype=np.int64) for first, count in pairs])


def coarsen(request: TraceRequest, block_tokens: int) -> TraceRequest:
    """The same request in blocks of `block_tokens`, a multiple of its own.

    Keeps every k-th id: exact where an id names its whole prefix, as in Mooncake's and the agent traces (Qwen-Bailian's
    name a block's own tokens). A partial last block has no name at the coarser size and is left out.

    Raises:
        FieldError: not a multiple.
    """
    if request.block_ids is None or block_tokens == request.block_tokens:
        return request
    factor, rest = divmod(block_tokens, request.block_tokens)
    if rest or factor < 1:
        raise FieldError("block_tokens", f"{block_tokens} is no multiple of the trace's {request.block_tokens}")
    full = request.block_ids[: request.num_full_blocks]
    return TraceRequest(
        arrival_s=request.arrival_s,
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        block_ids=full[factor - 1 :: factor],
        block_tokens=block_tokens,
        scope=request.scope,
        session=request.session,
        tenant=request.tenant,
        tokens=request.tokens,
        output=request.output,
    )
