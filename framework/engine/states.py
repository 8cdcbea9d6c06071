"""The recurrent states of running rows and of cached prefixes, and a step's way through them."""

# Shapes: T packed tokens  B rows  M blocks of a row's table

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from framework.engine.executors.base import Step
from framework.errors import OutOfMemory
from framework.interfaces.backend import Batch
from framework.model.decoder import Decoder
from framework.model.layers import Recurrence, State
from framework.model.memory import free_bytes


class StatePool:
    """The state of each recurrent layer after the last token of a block, of `num_blocks` blocks.

    The state of a sequence of n tokens lies in the block of its last one, (n - 1) // block_size of its table: while the
    block fills, a step writes over it; once full it is what a later request with this prefix goes on from.

    Args:
        num_blocks: usable blocks, ids 1 to `num_blocks`; what block 0 holds is never read.
        poison: fill blocks that were just handed out with NaN, see KVPool.

    Raises:
        OutOfMemory: the device has too little; with bytes asked and free.
    """

    def __init__(
        self, decoder: Decoder, num_blocks: int, block_size: int, device: str | torch.device, poison: bool = False
    ) -> None:
        self.num_blocks, self.block_size, self.poison = num_blocks, block_size, poison
        device = torch.device(device)
        config = decoder.shard.config(decoder.config)
        mixers = ((layer, decoder.mixer(layer)) for layer in config.state_layers)
        self._mixers = {layer: mixer for layer, mixer in mixers if isinstance(mixer, Recurrence)}
        self.bytes = (num_blocks + 1) * len(self._mixers) * config.state_bytes(decoder.dtype.itemsize)
        if self.bytes > (free := free_bytes(device)):
            raise OutOfMemory(
                f"recurrent states of {num_blocks} blocks take {self.bytes:,} bytes, and {free:,} are free on "
                f"{device}; lower engine.max_batch_requests or engine.max_batch_tokens, or raise cache.block_size"
            )
        self._held: dict[int, State] = {}
        for layer, mixer in self._mixers.items():
            zero = mixer.zero_state(device)
            self._held[layer] = tuple(part.new_zeros((num_blocks + 1, *part.shape)) for part in zero)
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

    @property
    def _device(self) -> torch.device:
        return next(iter(self._held.values()))[0].device

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
                part[written] = new
            parts.append(out)
        size = self.block_size
        for start, new_tokens, computed, table in others:
            last, tokens = table[(computed - 1) // size], slice(start, start + new_tokens)
            state = tuple(part[last] for part in stored) if computed else mixer.zero_state(self._device)

            def save(count: int, after: State, table: Sequence[int] = table) -> None:
                for part, new in zip(stored, after, strict=True):
                    part[table[(count - 1) // size]] = new

            given = (x[tokens] for x in inputs)
            parts.append(mixer.sequence(*given, state=state, start=computed, block=size, save=save))
        return torch.cat(parts)

    @property
    def parts(self) -> list[Tensor]:
        """What a block has, (N + 1, ...) each: its tensors of each recurrent layer."""
        return [part for stored in self._held.values() for part in stored]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, destination), in order, in every layer."""
        for source, destination in pairs:
            for part in self.parts:
                part[destination] = part[source]

    def freed(self, blocks: npt.NDArray[np.int32]) -> None:
        """What these hold is nobody's: NaN with `poison`, else nothing happens."""
        if self.poison and len(blocks):
            index = torch.from_numpy(blocks.astype(np.int64)).to(self._device)
            for part in self.parts:
                part[index] = torch.nan
