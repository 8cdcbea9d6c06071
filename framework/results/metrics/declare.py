"""How the metrics of one section are declared in short, and when the table of a run shows one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from framework.results.metric import Better, Metric


def _metric(section: str, key: str, unit: str, better: Better, title: str, definition: str, **more: Any) -> Metric:
    return Metric(key=key, unit=unit, better=better, section=section, title=title, definition=definition, **more)


def section(name: str, **defaults: Any) -> Callable[..., Metric]:
    """Declares metrics of this section: (key, unit, better, title, definition, **more)."""
    return partial(_metric, name, **defaults)


def text(section: str, key: str, title: str, definition: str, **more: Any) -> Metric:
    """A metric that is words."""
    return _metric(section, key, "text", "", title, definition, **more)


def on_cuda(result: Mapping[str, Any]) -> bool:
    """Whether the run used a CUDA device."""
    return str(result.get("device", "")).startswith("cuda")


def with_graphs(result: Mapping[str, Any]) -> bool:
    """Whether decode steps were replayed as CUDA graphs."""
    return bool(result.get("cuda_graphs"))


def never(result: Mapping[str, Any]) -> bool:
    """For facts of every result that the table of a run leaves to `provenance.json` and reports."""
    return False


def several_ranks(result: Mapping[str, Any]) -> bool:
    """Whether the model was spread over more than one process."""
    return result.get("tensor_parallel_size") not in (None, 1)


def dense_checked(result: Mapping[str, Any]) -> bool:
    """Whether tokens were compared with a dense model."""
    return bool(result.get("dense_checked"))


def lossy(result: Mapping[str, Any]) -> bool:
    """Whether K and V were kept in a precision below the model's, so that fidelity is measured."""
    return result.get("attention_error") is not None
