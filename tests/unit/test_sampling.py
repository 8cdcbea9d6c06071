"""Sampling takes what a request can mean, and refuses the rest by name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import InvalidArgument
from framework.sampling import Sampling

FIELDS = sorted(Sampling.__dataclass_fields__)
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([2**31, 2**63, 10**400, 10**5000, -(2**63)]), st.floats(),
    st.text(max_size=3), st.lists(st.integers(), max_size=2), st.lists(st.text(max_size=2), max_size=2),
)  # fmt: skip


@given(field=st.sampled_from(FIELDS), value=ANYTHING)
def test_any_value_of_any_field_is_taken_or_refused(field, value):
    try:
        Sampling(**{field: value})
    except InvalidArgument as error:
        message = str(error)
    else:
        return
    assert message.startswith(f"sampling.{field} must be"), message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top_k": 2**63}, r"top_k must be an integer, at least 0 \(0 keeps all\) and below 2\*\*31, found 9223372036"),
        ({"temperature": 10**5000}, "found a value of type int that cannot be shown"),
        ({"stop": ("",)}, "stop must be at most 64 texts of 1 to 4096 characters"),
        ({"beam_width": 2, "n": 2}, "n must be 1 with beam search, found 2"),
        ({"beam_width": 2, "stop": "x"}, "stop cannot be with beam search"),
    ],
)
def test_what_no_engine_can_do_is_refused_where_it_enters(given, message):
    with pytest.raises(InvalidArgument, match=message):
        Sampling(**given)


def test_numpy_numbers_lists_and_a_single_stop_are_taken_as_python_means_them():
    sampling = Sampling(max_tokens=np.int64(3), temperature=np.float32(0.5), stop="x", stop_token_ids=[np.int32(1)])
    assert sampling == Sampling(max_tokens=3, temperature=0.5, stop=("x",), stop_token_ids=(1,))
    assert type(sampling.max_tokens) is int
