"""Block tables on the device, kept equal to a host copy by sending what changed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from framework.errors import InvalidArgument

IntArray = npt.NDArray[np.int64]


class BlockTables:
    """One row of block ids a running sequence: a host mirror, and a device tensor that `flush` makes equal to it.

    Entries nobody set are 0, the null block, and are 0 again after `clear`. Equal to the host mirror on the device
    after every `flush`, whatever was set and cleared in between.

    Args:
        max_rows: sequences that can run at once.
        max_blocks: blocks a sequence can have.
        device: where attention runs.
    """

    def __init__(self, max_rows: int, max_blocks: int, device: str | torch.device = "cpu") -> None:
        if max_rows < 1 or max_blocks < 1:
            raise InvalidArgument(f"block tables need at least 1 row of 1 block, asked {max_rows} of {max_blocks}")
        self.max_rows, self.max_blocks, self.device = max_rows, max_blocks, torch.device(device)
        # One more row, never set: what padding is given for a table.
        self._device = torch.zeros(max_rows + 1, max_blocks, dtype=torch.int32, device=self.device)
        self.entries_uploaded = 0
        self._host = np.zeros((max_rows, max_blocks), dtype=np.int32)
        self._sent = np.zeros((max_rows, max_blocks), dtype=np.int32)
        self._used = np.zeros(max_rows, dtype=np.int64)
        self._low = np.full(max_rows, max_blocks, dtype=np.int64)
        self._high = np.zeros(max_rows, dtype=np.int64)

    @property
    def host(self) -> npt.NDArray[np.int32]:
        """(max_rows, max_blocks) int32: the truth. A read-only view."""
        view: npt.NDArray[np.int32] = self._host.view()
        view.setflags(write=False)
        return view

    def set(self, row: int, start: int, ids: npt.NDArray[np.int32]) -> None:
        """From logical index `start` on, the row is `ids` and then nothing: entries behind them become 0.

        A row may begin with null blocks, which no layer reads: `ids` from 0 on may begin with zeros.

        Raises:
            InvalidArgument: outside the table, a gap before `start`, or an id below 1. Nothing changed.
        """
        count, used = len(ids), self._row_length(row)
        end = start + count
        if not 0 <= start <= used:
            raise InvalidArgument(
                f"row {row} has {used} blocks; entries from {start} on would leave a gap or lie outside"
            )
        if end > self.max_blocks:
            raise InvalidArgument(f"row {row}: {end} blocks asked, the table is {self.max_blocks} wide")
        if count and int(np.min(ids)) < 1:
            null = 0 if start else int(np.argmax(ids > 0))
            if int(np.min(ids[null:])) < 1 or ids[:null].any():
                raise InvalidArgument(f"row {row}: block ids start at 1, found {int(np.min(ids))}")
        self._host[row, start:end] = ids
        self._host[row, end:used] = 0
        self._used[row] = end
        self._touch(row, start, max(end, used))

    def num_blocks(self, row: int) -> int:
        """Entries of the row, null blocks included."""
        return self._row_length(row)

    def clear(self, row: int) -> None:
        """The row has no blocks: all its entries are 0."""
        used = self._row_length(row)
        self._host[row, :used] = 0
        self._used[row] = 0
        self._touch(row, 0, used)

    def reset(self) -> None:
        """No row has blocks, on the host and on the device, whatever an interrupted step left half done."""
        for array in (self._host, self._sent, self._used, self._high):
            array[:] = 0
        self._low[:] = self.max_blocks
        self._device.zero_()

    @property
    def on_device(self) -> Tensor:
        """(max_rows, max_blocks) int32: the host's, as of the last `flush` or `apply`."""
        return self._device[: self.max_rows]

    @property
    def null_row(self) -> int:
        """A row that `gather` knows and nobody can set: all null blocks."""
        return self.max_rows

    def flush(self) -> int:
        """Send the entries that differ from what the device has, in one scatter. Returns how many."""
        index, values = self.take_changes()
        if len(index):
            on = self.device
            self.apply(torch.from_numpy(index).to(on), torch.from_numpy(values).to(on))
        return len(index)

    def take_changes(self) -> tuple[IntArray, npt.NDArray[np.int32]]:
        """Flat indices (n,) and values (n,) of the entries that differ from what the device has.

        They count as sent: give them to `apply` before anything reads the tables.
        """
        rows = np.nonzero(self._low < self._high)[0]
        if len(rows) == 0:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        low, width = self._low[rows], self._high[rows] - self._low[rows]
        flat = _ranges(rows * self.max_blocks + low, width)
        host, sent = self._host.reshape(-1), self._sent.reshape(-1)
        flat = flat[host[flat] != sent[flat]]
        values = host[flat]
        sent[flat] = values
        self._low[rows], self._high[rows] = self.max_blocks, 0
        self.entries_uploaded += len(flat)
        return flat, values

    def apply(self, index: Tensor, values: Tensor) -> None:
        """Make the changes `take_changes` gave, both now on the device, in one scatter; without a wait."""
        self._device.view(-1)[index] = values

    def gather(self, rows: Tensor, num_blocks: int, out: Tensor | None = None) -> Tensor:
        """The first `num_blocks` entries of `rows` (B,) int64 on the device: (B, num_blocks) int32, as of `flush`.

        Into `out` if given. `null_row` is allowed.

        Raises:
            InvalidArgument: more blocks than the table is wide.
        """
        if num_blocks > self.max_blocks:
            raise InvalidArgument(f"{num_blocks} blocks a row asked, the table is {self.max_blocks} wide")
        if out is None:
            return self._device[:, :num_blocks].index_select(0, rows)
        return torch.index_select(self._device[:, :num_blocks], 0, rows, out=out)

    def slots(self, rows: IntArray, positions: IntArray, block_size: int) -> IntArray:
        """Where each token goes: rows (T,) and positions (T,) in tokens -> slots (T,) int64, from the host mirror.

        A negative position is padding and gives -1.

        Raises:
            InvalidArgument: a position without a block.
        """
        padding = positions < 0
        logical = np.where(padding, 0, positions // block_size)
        if logical.size and int(logical.max()) >= self.max_blocks:
            raise InvalidArgument(f"position {int(positions.max())} passes the table: {self.max_blocks} blocks wide")
        blocks = self._host[rows, logical].astype(np.int64)
        slots = np.where(padding, -1, blocks * block_size + positions % block_size)
        lost = (blocks == 0) & ~padding
        if np.count_nonzero(lost):
            at = int(np.argmax(lost))
            raise InvalidArgument(
                f"row {int(rows[at])} has no block for position {int(positions[at])}: extend it first"
            )
        return slots

    def _row_length(self, row: int) -> int:
        if not 0 <= row < self.max_rows:
            raise InvalidArgument(f"no row {row}: rows are 0 to {self.max_rows - 1}")
        return int(self._used[row])

    def _touch(self, row: int, low: int, high: int) -> None:
        if low < high:
            self._low[row] = min(self._low[row], low)
            self._high[row] = max(self._high[row], high)


def _ranges(starts: IntArray, widths: IntArray) -> IntArray:
    """start, start + 1, ... of each range, one after another."""
    ends = np.cumsum(widths)
    inside: IntArray = np.arange(int(ends[-1]), dtype=np.int64)
    inside += np.repeat(starts - (ends - widths), widths)
    return inside
