"""The trace format of GatewayLog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from framework.interfaces.workload import WorkloadRequest
from framework_workloads.trace.format import (
    FieldError,
    JsonLinesReader,
    Line,
    check_block_count,
    integer,
    integers,
    json_object,
    number,
    text,
)


class GatewayLog(JsonLinesReader):
    """JSON lines of `at`, `prompt_len`, `answer_len` and `pages`."""

    block_tokens = 16
    example: ClassVar[Mapping[str, str]] = {
        "gateway_log.jsonl": '{"at": 0.0, "prompt_len": 20, "answer_len": 3, "pages": [1, 2], "who": "ann"}\n'
        '{"at": 1.5, "prompt_len": 33, "answer_len": 7, "pages": [1, 2, 9], "who": "ann"}\n'
    }

    @classmethod
    def recognises(cls, head: Sequence[Line], path: Path) -> bool:
        try:
            return bool(head) and {"at", "prompt_len", "pages"} <= json_object(head[0][1]).keys()
        except FieldError:
            return False

    def parse(self, record: Mapping[str, Any]) -> WorkloadRequest:
        length, pages = integer(record, "prompt_len", 1), integers(record, "pages")
        check_block_count("pages", len(pages), length, self.block_tokens)
        return WorkloadRequest(
            arrival_s=number(record, "at"),
            input_tokens=length,
            output_tokens=integer(record, "answer_len", 0),
            block_ids=pages,
            block_tokens=self.block_tokens,
            session=text(record, "who"),
        )
