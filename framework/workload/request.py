"""One request as a workload asks for it, before a tokenizer or an engine has seen it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from framework.errors import InvalidArgument
from framework.sampling import Sampling
from framework.types import ROOT_NAMESPACE, Namespace, TokenArray, as_tokens

Message = dict[str, str]
"""One turn of a chat: `role` and `content`, for the tokenizer's chat template."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkloadRequest:
    """What to ask the engine, and when.

    Attributes:
        prompt: text, (n,) int32 token ids, or the messages of a chat. Token ids are not changed after construction.
        arrival_s: seconds after the start of the run.
        namespace: only requests of one namespace share cached blocks.
        priority: larger is more important.
        tenant: for policies that share a cache fairly.
        session: requests of one conversation carry the same, in order of arrival; empty for none.
        key: names the request in logs and results; unique within its workload.

    Raises:
        InvalidArgument: an empty prompt, or an arrival that is negative or not finite.
        InvalidTokens: token ids that are none.
    """

    prompt: str | TokenArray | tuple[Message, ...]
    sampling: Sampling = field(default_factory=Sampling)
    arrival_s: float = 0.0
    namespace: Namespace = ROOT_NAMESPACE
    priority: int = 0
    tenant: str = ""
    session: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, (str, tuple)):
            tokens = as_tokens(self.prompt).copy()
            tokens.flags.writeable = False
            object.__setattr__(self, "prompt", tokens)
        if len(self.prompt) == 0:
            raise InvalidArgument("a prompt must hold at least one token, found an empty one")
        if not (math.isfinite(self.arrival_s) and self.arrival_s >= 0):
            raise InvalidArgument(f"arrival_s must be finite and at least 0, found {self.arrival_s!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkloadRequest):
            return NotImplemented
        return _fields(self) == _fields(other)

    __hash__ = None  # type: ignore[assignment]


def _fields(request: WorkloadRequest) -> tuple[object, ...]:
    prompt = request.prompt
    content = (prompt.dtype.str, prompt.tobytes()) if isinstance(prompt, np.ndarray) else prompt
    return (
        content,
        request.sampling,
        request.arrival_s,
        request.namespace,
        request.priority,
        request.tenant,
        request.session,
        request.key,
    )
