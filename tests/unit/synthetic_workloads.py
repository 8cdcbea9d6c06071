"""Synthetic workloads, drawn, and example traces, written out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from framework import registry
from framework.interfaces.workload import WorkloadRequest
from framework.workload import build


def drawn(name: str, seed: int = 0, **options: Any) -> list[WorkloadRequest]:
    requests = build(name, options, seed=seed)
    assert all(isinstance(request, WorkloadRequest) for request in requests)
    return requests  # type: ignore[return-value]


def mooncake(path: Path, prompts: Iterable[Sequence[int]], *, every_ms: int = 1000, **lengths: int) -> Path:
    """A trace in Mooncake's format of these block ids; `lengths` may say other input and output lengths."""
    rows = (
        {"timestamp": every_ms * i, "input_length": 1500, "output_length": 3, "hash_ids": list(ids), **lengths}
        for i, ids in enumerate(prompts)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def common_prefix(a: str, b: str) -> int:
    """Characters that both texts begin with."""
    return next((at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def example(name: str, folder: Path) -> Path:
    """The example of an installed trace reader."""
    reader: Any = registry.load("trace", name)
    for file, text in reader.example.items():
        (folder / file).write_text(text)
    return folder / next(iter(reader.example))
