"""A constant scheme gives one hash to all contents."""

from __future__ import annotations

from hash_tokens import tokens

from framework.types import Namespace
from framework_builtin.hash.constant import Constant


def test_a_constant_scheme_names_everything_alike() -> None:
    scheme = Constant()
    root = scheme.root(Namespace(salt="s"), 4)
    assert set(scheme.blocks(root, tokens(*range(40)), 4)) == {root}
