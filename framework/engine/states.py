"""The recurrent states of running rows and of cached prefixes, and a step's way through them."""

# Shapes: T packed tokens  B rows  M blocks of a row's table

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from framework.engine.executors.base import Step
from framework.engine.pool import SharedPages
from framework.errors import OutOfMemory, Unsupported
from framework.interfaces.backend import Batch
from framework.interfaces.groups import GroupSizes
from framework.model.decoder import Decoder
from framework.model.layers import Recurrence, State
from framework.model.memory import free_bytes


class StatePool:
    """The state of each recurrent layer of a group after the last token of a block.

    The state of a sequence of n tokens lies in the block of its last one, (n - 1) // block_size of its table: while the
    block fills, a step writes over it; once full it is what a later request with this prefix goes on from.

    Args:
        sizes: of the group: usable blocks have ids 1 to `num_blocks`; what block 0 holds is never read.
        poison: fill blocks that were just handed out with NaN, see KVPool.
        pages: where the states lie, beside K and V of other groups; None: in memory of their own.

    Attributes:
        layers: numbers of the layers.
        blocks: (N + 1, bytes) of all that a block has. bytes: of memory of its own.

    Raises:
        OutOfMemory: the device has too little; with bytes asked and free.
        Unsupported: states that do not lie in pages.
    """

    def __init__(
        self, decoder: Decoder, sizes: GroupSizes, device: str | torch.device, poison: bool = False,
        pages: SharedPages | None = None,
    ) -> None:  # fmt: skip
        self.block_size, self.poison, self._shares = sizes.group.block_tokens, poison, pages is not None
        device, rows = torch.device(device), sizes.num_blocks + 1
        config = decoder.config
        mixers = ((layer, decoder.mixer(layer)) for layer in (config.state_layers[at] for at in sizes.layers))
        self._mixers = {layer: mixer for layer, mixer in mixers if isinstance(mixer, Recurrence)}
        self.layers = (*self._mixers,)
        parts = [(layer, part) for layer, mixer in self._mixers.items() for part in mixer.zero_state(device)]
        ends = [*accumulate(-(-part.nbytes // 8) * 8 for _, part in parts)]
        if pages is None:
            self.bytes = rows * ends[-1]
            if self.bytes > (free := free_bytes(device)):
                raise OutOfMemory(
                    f"recurrent states of {rows - 1} blocks take {self.bytes:,} bytes, and {free:,} are free on "
                    f"{device}; lower engine.max_batch_requests or engine.max_batch_tokens, or raise cache.block_size"
                )
            self.blocks = torch.zeros(rows, ends[-1], dtype=torch.uint8, device=device)
        else:
            self.bytes, self.blocks = 0, pages.blocks(sizes)[0].view(torch.uint8)
            size, start = self.blocks.shape[1], self.blocks.storage_offset()
            if size < ends[-1] or size % 8 or start % 8:
                raise Unsupported(
                    f"states of {ends[-1]} bytes cannot lie in blocks of {size} that begin at {start}: all must be "
                    "multiples of 8 bytes; raise cache.block_size, or take another cache.memory"
                )
        self._held: dict[int, State] = {}
        for (layer, part), end in zip(parts, ends, strict=True):
            stored = self.blocks[:, end - -(-part.nbytes // 8) * 8 :][:, : part.nbytes]
            stored = stored.view(part.dtype).view(rows, *part.shape)
            self._held[layer] = (*self._held.get(layer, ()), stored)
        self._step: tuple[Tensor, Tensor, list[tuple[int, int, int, list[int]]]] | None = None

    def begin(self, batch: Batch, step: Step | None = None, tables: npt.NDArray[np.int32] | None = None) -> None:
        """The step that `recur` will compute next.

        Args:
            batch: over the block tables of states; its first rows decode.
            step: with the rows after those. None: there are none.
            tables: (rows, M): of `step`, on the host.
        """
        count, size = batch.num_decodes, self.block_size
        computed = batch.context_lens[:count].long() - 1
        at = torch.stack((computed - 1, computed), 1).clamp(min=0) // size
        read, written = batch.block_tables[:count].gather(1, at).long().unbind(1)
        others = []
        if step is not None and tables is not None:
            starts = np.cumsum(step.num_new) - step.num_new
            others = [
                (int(starts[i]), int(step.num_new[i]), int(step.computed[i]), tables[step.rows[i]].tolist())
                for i in range(count, len(step.rows))
            ]
        self._step = read * (computed > 0), written, others

    def recur(self, layer: int, *inputs: Tensor) -> Tensor:
        """What that layer's Recurrence gives for its inputs (T, ...): each row of the step goes on from its own state,
        and states are written."""
        assert self._step is not None
        mixer, stored, (read, written, others) = self._mixers[layer], self._held[layer], self._step
        count, parts = len(read), []
        if count:
            fresh = read == 0  # and block 0 may hold anything
            state = tuple(part[read].masked_fill(fresh.view(-1, *[1] * (part.dim() - 1)), 0) for part in stored)
            out, after = mixer.step(*(x[:count] for x in inputs), state=state)
            for part, new in zip(stored, after, strict=True):
                if self._shares:  # rows that pad a captured step have block 0, which other groups read
                    new = torch.where((written == 0).view(-1, *[1] * (new.dim() - 1)), part[:1], new)
                part[written] = new
            parts.append(out)
        size = self.block_size
        for start, new_tokens, computed, table in others:
            last, tokens = table[(computed - 1) // size], slice(start, start + new_tokens)
            state = tuple(part[last] for part in stored) if computed else mixer.zero_state(self.blocks.device)

            def save(count: int, after: State, table: Sequence[int] = table) -> None:
                block = table[(count - 1) // size]
                for part, new in zip(stored, after, strict=True):
                    if block:  # else it is not kept
                        part[block] = new

            given = (x[tokens] for x in inputs)
            parts.append(mixer.sequence(*given, state=state, start=computed, block=size, save=save))
        return torch.cat(parts)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, destination), in order, in every layer."""
        for source, destination in pairs:
            self.blocks[destination] = self.blocks[source]

    def freed(self, blocks: npt.NDArray[np.int32]) -> None:
        """What these, 0 left out, hold is nobody's: NaN with `poison`, else nothing happens."""
        if self.poison and len(blocks):
            index = torch.from_numpy(blocks[blocks > 0].astype(np.int64)).to(self.blocks.device)
            for part in (part for stored in self._held.values() for part in stored):
                part[index] = torch.nan
