"""Our own trace file: one JSON header line, then one JSON object a request. Version 1.

Header: `{"format": "kvlab-trace", "version": 1, "block_tokens": 16, ...}`; `"clock": "steps"` says that
arrivals count the scheduler's steps before them, and a request may have `seconds` beside them; further keys are free
notes. Request: `arrival_s` (seconds or steps, non-decreasing) and `output_tokens`, and one of

* `tokens`, the prompt's token ids; `output`, the generated ids, may stand for `output_tokens`, and a full replay
  generates them again;
* `block_ids` with `input_tokens`: names of the prompt's blocks of `block_tokens` tokens, a partial last one counted
  or not; equal names after equal names are equal content;
* `input_tokens` alone: lengths only.

`scope`, `session`, `tenant`, `category` and `key` are optional texts, `turn` and `priority` optional whole numbers;
`after` is a list of the keys of requests whose answers it waits for in a closed loop, `delay_s` how long from the last
of them, `not_before_s` the earliest time;
`hint` an optional object of `continues`, `returns_s` and `deadline_s`; `n` (samples) and `beam_width` are optional
numbers, not both above 1. Two statements of one length must agree. A reader refuses a version it does not know.
`framework_traces.writing` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from framework.errors import ConfigError
from framework.interfaces.workload import Namespace, Sampling, WorkloadRequest, answer, name_blocks
from framework.types import TokenArray
from framework_workloads.trace.format import (
    BlockNames,
    FieldError,
    HeadedReader,
    Line,
    check_block_count,
    contents,
    facts_of,
    first_object,
    integer,
    number,
    text,
    texts,
    token_ids,
)

FORMAT, VERSION = "kvlab-trace", 1
DEFAULT_BLOCK_TOKENS = 16
SYNTHETIC = ("system_prompts", "conversations", "agents", "rag", "forks")
"""Our workloads that know their own answers. Others of token ids can be written as well, with answers of a length."""
_MAX_FORKS = 1024


class OwnFormat(HeadedReader):
    """This framework's own: a header line, then one JSON object a request, with tokens, block ids or lengths."""

    header = FORMAT, VERSION
    block_tokens = DEFAULT_BLOCK_TOKENS
    in_seconds = False
    """Whether arrivals of a file in steps are the seconds beside them."""

    example: ClassVar[Mapping[str, str]] = {
        "own.jsonl": '{"format": "kvlab-trace", "version": 1, "block_tokens": 4}\n'
        '{"arrival_s": 0.0, "tokens": [1, 2, 3, 4, 5], "output": [6], "session": "s", "turn": 0}\n'
        '{"arrival_s": 0.5, "input_tokens": 9, "block_ids": [3, 4, 5], "output_tokens": 2, "hint": {"continues": 1}}\n'
        '{"arrival_s": 0.5, "input_tokens": 9, "output_tokens": 0}\n'
    }

    def __init__(self) -> None:
        self._names = BlockNames()

    def block_size(self, head: Sequence[Line], asked: int | None) -> int:
        """The header's, or what is asked where prompts are tokens."""
        super().block_size(head, asked)
        size = integer(first_object(head), "block_tokens", 1)
        return asked if asked is not None and "tokens" in first_object(head[1:]) else size

    def in_steps(self, head: Sequence[Line]) -> bool:
        """By the header's `clock`."""
        return first_object(head).get("clock") == "steps"

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        """One request line. Token-level prompts get block ids by `name_blocks`."""
        tokens = token_ids(record, "tokens") if "tokens" in record else None
        output = token_ids(record, "output") if record.get("output") is not None else None
        input_tokens = _length(record, "input_tokens", tokens, 1)
        output_tokens = _length(record, "output_tokens", output, 0)
        if input_tokens == 0:
            raise FieldError("tokens", "a prompt has at least one token")
        space = Namespace(salt=text(record, "scope") or "", contents=contents(record, input_tokens))
        ids = name_blocks(tokens, self.block_tokens, space) if tokens is not None else None
        if tokens is None and space.contents:
            raise FieldError("contents", "expected beside tokens; block_ids name whatever a block holds")
        if "block_ids" in record:
            ids = self._names.ids(record, "block_ids")
            check_block_count("block_ids", len(ids), input_tokens, self.block_tokens)
        return WorkloadRequest(
            prompt=tokens,
            input_tokens=input_tokens,
            block_ids=ids,
            block_tokens=self.block_tokens if ids is not None else 0,
            output=output,
            output_tokens=output_tokens,
            sampling=_sampling(record, output_tokens),
            arrival_s=number(record, "seconds" if self.in_seconds else "arrival_s"),
            after=texts(record, "after"),
            delay_s=number(record, "delay_s") if "delay_s" in record else 0.0,
            not_before_s=number(record, "not_before_s") if "not_before_s" in record else 0.0,
            namespace=space,
            **facts_of(record),
        )


def _length(record: Mapping[str, Any], field: str, tokens: TokenArray | None, low: int) -> int:
    """The length that `field` states, or that of the tokens; both must agree."""
    if tokens is None:
        return integer(record, field, low)
    if field in record and integer(record, field, 0) != len(tokens):
        raise FieldError(field, f"says {str(record[field])[:40]}, but there are {len(tokens)} token ids")
    return len(tokens)


def _sampling(record: Mapping[str, Any], output_tokens: int) -> Sampling:
    n, beam_width = (integer(record, key, 1, _MAX_FORKS) if key in record else 1 for key in ("n", "beam_width"))
    if min(n, beam_width) > 1:
        raise FieldError("n", f"expected 1 beside a beam_width of {beam_width}, found {n}")
    return answer(output_tokens, n, beam_width)


def as_trace(requests: Iterable[WorkloadRequest], block_tokens: int | None = None) -> Iterator[WorkloadRequest]:
    """The requests of a workload of token ids as a trace records them, one at a time.

    Args:
        block_tokens: name prompts in blocks of this size, a partial last one included, instead of writing out tokens:
            much shorter, but outputs are then lengths.

    Raises:
        ConfigError: a request of text.
    """
    for request in requests:
        if request.tokens is None:
            raise ConfigError(f"a trace holds token ids, this workload has text; choose one of {', '.join(SYNTHETIC)}")
        output_tokens = request.sampling.max_tokens if request.output_tokens is None else request.output_tokens
        recorded = replace(request, output_tokens=output_tokens)
        if block_tokens is not None:
            ids = name_blocks(request.tokens, block_tokens, request.namespace)
            recorded = replace(
                recorded, prompt=None, output=None, block_ids=ids, block_tokens=block_tokens,
                namespace=request.namespace.root,
            )  # fmt: skip
        yield recorded
