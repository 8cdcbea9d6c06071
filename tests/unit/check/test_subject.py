"""What a word after `framework.check` means."""

from __future__ import annotations

import pytest

from framework.check import resolve
from framework.errors import ConfigError, InvalidPlugin, UnknownPlugin


def test_an_installed_name_is_made_with_its_options() -> None:
    subject = resolve("lru_k", options={"k": 3})
    assert (subject.kind, subject.title.partition(" (")[0]) == ("eviction", "eviction 'lru_k'")
    assert subject.make() is not subject.make()


def test_a_class_of_a_module_is_of_the_kind_that_it_implements() -> None:
    assert resolve("framework_builtin.hash.sha256:Sha256").kind == "hash"
    with pytest.raises(InvalidPlugin, match="not a subclass of EvictionPolicy"):
        resolve("framework_builtin.hash.sha256:Sha256", "eviction")


def test_what_is_not_there_or_takes_no_such_option_is_refused() -> None:
    with pytest.raises(UnknownPlugin, match="did you mean 'sieve'"):
        resolve("siev")
    with pytest.raises(ConfigError, match="did you mean 'k'"):
        resolve("lru_k", options={"kk": 3})
    with pytest.raises(ConfigError, match="no kind of plugin is named 'evict'"):
        resolve("lru", "evict")
