"""A workload of token ids as a trace: what `python -m framework.trace synth` writes and replay reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from framework.errors import ConfigError, InvalidArgument
from framework.interfaces.workload import WorkloadRequest
from framework.workload import stream
from framework.workload.traces.own_format import name_blocks

SYNTHETIC = ("system_prompts", "conversations", "agents", "rag", "forks")
"""Our workloads that know their own answers. Others of token ids can be written as well, with answers of a length."""


def synthetic_trace(
    name: str, options: Mapping[str, Any] | None = None, *, seed: int = 0, block_tokens: int | None = None
) -> Iterator[WorkloadRequest]:
    """The requests of a workload as a trace records them, one at a time.

    Args:
        name: of an installed workload whose prompts are token ids.
        options: of that workload.
        block_tokens: name prompts in blocks of this size, a partial last one included, instead of writing out tokens:
            much shorter, but outputs are then lengths.

    Raises:
        ConfigError: no such workload, an option it does not have or allow, or (while iterating) one of text.
    """
    if block_tokens is not None and block_tokens < 1:
        raise InvalidArgument(f"block_tokens must be at least 1, found {block_tokens}")
    return as_trace(stream(name, options, seed), block_tokens)


def as_trace(requests: Iterable[WorkloadRequest], block_tokens: int | None) -> Iterator[WorkloadRequest]:
    """Requests of token ids as a trace records them; see synthetic_trace."""
    for request in requests:
        tokens = request.tokens
        if tokens is None:
            raise ConfigError(f"a trace holds token ids, this workload has text; choose one of {', '.join(SYNTHETIC)}")
        output_tokens = request.sampling.max_tokens if request.output_tokens is None else request.output_tokens
        request = replace(request, key="", output_tokens=output_tokens)
        if block_tokens is not None:
            ids = name_blocks(tokens, block_tokens)
            request = replace(request, prompt=None, block_ids=ids, block_tokens=block_tokens, output=None)
        yield request


def with_blocks(requests: Iterable[WorkloadRequest], block_tokens: int) -> Iterator[WorkloadRequest]:
    """Requests whose prompts are token ids without names, with names of blocks of `block_tokens` beside them."""
    for request in requests:
        if request.block_ids is None and request.tokens is not None:
            names = name_blocks(request.tokens, block_tokens)
            request = replace(request, block_ids=names, block_tokens=block_tokens)
        yield request
