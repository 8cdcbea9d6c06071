"""Traces of lengths and times only: Azure, BurstGPT, Vidur. CSV with a header line."""

from __future__ import annotations

from datetime import datetime, timezone

from framework.workload.traces.record import FieldError, TraceRequest, integer, number, text

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
VIDUR_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")


def azure(record: dict[str, str], block_tokens: int) -> TraceRequest:
    """TIMESTAMP (UTC date and time, up to 7 decimals), ContextTokens, GeneratedTokens.

    `arrival_s` is seconds since 1970 here; the reader subtracts the first line's.
    Source: Azure/AzurePublicDataset, LLM inference traces 2023 and 2024; Patel et al., ISCA'24, arXiv:2311.18677.
    """
    return _lengths(_seconds(record, "TIMESTAMP"), record, "ContextTokens", "GeneratedTokens")


def burstgpt(record: dict[str, str], block_tokens: int) -> TraceRequest:
    """Timestamp (s), Model, Request tokens, Response tokens, ...; failed requests have 0 response tokens.

    Source: Wang et al. 2024, arXiv:2401.17644; github.com/HPMLL/BurstGPT.
    """
    return _lengths(
        number(record, "Timestamp"), record, "Request tokens", "Response tokens", text(record, "Session ID")
    )


def vidur(record: dict[str, str], block_tokens: int) -> TraceRequest:
    """num_prefill_tokens, num_decode_tokens, ...: no times, so every request arrives at 0 s.

    Source: Agrawal et al., MLSys'24, arXiv:2405.05465; github.com/microsoft/vidur.
    """
    return _lengths(0.0, record, *VIDUR_COLUMNS)


def _lengths(arrival_s: float, record: dict[str, str], prompt: str, output: str, session: str = "") -> TraceRequest:
    return TraceRequest(
        arrival_s=arrival_s,
        input_tokens=integer(record, prompt, 1),
        output_tokens=integer(record, output, 0),
        session=session,
    )


def _seconds(record: dict[str, str], field: str) -> float:
    value = record.get(field) or ""
    whole, _, decimals = value.partition(".")
    decimals, zone = decimals.removesuffix("+00:00").removesuffix("Z"), timezone.utc
    try:
        base = datetime.fromisoformat(whole.removesuffix("Z").removesuffix("+00:00")).replace(tzinfo=zone)
        return base.timestamp() + (int(decimals) / 10 ** len(decimals) if decimals else 0.0)
    except ValueError:
        example = "2023-11-16 18:15:46.68"
        raise FieldError(field, f"expected a date and time such as {example}, found {value[:40]!r}") from None
