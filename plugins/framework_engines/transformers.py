"""Our attention backends inside Hugging Face transformers, for checking one against the other."""

# Shapes: B batch  Q query tokens  C keys  H query heads  K kv heads  D head dim  S tokens a block

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from framework.errors import InvalidArgument, Unsupported
from framework.interfaces.backend import AttentionBackend, AttentionSpec, Batch, LayerKV
from framework.registry.components import Component, build_component

if TYPE_CHECKING:
    import torch
    from torch import Tensor

INTERFACE = "transformers 5.23.0, AttentionInterface and AttentionMaskInterface"
"""Where the interface was taken from."""


def register_transformers(backend: Component = "torch", name: str = "kvlab_torch", *, block_size: int = 16) -> None:
    """Make `backend` a model's attention: `from_pretrained(..., attn_implementation=name)`. For checking, not speed.

    Every call of every layer copies the K and V it is given into a paged pool of its own and attends once. Causal
    self-attention without gradients, dropout or a position bias: prefill, decode, left and right padding, grouped
    heads, sliding windows, soft caps and sinks as far as the backend has them. Queries of padding give zeros.
    A name registered before is replaced. Interface: `INTERFACE`.

    Args:
        backend: an installed backend's name, a mapping with a name and options, a class, or a factory's result.
        name: what transformers will call it.
        block_size: of the pools, tokens.

    Raises:
        InvalidArgument: `block_size` below 1; no attention backend.
        Unsupported: transformers is not installed or has another interface. While the model runs: what the backend
            cannot do, or a mask that is not one of those above.
    """
    if block_size < 1:
        raise InvalidArgument(f"block_size must be at least 1, found {block_size}")
    attention = _Attention(backend, block_size)
    try:
        library = importlib.import_module("transformers")
        masks = importlib.import_module("transformers.masking_utils")
        register, register_mask = library.AttentionInterface.register, masks.AttentionMaskInterface.register
        sdpa_mask = masks.sdpa_mask
    except (ImportError, AttributeError) as error:
        raise Unsupported(f"transformers has no attention interface to use ({error}); needed is {INTERFACE}") from error
    register(name, attention.forward)

    def mask(*args: Any, **kwargs: Any) -> Any:
        """The boolean mask always, (B, 1, Q, C): it says which keys are padding."""
        return sdpa_mask(*args, **(kwargs | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}))

    register_mask(name, mask)


@dataclass(frozen=True, slots=True)
class _Span:
    """The queries [first, last) of a row of the batch, and its keys [begin, end)."""

    row: int
    first: int
    last: int
    begin: int
    end: int


class _Attention:
    """The function that is registered, with the backends it has set up so far, by spec and device."""

    def __init__(self, backend: Component, block_size: int) -> None:
        self._component, self._block_size = backend, block_size
        self._ready: dict[tuple[AttentionSpec, str], AttentionBackend] = {}
        self._build()

    def forward(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
        sliding_window: int | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
        position_bias: Tensor | None = None, **_: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """transformers' call: query (B, H, Q, D), key and value (B, K, C, D) -> (B, Q, H, D), and no weights."""
        import torch

        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        refusals = {
            "attention that is not causal": not causal,
            f"dropout {dropout}; call model.eval()": dropout > 0,
            "a position bias": position_bias is not None,
            "gradients; call it under torch.no_grad()": torch.is_grad_enabled() and query.requires_grad,
            f"values of another shape than keys, {tuple(value.shape)} and {tuple(key.shape)}": value.shape != key.shape,
        }
        for what, asked in refusals.items():
            if asked:
                raise Unsupported(f"a backend of the laboratory cannot do {what}")
        spec = AttentionSpec(
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_dim=query.shape[3],
            dtype=str(query.dtype).removeprefix("torch."),
            block_size=self._block_size,
            scale=scaling,
            sliding_window=sliding_window,
            soft_cap=softcap,
            sinks=s_aux is not None,
        )
        spans = _spans(attention_mask, query.shape[0], query.shape[2], key.shape[2], sliding_window)
        backend = self._backend(spec, str(query.device))
        out = torch.zeros_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
        if spans:
            _attend(backend, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), spans, s_aux, out)
        return out, None

    def _build(self) -> AttentionBackend:
        built = build_component("backend", self._component, {"block_size": self._block_size})
        if not isinstance(built, AttentionBackend):
            raise InvalidArgument(f"an attention backend is needed to export one, found {type(built).__name__}")
        return built

    def _backend(self, spec: AttentionSpec, device: str) -> AttentionBackend:
        if (spec, device) not in self._ready:
            backend = self._build()
            backend.setup(spec, device)
            self._ready[spec, device] = backend
        return self._ready[spec, device]


