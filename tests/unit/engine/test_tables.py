"""The device block table is the host's, whatever happens in between."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.engine.tables import BlockTables
from framework.errors import InvalidArgument


def ids(*values):
    return np.array(values, dtype=np.int32)


def flush(tables):
    """Make the device's tables the host's; returns how many entries were sent."""
    index, values = tables.take_changes()
    tables.apply(torch.from_numpy(index), torch.from_numpy(values))
    return len(index)


def test_only_entries_that_differ_are_uploaded():
    tables = BlockTables(4, 100, 4)
    tables.set(0, 0, np.arange(1, 91, dtype=np.int32))
    assert flush(tables) == 90
    tables.set(0, 90, ids(500))
    tables.set(2, 0, ids(3, 4))
    assert flush(tables) == 3
    tables.set(0, 0, np.arange(1, 91, dtype=np.int32))  # the same blocks again, and block 500 dropped
    assert flush(tables) == 1, "entries equal to the device's were sent again"
    tables.set(1, 0, ids(1, 2))
    tables.clear(1)
    assert flush(tables) == 0


def test_gathered_rows_come_in_the_order_asked_and_as_wide_as_asked():
    tables = BlockTables(3, 4, 4)
    tables.set(0, 0, ids(1, 2, 3))
    tables.set(2, 0, ids(5))
    flush(tables)
    picked = tables.gather(torch.tensor([2, 0, tables.max_rows]), 2)
    assert picked.dtype == torch.int32
    assert picked.tolist() == [[5, 0], [1, 2], [0, 0]]
    out = torch.full((2, 4), 9, dtype=torch.int32)
    assert tables.gather(torch.tensor([0, 1]), 4, out=out) is out
    assert out.tolist() == [[1, 2, 3, 0], [0, 0, 0, 0]]


def test_slots_are_block_times_size_plus_offset_and_pass_2_31_without_overflow():
    tables = BlockTables(2, 4, 4)
    tables.set(0, 0, ids(3, 7))
    tables.set(1, 0, ids(2**30))
    rows, positions = np.array([0, 0, 0, 1]), np.array([0, 4, 5, 3])
    assert tables.slots(rows, positions).tolist() == [12, 28, 29, 2**32 + 3]
    assert tables.slots(rows[:0], positions[:0]).tolist() == []


@pytest.mark.parametrize(("row", "position"), [(0, 8), (1, 0)])
def test_a_position_without_a_block_is_refused_and_not_sent_to_the_null_block(row, position):
    tables = BlockTables(2, 4, 4)
    tables.set(0, 0, ids(3, 7))
    with pytest.raises(InvalidArgument):
        tables.slots(np.array([row]), np.array([position]))


steps = st.tuples(
    st.integers(0, 1),
    st.one_of(st.none(), st.tuples(st.integers(0, 6), st.lists(st.integers(1, 9), max_size=6))),
    st.booleans(),
)


@given(st.lists(steps, max_size=30))
def test_the_device_equals_a_plain_mapping_after_any_history(history):
    """Each step sets or clears a row, and may flush."""
    tables, truth = BlockTables(2, 6, 4), {0: [], 1: []}
    for row, change, sent in history:
        if change is None:
            tables.clear(row)
            truth[row] = []
        else:
            start = min(change[0], len(truth[row]))
            blocks = change[1][: 6 - start]
            tables.set(row, start, np.array(blocks, dtype=np.int32))
            truth[row] = truth[row][:start] + blocks
        if sent:
            flush(tables)
            want = [blocks + [0] * (6 - len(blocks)) for blocks in truth.values()]
            assert tables.gather(torch.arange(2), 6).tolist() == want, history
            assert tables.host.tolist() == want, history
