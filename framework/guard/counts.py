"""What guards accept as a count."""

from __future__ import annotations

import numpy as np


def is_count(value: object) -> bool:
    """Whether it is an int, Python's or NumPy's, of 0 or more; a bool is none."""
    return (type(value) is int or isinstance(value, np.integer)) and bool(value >= 0)
