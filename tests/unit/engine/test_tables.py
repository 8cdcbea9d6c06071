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


def test_only_entries_that_differ_are_uploaded():
    tables = BlockTables(4, 100)
    tables.set(0, 0, np.arange(1, 91, dtype=np.int32))
    assert tables.flush() == 90
    tables.set(0, 90, ids(500))
    tables.set(2, 0, ids(3, 4))
    assert tables.flush() == 3
    tables.set(0, 0, np.arange(1, 91, dtype=np.int32))  # the same blocks again, and block 500 dropped
    assert tables.flush() == 1, "entries equal to the device's were sent again"
    assert tables.entries_uploaded == 94
    assert tables.flush() == 0


def test_a_row_set_and_cleared_between_flushes_uploads_nothing():
    tables = BlockTables(2, 4)
    tables.set(0, 0, ids(1, 2))
    tables.clear(0)
    assert tables.flush() == 0


def test_gathered_rows_come_in_the_order_asked_and_as_wide_as_asked():
    tables = BlockTables(3, 4)
    tables.set(0, 0, ids(1, 2, 3))
    tables.set(2, 0, ids(5))
    tables.flush()
    picked = tables.gather(torch.tensor([2, 0, tables.null_row]), 2)
    assert picked.dtype == torch.int32
    assert picked.tolist() == [[5, 0], [1, 2], [0, 0]]
    out = torch.full((2, 4), 9, dtype=torch.int32)
    assert tables.gather(torch.tensor([0, 1]), 4, out=out) is out
    assert out.tolist() == [[1, 2, 3, 0], [0, 0, 0, 0]]
    with pytest.raises(InvalidArgument, match="5 blocks a row asked, the table is 4 wide"):
        tables.gather(torch.tensor([0]), 5)


def test_slots_are_block_times_size_plus_offset():
    tables = BlockTables(2, 4)
    tables.set(0, 0, ids(3, 7))
    tables.set(1, 0, ids(2))
    rows, positions = np.array([0, 0, 0, 1, 1]), np.array([0, 4, 5, 2, -1])
    assert tables.slots(rows, positions, 4).tolist() == [12, 28, 29, 10, -1]
    assert tables.slots(rows[:0], positions[:0], 4).tolist() == []


def test_slots_pass_2_31_without_overflow():
    tables = BlockTables(1, 1)
    tables.set(0, 0, ids(2**30))
    assert tables.slots(np.array([0]), np.array([255]), 256).tolist() == [2**38 + 255]


@pytest.mark.parametrize(("row", "position"), [(0, 8), (1, 0), (0, 16)])
def test_a_position_without_a_block_is_refused_and_not_sent_to_the_null_block(row, position):
    tables = BlockTables(2, 4)
    tables.set(0, 0, ids(3, 7))
    with pytest.raises(InvalidArgument):
        tables.slots(np.array([row]), np.array([position]), 4)


@pytest.mark.parametrize(
    ("row", "start", "blocks"),
    [(-1, 0, [1]), (2, 0, [1]), (0, 1, [1]), (0, -1, [1]), (0, 0, [1] * 5), (0, 0, [0]), (0, 0, [-3])],
)
def test_what_cannot_be_a_table_is_refused_and_changes_nothing(row, start, blocks):
    tables = BlockTables(2, 4)
    with pytest.raises(InvalidArgument):
        tables.set(row, start, np.array(blocks, dtype=np.int32))
    assert not tables.host.any()
    assert tables.flush() == 0


def test_the_host_mirror_cannot_be_written_from_outside():
    with pytest.raises(ValueError, match="read-only"):
        BlockTables(1, 1).host[0, 0] = 1


steps = st.tuples(
    st.integers(0, 1),
    st.one_of(st.none(), st.tuples(st.integers(0, 6), st.lists(st.integers(1, 9), max_size=6))),
    st.booleans(),
)


@given(st.lists(steps, max_size=30))
def test_the_device_equals_a_plain_mapping_after_any_history(history):
    """Each step sets or clears a row, and may flush."""
    tables, truth = BlockTables(2, 6), {0: [], 1: []}
    for row, change, flush in history:
        if change is None:
            tables.clear(row)
            truth[row] = []
        else:
            start = min(change[0], len(truth[row]))
            blocks = change[1][: 6 - start]
            tables.set(row, start, np.array(blocks, dtype=np.int32))
            truth[row] = truth[row][:start] + blocks
        if flush:
            tables.flush()
            want = [blocks + [0] * (6 - len(blocks)) for blocks in truth.values()]
            assert tables.on_device.tolist() == want, history
            assert tables.host.tolist() == want, history
