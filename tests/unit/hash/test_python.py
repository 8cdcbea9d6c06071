"""Python's hash has the published collision."""

from __future__ import annotations

from hash_tokens import tokens

from framework_builtin.hash.python import PythonHash


def test_python_s_hash_has_the_published_collision() -> None:
    scheme = PythonHash()
    assert not scheme.collision_resistant
    # hash(-1) == hash(-2), so two parents that differ only there give one child
    one, two = ((-1).to_bytes(8, "little", signed=True), (-2).to_bytes(8, "little", signed=True))
    assert scheme.block(one, tokens(1, 2)) == scheme.block(two, tokens(1, 2))
