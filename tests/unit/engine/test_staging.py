"""Arrays that go to the device in one copy; how many copies a step makes is in test_pretended_device."""

from __future__ import annotations

import numpy as np

from framework.engine.staging import Staging, layout


def test_arrays_come_back_as_they_were_sent_and_land_where_they_landed_before() -> None:
    staging = Staging("cpu", 64)
    arrays = [np.arange(5), np.array([[0.5, 2.0]]), np.array([7], np.int32), np.empty(0, np.int64)]
    first = staging.upload(*arrays)
    addresses = [tensor.data_ptr() for tensor in first[:3]]
    again = staging.upload(*(array + 1 for array in arrays))
    assert [tensor.data_ptr() for tensor in again[:3]] == addresses
    for array, tensor in zip(arrays, again, strict=True):
        assert np.array_equal(tensor.numpy(), array + 1), tensor
    assert all(place % 64 == 0 for place in layout(*arrays)[0])
    assert staging.num_uploads == 2
