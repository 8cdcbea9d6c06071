"""A synthetic workload as a trace: what `python -m framework.trace synth` writes and replay reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from framework.errors import ConfigError, InvalidArgument
from framework.workload import stream
from framework.workload.scenarios import SyntheticRequest
from framework.workload.traces.own_format import name_blocks
from framework.workload.traces.record import TraceRequest

SYNTHETIC = ("system_prompts", "conversations", "agents", "rag", "forks")
"""Workloads that know their own answers, and so can be written as traces."""


def synthetic_trace(
    name: str, options: Mapping[str, Any] | None = None, *, seed: int = 0, block_tokens: int | None = None
) -> Iterator[TraceRequest]:
    """The requests of a synthetic workload as trace requests, one at a time.

    Args:
        name: one of SYNTHETIC.
        options: of that workload.
        block_tokens: name prompts in blocks of this size, a partial last one included, instead of writing out tokens:
            much shorter, but outputs are then lengths.

    Raises:
        ConfigError: no such workload, or an option it does not have or allow.
    """
    if name not in SYNTHETIC:
        raise ConfigError(f"no synthetic trace named {name!r}; there are: {', '.join(SYNTHETIC)}")
    if block_tokens is not None and block_tokens < 1:
        raise InvalidArgument(f"block_tokens must be at least 1, found {block_tokens}")
    return as_trace(stream(name, options, seed), block_tokens)


def as_trace(requests: Iterable[Any], block_tokens: int | None) -> Iterator[TraceRequest]:
    """SyntheticRequests as trace requests; see synthetic_trace."""
    for request in requests:
        assert isinstance(request, SyntheticRequest)
        tokens = request.tokens
        whole = block_tokens is None
        yield TraceRequest(
            arrival_s=request.arrival_s,
            input_tokens=len(tokens),
            output_tokens=len(request.output),
            block_ids=None if block_tokens is None else name_blocks(tokens, block_tokens),
            block_tokens=block_tokens or 0,
            session=request.session,
            tenant=request.tenant,
            tokens=tokens if whole else None,
            output=request.output if whole else None,
            n=request.sampling.n,
            beam_width=request.sampling.beam_width,
        )
