"""A plugin made for another version of the plugin contract is refused with a sentence, and costs its author nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from framework import __version__, interfaces, registry
from framework.errors import ContractMismatch
from framework.registry.contract import SINCE, judge, reason_against

HISTORY = {1: "0.1.0", 2: "1.0.0", 3: "2.0.0"}


@pytest.mark.parametrize(
    ("declared", "version", "says"),
    [
        ("kvcache-framework>=0.1", "0.9.3", ""),
        ("kvcache-framework>=0.1", "1.0.0", "made for plugin contract 1 (kvcache-framework>=0.1), and 1.0.0 has"),
        ("kvcache-framework>=0.1", "1.0.0rc1", "has contract 2"),
        ("kvcache-framework>=0.1,<2", "1.4.0", ""),
        ("kvcache-framework>=0.1,<1", "1.4.0", "it asks for kvcache-framework<1,>=0.1, and 1.4.0 is installed"),
        ("KVCache_Framework (>=2.0)", "1.0", "it asks for kvcache-framework>=2.0, and 1.0 is installed"),
        ("kvcache-framework~=1.2", "1.3.0.dev4", ""),
        ("kvcache-framework~=1.2", "2.0.0", "it asks for"),
        ("kvcache-framework==1.*", "1.9", ""),
        ("kvcache-framework>=2", "2.0.0.dev1", ""),
        ("kvcache-framework", "2.0.0", ""),
        ("numpy>=99", "2.0.0", ""),
        ("kvcache-framework>=9; extra == 'all'", "1.0", ""),
        ("kvcache-framework >= what", "1.0", ""),
    ],
)
def test_what_a_distribution_asks_for_decides(declared: str, version: str, says: str) -> None:
    found = judge(["torch>=2", declared], version=version, since=HISTORY)
    assert (says in found) if says else found == "", found


def test_the_contract_in_force_is_the_newest_and_began_no_later_than_this_version() -> None:
    assert max(SINCE) == interfaces.CONTRACT
    assert judge(["kvcache-framework>=0.1"]) == "", __version__


def test_unknown_and_own_distributions_are_let_in() -> None:
    assert reason_against("KVCache_Framework") == ""
    assert reason_against("nobody-has-this-distribution") == ""


def test_a_refused_plugin_is_not_imported_and_named_with_its_distribution(distribution: Any) -> None:
    site = distribution("from-tomorrow", "[framework.eviction]\ntomorrow = from_tomorrow:X\n", from_tomorrow="1 / 0")
    info = site / "from_tomorrow-1.5.dist-info" / "METADATA"
    info.write_text(info.read_text() + "Requires-Dist: kvcache-framework>=7\n")
    with pytest.raises(ContractMismatch) as caught:
        registry.load("eviction", "tomorrow")
    assert str(caught.value) == (
        "eviction 'tomorrow' (from-tomorrow 1.5) cannot be used: it asks for kvcache-framework>=7, and "
        f"{__version__} is installed; install a version of from-tomorrow made for this one"
    )
    assert "from_tomorrow" not in sys.modules
