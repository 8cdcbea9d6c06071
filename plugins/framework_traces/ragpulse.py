"""RAGPulse: requests of a retrieval service, each prompt a list of named chunks of known lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from framework.errors import WorkloadError
from framework.interfaces.workload import WorkloadRequest, name_blocks
from framework.types import TokenArray
from framework_workloads.lines import read_lines
from framework_workloads.trace.format import (
    FieldError,
    JsonLinesReader,
    Line,
    Record,
    first_object,
    integer,
    integers,
    json_object,
    number,
    text,
)

_CHUNK_FILES = ("1_sys_prompt", "2_passages", "3_history", "4_user_input", "5_web_search")
_MAX_CHUNK_TOKENS = 2**20
_UNNAMED = 2**30
"""Tokens that no chunk names are numbered from here, each of them once; chunks' tokens from 0."""


class RagPulse(JsonLinesReader):
    """RAGPulse: `timestamp` s, `input_length`, `output_length`, `hash_ids` as an object of chunk ids per part.

    Chunks have lengths of their own, which lie in the files published beside the trace (1_sys_prompt.jsonl to
    5_web_search.jsonl, plain or .gz). A prompt is the tokens of its chunks in the order of its parts, so that two
    prompts share exactly their common leading chunks, at any block size. Tokens that `input_length` counts beyond the
    chunks are nobody else's. `category` is "web" or "chat" by whether anything was searched on the web.
    The published file is two weeks, one after the other, each with a clock of its own: where the clock starts again,
    at or before the file's first time, the second week goes on from the last time of the first.
    Source: Wang et al. 2025, arXiv:2511.12979; github.com/flashserve/RAGPulse.
    """

    block_tokens = 16
    sizes_vary = True

    example: ClassVar[Mapping[str, str]] = {
        "0_trace.jsonl": '{"timestamp": "82", "input_length": 40, "output_length": 19, "hash_ids": {"sys_prompt": [1], '
        '"passages_ids": [2, 3], "history": [], "web_search": [], "user_input": [4]}, "session_id": "s-1"}\n'
        '{"timestamp": "93", "input_length": 39, "output_length": 8, "hash_ids": {"sys_prompt": [1], '
        '"passages_ids": [3, 2], "history": [], "web_search": [], "user_input": []}, "session_id": "s-2"}\n',
        "1_sys_prompt.jsonl": '{"sys_prompt_id": 1, "token_length": 16}\n',
        "2_passages.jsonl": '{"passages_id": 2, "token_length": 12}\n{"passages_id": 3, "token_length": 8}\n',
        "3_history.jsonl": "\n",
        "4_user_input.jsonl": '{"user_input_id": 4, "token_length": 4}\n',
        "5_web_search.jsonl": "\n",
    }

    def __init__(self) -> None:
        self._chunks: dict[int, tuple[int, int]] = {}
        self._num_unnamed = 0
        self._start_s: float | None = None
        self._last_s = self._before_s = 0.0

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        """By `hash_ids` as an object."""
        return isinstance(first_object(head).get("hash_ids"), dict)

    def read(self, lines: Iterator[Line], path: Path) -> Iterator[Record]:
        """See TraceReader; keeps two numbers a chunk."""
        self._chunks = _chunks(path.parent)
        return super().read(lines, path)

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        """One line."""
        parts = record.get("hash_ids")
        if not isinstance(parts, dict):
            raise FieldError("hash_ids", "expected an object of one list of chunk ids per part")
        names = {f"hash_ids.{part}": ids for part, ids in parts.items()}
        tokens = self._tokens([integers(names, part).tolist() for part in names], integer(record, "input_length", 1))
        request = WorkloadRequest(
            prompt=tokens,
            arrival_s=number(record, "timestamp"),
            output_tokens=integer(record, "output_length", 0),
            block_ids=name_blocks(tokens, self.block_tokens),
            block_tokens=self.block_tokens,
            session=text(record, "session_id"),
            category="web" if parts.get("web_search") else "chat",
        )
        return replace(request, arrival_s=self._continued(request.arrival_s))

    def _continued(self, time_s: float) -> float:
        """A line's time on one clock for the whole file."""
        self._start_s = time_s if self._start_s is None else self._start_s
        if time_s <= self._start_s and time_s < self._last_s - self._before_s:
            self._before_s = self._last_s
        self._last_s = max(self._last_s, self._before_s + time_s)
        return self._before_s + time_s

    def _tokens(self, parts: Sequence[Sequence[int]], input_tokens: int) -> TokenArray:
        pieces = []
        for chunk in chain.from_iterable(parts):
            if chunk not in self._chunks:
                raise FieldError("hash_ids", f"chunk {chunk} has no length in {', '.join(_CHUNK_FILES)}")
            first, length = self._chunks[chunk]
            pieces.append(np.arange(first, first + length, dtype=np.int32))
        rest = input_tokens - sum(map(len, pieces))
        if rest < 0:
            raise FieldError("input_length", f"{input_tokens}, but its chunks hold {input_tokens - rest} tokens")
        unnamed = _UNNAMED + (self._num_unnamed + np.arange(rest)) % (2**31 - _UNNAMED)
        self._num_unnamed += rest
        return np.concatenate([*pieces, unnamed.astype(np.int32)])


def _chunks(folder: Path) -> dict[int, tuple[int, int]]:
    """Chunk id -> (first token, length); every chunk's tokens are its own."""
    chunks: dict[int, tuple[int, int]] = {}
    used = 0
    for name in _CHUNK_FILES:
        file = next((f for f in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz") if f.is_file()), None)
        if file is None:
            raise WorkloadError(
                f"{folder / name}.jsonl is not there: RAGPulse publishes the lengths of its chunks in five files "
                "beside the trace; put them into the same folder"
            )
        for line_number, line in read_lines(file):
            try:
                chunk, length = _chunk(json_object(line))
            except FieldError as error:
                raise WorkloadError(f"{file}:{line_number}: {error}") from error
            if chunk in chunks:
                raise WorkloadError(
                    f"{file}:{line_number}: chunk {chunk} appears twice, here and before, there with "
                    f"{chunks[chunk][1]} tokens; a chunk has one length, in one of {', '.join(_CHUNK_FILES)}"
                )
            chunks[chunk] = used, length
            used += length
    if used >= _UNNAMED:
        raise WorkloadError(f"{folder}: chunks of {used} tokens in all, more than the {_UNNAMED} that can be numbered")
    return chunks


def _chunk(record: Mapping[str, Any]) -> tuple[int, int]:
    names = [key for key in record if key != "token_length"]
    if len(names) != 1:
        raise FieldError("line", "expected an object of a chunk's id and its token_length")
    return integer(record, names[0], 0, 2**62), integer(record, "token_length", 0, _MAX_CHUNK_TOKENS)
