"""The executor that computes: a transformer over the KV pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from framework.engine.compiled import compiled_forward, opaque_attention
from framework.engine.executors.base import BoolArray, Executor, FloatArray, Step
from framework.engine.graphs import DecodeGraphs, Recorder
from framework.engine.pool import KVPool
from framework.engine.rows import IntArray, Rows
from framework.engine.sizes import Sizes
from framework.engine.sparse import SparseAttention
from framework.engine.staging import Staging
from framework.engine.states import StatePool
from framework.engine.tables import BlockTables
from framework.errors import ConfigError
from framework.interfaces.backend import AttentionBackend, Batch, LayerKV, Rope
from framework.interfaces.compression import LayerCache
from framework.model import sampler
from framework.model.decoder import Attention, Decoder
from framework.model.layers import Recurrence
from framework.types import BlockCopy


class ModelExecutor(Executor):
    """Runs the decoder on packed tokens, with attention by `backend` over `pool`, on the wall clock.

    A step's integers go to the device in one copy, and only `sample` and `logprobs` wait for it: once each.

    Args:
        by_layer: the backend of each layer with attention, each set up.
        pool, tables: on the decoder's device.
        further: tables of the groups after the first.
        states: of the recurrent layers, by group, where the decoder has any.
        sparse: of a decoder with an indexer.

    Attributes:
        graphs: the captured decode steps, None without `capture`.
        graphs_off: why there are none.
        num_eager_steps: steps that were not replayed, since the clock was restarted.
        widths: of compiled recurrent layers the shape of a token's result.
    """

    def __init__(
        self,
        decoder: Decoder,
        by_layer: Sequence[AttentionBackend],
        pool: KVPool,
        tables: BlockTables,
        further: Sequence[BlockTables] = (),
        states: Mapping[int, StatePool] | None = None,
        sparse: SparseAttention | None = None,
    ) -> None:
        self.states, self.sparse = states or {}, sparse
        self._states_of = {layer: one for one in self.states.values() for layer in one.layers}
        self.decoder, self.by_layer, self.pool, self.tables = decoder, by_layer, pool, tables
        self._groups, self._attended = (tables, *further), {*pool.group_of}
        first = [place for place, group in enumerate(pool.group_of) if not group]
        self._number_in_first = {place: number for number, place in enumerate(first)}
        self._first_layers = [pool.layers[place] for place in first]  # the only ones whose tokens are read and moved
        self.device = torch.device(tables.device)
        self.graphs: DecodeGraphs | None = None
        self.graphs_off = ""
        self.num_eager_steps = 0
        self.widths: dict[int, tuple[int, ...]] = {}
        self._listener: Callable[[int, Tensor], Any] | None = None
        self._forward: Callable[..., Any] = decoder
        self._attention: Attention = self.attend
        self._batches: Sequence[Batch] = ()  # a group each
        self._kv_of = {layer: index for index, layer in enumerate(decoder.config.attention_layers)}
        groups = {id(one): (one, group) for one, group in zip(by_layer, pool.group_of, strict=True)}
        self._planners = list(groups.values())
        features = by_layer[0].capabilities.features
        self._backend_rotates = "rope" in features and decoder.config.rotates_plainly
        self._rope: tuple[Rope, Rope] | None = None  # of layers without and with a window
        self._inputs, self._drawing = Staging(self.device), Staging(self.device)
        self._logits: Tensor = torch.empty(0)
        self._start = time.perf_counter()

    @classmethod
    def pool_sizes(cls, sizes: Sizes) -> Sizes:
        """The sizes of the pool that the backend sees, for an engine whose allocator has `sizes`."""
        return sizes

    @torch.inference_mode()
    def capture(self, recorder: Recorder, sizes: Sequence[int]) -> None:
        """From here on replay decode steps of up to max(`sizes`) rows. Only while nothing runs."""
        self.graphs = DecodeGraphs(self._compute, self._groups, sizes, recorder)
        self.graphs_off = ""

    def compile(self) -> None:
        """Run the decoder through torch.compile: one graph for any number of tokens, and one for a single one.

        Attention stays as it is, an opaque operation to the compiler. `decoder` itself stays eager: the dense check
        is not to depend on a compiler.

        Of a model over several ranks, sums are opaque as well: see `framework.engine.compiled`.

        Raises:
            ConfigError: one rank's part, which has not joined the others.
        """
        if self.decoder.shard.size > 1 and self.decoder.group is None:
            raise ConfigError(
                f"engine.compile=true cannot be with a model over {self.decoder.shard.size} ranks that are not joined"
            )
        for layer in self.decoder.config.state_layers:
            self._note_width(layer)
        self._attention = opaque_attention(self)
        self._forward = compiled_forward(self.decoder)

    @torch.inference_mode()
    def _note_width(self, layer: int) -> None:
        """The shape of what a recurrent layer hands on of a token: of one that comes first."""
        mixer = self.decoder.mixer(layer)
        assert isinstance(mixer, Recurrence)

        def attend(*inputs: Tensor) -> Tensor:
            out, _ = mixer.step(*inputs, state=tuple(part[None] for part in mixer.zero_state(self.device)))
            self.widths[layer] = tuple(out.shape[1:])
            return out

        hidden = torch.zeros(1, self.decoder.config.hidden_size, dtype=self.decoder.dtype, device=self.device)
        mixer(hidden, None, attend)

    def summary(self) -> dict[str, Any]:
        graphs, sparse = self.graphs, self.sparse
        return {
            **({"kv_bytes_read": sparse.bytes_read, "kv_bytes_dense": sparse.bytes_dense} if sparse else {}),
            "cuda_graphs": graphs is not None and self.device.type == "cuda",
            "cuda_graphs_off": self.graphs_off or None,
            "graph_batch_sizes": list(graphs.sizes) if graphs else [],
            "graph_steps": graphs.num_replays if graphs else 0,
            "graph_padded_rows": graphs.num_padded_rows if graphs else 0,
            "graph_capture_s": graphs.capture_s if graphs else None,
            "eager_steps": self.num_eager_steps,
        }

    def now(self) -> float:
        """Seconds since construction."""
        return time.perf_counter() - self._start

    def restart_clock(self) -> None:
        """See Executor: what loading took is no part of a run, nor are the steps until now."""
        self._start, self.num_eager_steps = time.perf_counter(), 0
        if self.graphs is not None:
            self.graphs.num_replays = self.graphs.num_padded_rows = 0

    def wait_until(self, when: float) -> None:
        time.sleep(max(0.0, when - self.now()))

    def reset(self) -> None:
        """See Executor. The pool keeps its bytes, which no table names any more."""
        for tables in self._groups:
            tables.reset()
        self._batches, self._rope = (), None
        self._logits = torch.empty(0)

    def set_table(self, row: int, start: int, ids: npt.NDArray[np.int32], group: int = 0) -> None:
        rows = 1 if group in self.states else self.pool.rows_of[group]
        self._groups[group].set(row, start, ids if rows == 1 else ids * rows)

    def clear_table(self, row: int) -> None:
        for tables in self._groups:
            tables.clear(row)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self.pool.copy(self.by_layer, copies)
        for group, states in self.states.items():
            states.copy([(copy.source, copy.destination) for copy in copies if copy.group == group])

    def listen(self, listener: Callable[[int, Tensor], Any]) -> None:
        self._listener = listener

    @torch.inference_mode()
    def read(
        self, row: int, positions: npt.NDArray[np.int64], queries: Sequence[Sequence[Tensor]], computed: int
    ) -> Sequence[LayerCache]:
        layers, heads = self._first_layers, self.by_layer[0].spec.num_kv_heads
        places = np.broadcast_to(self._own_heads(positions), (len(layers), heads, positions.shape[2]))
        slots = np.arange(positions.shape[2])[None]
        caches = []
        for layer, kv in enumerate(layers):
            where = kv.index_of(self.tables.host[row], slots)
            caches.append(self._cache(kv, where, places[layer], queries[layer : layer + 1], computed))
        return caches

    def _cache(
        self,
        kv: LayerKV,
        where: Any,
        positions: npt.NDArray[np.int64],
        queries: Sequence[Sequence[Tensor]],
        computed: int,
    ) -> LayerCache:
        """What one layer has stored `where`; `queries` of it alone, or none."""
        keys, values = kv.values_at(where, self.decoder.dtype)
        config = self.decoder.config
        asked = torch.cat([*queries[0]]) if queries else keys.new_empty(0, config.num_heads, keys.shape[2])
        width = config.rotary_dim
        turned = slice(-width, None) if width and config.latent_dim else slice(width)
        return LayerCache(
            keys=keys, values=values, scale=self.by_layer[0].spec.softmax_scale,
            rotary=self.decoder.rope, turned=turned,
            positions=torch.from_numpy(positions.copy()).to(self.device), queries=asked,
            query_positions=torch.arange(computed - len(asked), computed, device=self.device),
        )  # fmt: skip

    def _own_heads(self, each: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What this rank's heads have of (L or 1, K or 1, n), which is of all heads."""
        shard = self.decoder.shard
        return each if shard.size == 1 or each.shape[1] == 1 else each[:, [*shard.kv_heads(self.decoder.config)]]

    @torch.inference_mode()
    def compact(
        self,
        row: int,
        source: npt.NDArray[np.int32],
        destination: npt.NDArray[np.int32],
        tokens: npt.NDArray[np.int64],
        start: int,
    ) -> None:
        to = np.arange(start, tokens.shape[2])[None]
        tokens = self._own_heads(tokens)
        each = np.broadcast_to(tokens, (len(self._first_layers), *tokens.shape[1:]))
        for layer, kept in zip(self._first_layers, each, strict=True):
            old, new = layer.index_of(source, kept[:, start:]), layer.index_of(destination, to)
            layer.move(old, new)

    def fresh(self, ids: npt.NDArray[np.int32], group: int = 0) -> None:
        if group in self.states:
            self.states[group].freed(ids)
        else:
            self.pool.freed(ids, group)

    @torch.inference_mode()
    def forward(self, step: Step, rows: Rows) -> None:
        packed = step.packed
        tokens = rows.tokens[packed].astype(np.int64)
        stored, context = packed[1], step.computed + step.num_new
        if rows.drops:
            removed = rows.removed[step.rows]
            stored, context = stored - np.repeat(removed, step.num_new), context - removed
        slots = [np.full(len(tokens), -1) if group not in self._attended
                 else tables.slots(packed[0], packed[1] if group else stored)
                 for group, tables in enumerate(self._groups)]  # fmt: skip
        size = self.graphs.size_for(step) if self.graphs else None
        if self.graphs is None or size is None:
            self.num_eager_steps += 1
            self._logits = self._eager(step, packed, tokens, slots, context)
            return
        logits = self.graphs.run(size, step, tokens, slots, context)
        if len(step.sampled) < len(step.rows):
            logits = logits[self._drawing.upload(step.sampled)[0]]
        self._logits = logits

    def _eager(
        self,
        step: Step,
        packed: tuple[IntArray, IntArray],
        tokens: IntArray,
        slots: Sequence[IntArray],
        context: IntArray,
    ) -> Tensor:
        """The logits of `step.sampled`, of a ragged batch of any shape; `context` (B,) in tokens, in the pool."""
        lengths = [context.astype(np.int32)]
        if len(self._groups) > 1:  # of the first alone tokens are dropped
            lengths.append((step.computed + step.num_new).astype(np.int32))
        starts = np.zeros(len(step.rows) + 1, dtype=np.int32)
        np.cumsum(step.num_new, out=starts[1:])
        last = starts[1:][step.sampled].astype(np.int64) - 1
        of_groups = [array for slot, tables in zip(slots, self._groups, strict=True)
                     for array in (slot, *tables.take_changes())]  # fmt: skip
        sent = self._inputs.upload(tokens, packed[1], starts, step.rows, last, *lengths, *of_groups)
        batches = list[Batch]()
        for group, tables in enumerate(self._groups):
            at, first = min(group, 1), 5 + len(lengths) + 3 * group
            longest = int(lengths[at].max())
            if len(sent[first + 1]):
                tables.apply(sent[first + 1], sent[first + 2])
            batches.append(Batch(
                block_tables=tables.gather(sent[3], -(-longest // tables.block_size)),
                context_lens=sent[5 + at],
                query_starts=sent[2],
                slot_mapping=sent[first],
                max_query_len=int(step.num_new.max()),
                max_context_len=longest,
                num_decodes=step.num_decodes,
                host_context_lens=lengths[at],
                host_query_starts=starts,
            ))  # fmt: skip
        for group, states in self.states.items():
            states.begin(batches[group], step, self._groups[group].host)
        return self.decoder.logits(self._hidden(sent[0], sent[1], batches, sent[4]))

    def _compute(self, tokens: Tensor, positions: Tensor, batches: Sequence[Batch]) -> Tensor:
        """The logits (T, V) of every token, one of each row."""
        for group, states in self.states.items():
            states.begin(batches[group])
        return self.decoder.logits(self._hidden(tokens, positions, batches))

    def _hidden(
        self, tokens: Tensor, positions: Tensor, batches: Sequence[Batch], rows: Tensor | None = None
    ) -> Tensor:
        """The hidden states (T, E), or (R, E) of `rows`; a batch a group."""
        for backend, group in self._planners:
            backend.plan(batches[group])
        self._batches = batches
        if self._backend_rotates:
            rope = Rope(*self.decoder.angles(positions))
            local = self.decoder.local_frequencies is not None
            self._rope = rope, Rope(*self.decoder.angles(positions, local=True)) if local else rope
        rotate = not self._backend_rotates
        if rows is None or len(rows) == len(tokens):  # all of them: `sampled` is in order
            hidden: Tensor = self._forward(tokens, positions, self._attention, rotate)
        elif self._forward is self.decoder and self.decoder.group is None:
            hidden = self.decoder(tokens, positions, self._attention, rotate, rows)
        else:  # a second number of rows would be compiled for, and summed over ranks
            hidden = self._forward(tokens, positions, self._attention, rotate)[rows]
        return hidden

    def attend(self, layer: int, q: Tensor, *inputs: Any) -> Tensor:
        """One layer's attention over the batch that was planned last; see `framework.model.decoder.Attention`."""
        place = self._kv_of.get(layer)
        if place is None:
            return self._states_of[layer].recur(layer, q, *inputs)
        k, v, *index = inputs
        kv, backend = self.pool.layers[place], self.by_layer[place]
        batch = self._batches[self.pool.group_of[place]]
        if self._rope is None:
            backend.write(kv, k, v, batch.slot_mapping)
        else:
            rope = self._rope[self.decoder.config.slides(layer)]
            q = backend.rotate_and_write(kv, q, k, v, rope, batch.slot_mapping)
        if self._listener is not None and place in self._number_in_first:
            self._listener(self._number_in_first[place], q)
        out = q.new_empty(*q.shape[:2], v.shape[-1])
        if not index:
            backend.attend(q, kv, batch, out)
        else:
            assert self.sparse is not None
            self.sparse.attend(q, kv, index[0], batch, out)
        return out

    @torch.inference_mode()
    def sample(self, indices: IntArray, streams: IntArray, step: Step, rows: Rows) -> tuple[IntArray, BoolArray]:
        where = step.rows[step.sampled][indices]
        logits = self._logits
        if len(indices) != len(logits) or (np.diff(indices) != 1).any():
            logits = logits[self._drawing.upload(indices)[0]]
        tokens, _ = sampler.sample(
            logits,
            temperature=rows.temperature[where],
            top_k=rows.top_k[where],
            top_p=rows.top_p[where],
            seeds=rows.seed[where],
            streams=streams,
            positions=rows.length[where],
            upload=self._drawing.upload,
        )
        drawn = self._drawing.fetch(tokens)
        return drawn, drawn < 0  # a bad row's token is -1

    @torch.inference_mode()
    def logprobs(self, indices: IntArray, tokens: IntArray, k: int) -> tuple[FloatArray, IntArray, FloatArray]:
        index, chosen = self._drawing.upload(indices, tokens)
        chosen, ids, values = sampler.logprobs(self._logits[index], chosen, k)
        # float64 holds float32 and token ids exactly: one copy brings all three.
        fetched = self._drawing.fetch(torch.cat((chosen[:, None].double(), ids.double(), values.double()), dim=1))
        k = ids.shape[1]
        return (
            fetched[:, 0].astype(np.float32),
            fetched[:, 1 : 1 + k].astype(np.int64),
            fetched[:, 1 + k :].astype(np.float32),
        )
