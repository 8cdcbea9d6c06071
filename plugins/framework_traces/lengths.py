"""Traces of lengths and times: Azure, BurstGPT and Vidur, CSV with a header line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from framework.interfaces.workload import WorkloadRequest
from framework_workloads.trace.format import (
    BlockNames,
    CsvReader,
    FieldError,
    Line,
    check_block_count,
    integer,
    number,
    text,
)

_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_TIME_EXAMPLE = "2023-11-16 18:15:46.68"


class Azure(CsvReader):
    """Azure LLM inference: TIMESTAMP (date and time, UTC unless it says otherwise), ContextTokens, GeneratedTokens.

    Source: Azure/AzurePublicDataset, LLM inference traces 2023 and 2024; Patel et al., ISCA'24, arXiv:2311.18677.
    """

    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    absolute_times = True

    example: ClassVar[Mapping[str, str]] = {
        "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    }

    def parse(self, record: Mapping[str, str]) -> WorkloadRequest:
        """One row."""
        return _lengths(seconds(record, "TIMESTAMP"), record, "ContextTokens", "GeneratedTokens")


class BurstGpt(CsvReader):
    """BurstGPT: Timestamp (s), Model, Request tokens, Response tokens; failed requests have 0 response tokens.

    Source: Wang et al. 2024, arXiv:2401.17644; github.com/HPMLL/BurstGPT.
    """

    columns = ("Timestamp", "Request tokens", "Response tokens")

    example: ClassVar[Mapping[str, str]] = {
        "burstgpt.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n"
    }

    def parse(self, record: Mapping[str, str]) -> WorkloadRequest:
        """One row; `Session ID` where the file has it, `Log Type` as the category."""
        return _lengths(number(record, "Timestamp"), record, "Request tokens", "Response tokens",
                        session=text(record, "Session ID"), category=text(record, "Log Type"))  # fmt: skip


class Vidur(CsvReader):
    """Vidur and its kin: num_prefill_tokens, num_decode_tokens, and where they have them arrived_at (s), session_id and
    block_hash_ids, names of prompt blocks as 11|22.

    Without arrived_at every request arrives at 0 s. Blocks have 16 tokens unless `block_tokens` says otherwise.
    Source: Agrawal et al., MLSys'24, arXiv:2405.05465; github.com/microsoft/vidur.
    """

    columns = ("num_prefill_tokens", "num_decode_tokens")
    block_tokens = 16
    sizes_vary = True

    example: ClassVar[Mapping[str, str]] = {
        "vidur.csv": "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n90,1,91,90\n"
    }

    def __init__(self) -> None:
        self._names = BlockNames()

    def block_size(self, head: Sequence[Line], asked: int | None) -> int:
        """0 without a column of names."""
        return super().block_size(head, asked) if head and b"block_hash_ids" in head[0][1] else 0

    def parse(self, record: Mapping[str, str]) -> WorkloadRequest:
        """One row."""
        arrival_s = number(record, "arrived_at") if "arrived_at" in record else 0.0
        facts: dict[str, Any] = {"session": text(record, "session_id")}
        if "block_hash_ids" in record:
            names = [integer({"block_hash_ids": name}, "block_hash_ids", 0, 2**64 - 1)
                     for name in record["block_hash_ids"].split("|") if name]  # fmt: skip
            ids = self._names.ids({"block_hash_ids": names}, "block_hash_ids")
            check_block_count("block_hash_ids", len(ids), integer(record, "num_prefill_tokens", 1), self.block_tokens)
            facts |= {"block_ids": ids, "block_tokens": self.block_tokens}
        return _lengths(arrival_s, record, *self.columns, **facts)


def _lengths(arrival_s: float, record: Mapping[str, str], prompt: str, output: str, **facts: Any) -> WorkloadRequest:
    lengths: dict[str, Any] = {"input_tokens": integer(record, prompt, 1), "output_tokens": integer(record, output, 0)}
    return WorkloadRequest(arrival_s=arrival_s, **lengths, **facts)


def seconds(record: Mapping[str, Any], field: str) -> float:
    """Seconds since 1970 of the date and time in `field`; its offset from UTC is honoured, none means UTC.

    Raises:
        FieldError: missing, or no such date and time.
    """
    value = record.get(field)
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    try:
        if match is None:
            raise ValueError
        whole, decimals, zone = match.groups()
        offset = "+00:00" if zone in (None, "Z") else f"{zone[:3]}:{zone[-2:]}"
        base = datetime.fromisoformat(whole.replace("T", " ") + offset).astimezone(UTC)
        result = base.timestamp() + (int(decimals) / 10 ** len(decimals) if decimals else 0.0)
    except (ValueError, OverflowError):
        problem = f"expected a date and time such as {_TIME_EXAMPLE}, found {str(value)[:40]!r}"
        raise FieldError(field, "missing" if value is None else problem) from None
    if result < 0:
        raise FieldError(field, f"expected a time since 1970, found {str(value)[:40]!r}")
    return result
