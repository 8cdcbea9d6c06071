"""Small traces in our own format, of blocks of 16 tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path


def write_trace(path: Path, requests: Iterable[tuple[float, Sequence[int], int]]) -> None:
    """Requests by arrival, seconds, names of their prompts' blocks, and tokens of their answers."""
    lines = [json.dumps({"format": "kvlab-trace", "version": 1, "block_tokens": 16})]
    for arrival_s, names, output_tokens in requests:
        request = {"arrival_s": arrival_s, "input_tokens": 16 * len(names), "block_ids": [*names]}
        lines.append(json.dumps({**request, "output_tokens": output_tokens}))
    path.write_text("".join(f"{line}\n" for line in lines))
