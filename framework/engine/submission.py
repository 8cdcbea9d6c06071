"""Bounds of an engine's sizes, and checks of a request before it is queued."""

from __future__ import annotations

from typing import Any

from framework.engine.request import Request
from framework.engine.state import EngineState
from framework.errors import InvalidArgument
from framework.sampling import Sampling
from framework.types import ROOT_NAMESPACE, Hint, Namespace

_LARGEST_PRIORITY = 2**31 - 1
_LATEST_S = 1e12


def require_batch(max_batch_tokens: int, max_batch_requests: int, chunk_size: int | None) -> None:
    """Raise unless a step of these sizes can be: every row decodes one token a step.

    Raises:
        InvalidArgument: names the setting.
    """
    if max_batch_requests < 1:
        raise InvalidArgument(f"engine.max_batch_requests must be at least 1, found {max_batch_requests}")
    if max_batch_tokens < max_batch_requests:
        raise InvalidArgument(
            f"engine.max_batch_tokens ({max_batch_tokens}) must be at least engine.max_batch_requests "
            f"({max_batch_requests}): every row decodes one token a step"
        )
    if chunk_size is not None and chunk_size < 1:
        raise InvalidArgument(f"engine.chunk_size must be at least 1 or null, found {chunk_size}")


def require_facts(
    *,
    sampling: Any,
    arrival_s: Any,
    priority: Any,
    tenant: Any,
    key: Any,
    session: Any,
    category: Any,
    hint: Any,
    turn: Any,
    namespace: Any,
) -> None:
    """Raise unless these are of their types and within what arrays, policies and files can hold.

    Raises:
        InvalidArgument: names the first that is not.
    """
    if (
        type(sampling) is Sampling
        and type(arrival_s) is float
        and -_LATEST_S <= arrival_s <= _LATEST_S
        and type(priority) is int
        and -_LARGEST_PRIORITY <= priority <= _LARGEST_PRIORITY
        and (namespace is ROOT_NAMESPACE or _is_ascii_namespace(namespace))
        and type(tenant) is str
        and tenant.isascii()
        and type(key) is str
        and key.isascii()
        and (session is None or (type(session) is str and session.isascii()))
        and (category is None or (type(category) is str and category.isascii()))
        and (turn is None or type(turn) is int)
        and (hint is None or type(hint) is Hint)
    ):
        return  # as nearly all are: a third of what the sentences below cost
    if not isinstance(sampling, Sampling):
        raise InvalidArgument(f"sampling must be a Sampling, found {_short(sampling)}")
    numeric = type(arrival_s) is float or (isinstance(arrival_s, (int, float)) and not isinstance(arrival_s, bool))
    if not numeric or not -_LATEST_S <= arrival_s <= _LATEST_S:  # NaN is not
        raise InvalidArgument(f"arrival_s must be seconds, at most {_LATEST_S:g}, found {_short(arrival_s)}")
    whole = type(priority) is int or (isinstance(priority, int) and not isinstance(priority, bool))
    if not whole or abs(priority) > _LARGEST_PRIORITY:
        raise InvalidArgument(f"priority must be an integer between -2**31 and 2**31, found {_short(priority)}")
    if turn is not None and (isinstance(turn, bool) or not hasattr(turn, "__index__")):
        raise InvalidArgument(f"turn must be an integer or None, found {_short(turn)}")
    if hint is not None and not isinstance(hint, Hint):
        raise InvalidArgument(f"hint must be a Hint or None, found {_short(hint)}")
    if not isinstance(namespace, Namespace):
        raise InvalidArgument(f"namespace must be a Namespace, found {_short(namespace)}")
    for name, value in (
        ("tenant", tenant),
        ("key", key),
        ("session", "" if session is None else session),
        ("category", "" if category is None else category),
        ("namespace.model", namespace.model),
        ("namespace.adapter", namespace.adapter),
        ("namespace.salt", namespace.salt),
    ):
        if not isinstance(value, str) or not (value.isascii() or _is_unicode(value)):
            raise InvalidArgument(f"{name} must be Unicode text, found {_short(value)}")


def why_never(
    request: Request,
    state: EngineState,
    *,
    max_model_len: int,
    length_advice: str,
    vocab_size: int | None,
    has_text: bool,
) -> str:
    """Why `request` can never be served, with the numbers; empty if it can.

    Raises:
        PluginError: the allocator could not say.
    """
    total, rows, prompt = request.max_total_tokens, state.rows.max_rows, request.prompt
    if len(prompt) == 0:
        return "the prompt is empty; give it at least one token"
    if vocab_size is not None and int(prompt.max()) >= vocab_size:
        return f"token id {int(prompt.max())} is outside the model's vocabulary of {vocab_size}"
    if request.sampling.stop and not has_text:
        return "stop texts need a tokenizer, and there is none; use stop_token_ids"
    if total > max_model_len:
        return (
            f"{len(prompt)} prompt + {request.sampling.max_tokens} new tokens = {total} pass the longest sequence of "
            f"{max_model_len} tokens; shorten it or {length_advice}"
        )
    if request.width > rows:
        return f"{request.width} samples or beams need as many rows; engine.max_batch_requests is {rows}"
    if not state.guarded.ever_fits(request.sequences[0].info):
        return (
            f"{total} tokens can never fit a pool of {state.guarded.num_blocks} blocks of {state.guarded.block_size} "
            "tokens; raise cache.num_blocks"
        )
    return ""


def _is_ascii_namespace(namespace: Any) -> bool:
    if type(namespace) is not Namespace:
        return False
    parts = (namespace.model, namespace.adapter, namespace.salt)
    return all(type(part) is str and part.isascii() for part in parts)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more than 4300 digits
        return "an integer of thousands of digits"
    return text if len(text) <= 60 else f"{text[:60]}..."
