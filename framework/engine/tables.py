"""Block tables on the device, kept equal to a host copy by sending what changed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from framework.engine.rows import IntArray
from framework.errors import InvalidArgument


class BlockTables:
    """One row of block ids a running sequence: a host mirror, and a device tensor that is sent what changed.

    Entries nobody set are 0, the null block, and are 0 again after `clear`. Once `take_changes` was applied, the device
    has what the host has, whatever was set and cleared in between. Ids come from the guarded allocator, which checked
    them.

    Args:
        max_rows: sequences that can run at once.
        max_blocks: blocks a sequence can have.
        block_size: tokens.
        device: where attention runs.
    """

    def __init__(self, max_rows: int, max_blocks: int, block_size: int, device: str | torch.device = "cpu") -> None:
        self.max_rows, self.max_blocks, self.block_size = max_rows, max_blocks, block_size
        self.device = torch.device(device)
        # One more row, never set: what padding is given for a table.
        self._device = torch.zeros(max_rows + 1, max_blocks, dtype=torch.int32, device=self.device)
        self.host = np.zeros((max_rows, max_blocks), dtype=np.int32)
        self._sent = np.zeros((max_rows, max_blocks), dtype=np.int32)
        self._used = np.zeros(max_rows, dtype=np.int64)
        self._low = np.full(max_rows, max_blocks, dtype=np.int64)
        self._high = np.zeros(max_rows, dtype=np.int64)

    def set(self, row: int, start: int, ids: npt.NDArray[np.int32]) -> None:
        """From logical index `start` on, the row is `ids` and then nothing: entries behind them become 0.

        A row may begin with null blocks, which no layer reads: `ids` from 0 on may begin with zeros.
        """
        end, used = start + len(ids), int(self._used[row])
        self.host[row, start:end] = ids
        self.host[row, end:used] = 0
        self._used[row] = end
        self._touch(row, start, max(end, used))

    def clear(self, row: int) -> None:
        """The row has no blocks: all its entries are 0."""
        used = int(self._used[row])
        self.host[row, :used] = 0
        self._used[row] = 0
        self._touch(row, 0, used)

    def _touch(self, row: int, low: int, high: int) -> None:
        if low < high:
            self._low[row] = min(self._low[row], low)
            self._high[row] = max(self._high[row], high)

    def reset(self) -> None:
        """No row has blocks, on the host and on the device, whatever an interrupted step left half done."""
        for array in (self.host, self._sent, self._used, self._high):
            array[:] = 0
        self._low[:] = self.max_blocks
        self._device.zero_()

    def take_changes(self) -> tuple[IntArray, npt.NDArray[np.int32]]:
        """Flat indices (n,) and values (n,) of the entries that differ from what the device has.

        They count as sent: give them to `apply` before anything reads the tables.
        """
        rows = np.nonzero(self._low < self._high)[0]
        if len(rows) == 0:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        low, width = self._low[rows], self._high[rows] - self._low[rows]
        flat = _ranges(rows * self.max_blocks + low, width)
        host, sent = self.host.reshape(-1), self._sent.reshape(-1)
        flat = flat[host[flat] != sent[flat]]
        values = host[flat]
        sent[flat] = values
        self._low[rows], self._high[rows] = self.max_blocks, 0
        return flat, values

    def apply(self, index: Tensor, values: Tensor) -> None:
        """Make the changes `take_changes` gave, both now on the device, in one scatter; without a wait."""
        self._device.view(-1)[index] = values

    def gather(self, rows: Tensor, num_blocks: int, out: Tensor | None = None) -> Tensor:
        """The first `num_blocks` entries of `rows` (B,) int64 on the device: (B, num_blocks) int32, as of `apply`.

        Into `out` if given. Row `max_rows`, which nobody can set, is all null blocks.
        """
        if out is None:
            return self._device[:, :num_blocks].index_select(0, rows)
        return torch.index_select(self._device[:, :num_blocks], 0, rows, out=out)

    def slots(self, rows: IntArray, positions: IntArray) -> IntArray:
        """Where each token goes: rows (T,) and positions (T,) in tokens -> slots (T,) int64, from the host mirror.

        Raises:
            InvalidArgument: a position without a block.
        """
        blocks = self.host[rows, positions // self.block_size].astype(np.int64)
        if not blocks.all():
            index = int(np.argmin(blocks))
            raise InvalidArgument(
                f"row {int(rows[index])} has no block for position {int(positions[index])}: extend it first"
            )
        return blocks * self.block_size + positions % self.block_size


def _ranges(starts: IntArray, widths: IntArray) -> IntArray:
    """start, start + 1, ... of each range, one after another."""
    ends = np.cumsum(widths)
    inside: IntArray = np.arange(int(ends[-1]), dtype=np.int64)
    inside += np.repeat(starts - (ends - widths), widths)
    return inside