def _spans(mask: Tensor | None, rows: int, queries: int, keys: int, window: int | None) -> list[_Span]:
    """What each row computes, from its mask; rows of padding only are left out.

    Raises:
        Unsupported: the mask is not a causal one over one run of keys.
    """
    if mask is None:
        if queries > keys:
            raise Unsupported(f"{queries} queries over {keys} keys are not causal self-attention")
        return [_Span(row, 0, queries, 0, keys) for row in range(rows)]
    visible = mask.detach().cpu().numpy()
    if visible.dtype != np.bool_:
        visible = visible == 0  # an additive mask: 0 where a key is seen
    if visible.shape[1] != 1 or visible.shape[2:] != (queries, keys):
        raise Unsupported(f"a mask of shape {visible.shape} is not one of ({rows}, 1, {queries}, {keys})")
    spans = (_span(row, visible[row % len(visible), 0], window) for row in range(rows))
    return [span for span in spans if span is not None]


def _span(row: int, visible: Any, window: int | None) -> _Span | None:
    if not visible.any():
        return None
    keys, seen = np.arange(visible.shape[1]), np.flatnonzero(visible.any(axis=0))
    begin, end = int(seen[0]), int(seen[-1]) + 1
    first, last = int(visible.any(axis=1).argmax()), int(visible[:, end - 1].argmax()) + 1
    positions = np.arange(end - (last - first), end)[:, None]
    expected = (keys <= positions) & (keys >= begin)
    if window is not None:
        expected &= keys > positions - window
    padded = end + len(visible) - last <= len(keys)  # queries after the last one have keys of their own, all unseen
    if not padded or not np.array_equal(visible[first:last], expected):
        raise Unsupported(f"the mask of row {row} is not causal over one run of keys; are sequences packed?")
    return _Span(row, first, last, begin, end)


def _attend(
    backend: AttentionBackend, q: Tensor, k: Tensor, v: Tensor, spans: list[_Span], sinks: Tensor | None, out: Tensor
) -> None:
    """Page K and V (B, C, K, D) of the spans, attend, and write their rows of `out` (B, Q, H, D)."""
    import torch

    spans = sorted(spans, key=lambda span: span.last - span.first > 1)
    batch, slots = _batch(spans, backend.spec.block_size, q.device)
    num_blocks = 1 + int(sum(-(-(span.end - span.begin) // backend.spec.block_size) for span in spans))
    shape = (num_blocks, backend.spec.block_size, *k.shape[2:])
    pool = LayerKV(k.new_zeros(shape), v.new_zeros(shape), sinks=None if sinks is None else sinks.float())
    k_packed, v_packed = (torch.cat([x[span.row, span.begin : span.end] for span in spans]) for x in (k, v))
    backend.write(pool, k_packed, v_packed, slots)
    q_packed = torch.cat([q[span.row, span.first : span.last] for span in spans])
    result = torch.empty_like(q_packed)
    backend.plan(batch)
    backend.attend(q_packed, pool, batch, result)
    starts = batch.host_query_starts.tolist()
    for i, span in enumerate(spans):
        out[span.row, span.first : span.last] = result[starts[i] : starts[i + 1]]


def _batch(spans: list[_Span], block_size: int, device: torch.device) -> tuple[Batch, Tensor]:
    """The batch, and the slots (sum of contexts,) of all keys, those of earlier steps too. Blocks in order."""
    import torch

    contexts = [span.end - span.begin for span in spans]
    counts = [span.last - span.first for span in spans]
    widths = [-(-context // block_size) for context in contexts]
    tables = np.zeros((len(spans), max(widths)), dtype=np.int32)
    slots, new, block = [], [], 1
    for i, width in enumerate(widths):
        tables[i, :width] = np.arange(block, block + width)
        slots.append(block * block_size + np.arange(contexts[i], dtype=np.int64))
        new.append(slots[-1][contexts[i] - counts[i] :])
        block += width

    def put(array: Any) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Batch.of(put(tables), put(np.concatenate(new)), contexts, counts), put(np.concatenate(slots))
