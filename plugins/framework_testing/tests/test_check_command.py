"""`python -m framework check`: a verdict for each promise, the shortest failing calls, the cost."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import command

from framework import registry
from framework.errors import (
    ConfigError,
    FrameworkError,
    PluginError,
    PluginImportError,
    UnknownPlugin,
)
from framework_testing import eviction_checks
from framework_testing.check import costs as cost_module
from framework_testing.check.costs import costs
from framework_testing.check.verdicts import resolve, verdicts

main = command("check")

PINNED = "framework_testing.adversarial:NamesPinned"
"""Names a block in use."""
BAD = '''
from framework_testing.oracles.eviction import SlowLru

class Hangs(SlowLru):
    """Never answers."""
    def victim(self, now):
        while True:
            pass

class Mutates(SlowLru):
    """Empties the list it is handed."""
    def release(self, blocks, now):
        super().release(list(blocks), now)
        blocks.clear()

class Exits(SlowLru):
    """Leaves the process."""
    def victim(self, now):
        raise SystemExit(0)

class Refuses(SlowLru):
    """Cannot be built."""
    def __init__(self):
        raise RuntimeError("not today")
'''


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "bad_policies.py"
    path.write_text(BAD)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "bad_policies", raising=False)
    return str(path)


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_good_plugin_gets_a_line_for_each_promise_and_its_cost_beside_the_baselines(capsys: Any) -> None:
    status, out, err = check(capsys, "sieve")
    assert (status, err) == (0, ""), out + err
    assert f"{len(eviction_checks)} ok" in out
    assert [name for name in ("sieve", "lru", "fifo") if f"\n {name} " not in out] == [], out
    for column in ("admit", "release", "hit", "victim"):
        assert column in out


def test_options_of_the_plugin_may_stand_before_or_after_the_command_s_own(capsys: Any) -> None:
    words = ("--no-cost", "--only", "alike")
    for line in (("depth_aware", "weight=2", *words), ("depth_aware", *words, "weight=2")):
        assert check(capsys, *line)[0] == 0, line


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (PINNED, "must name a candidate"),
        ("Mutates", "release changed the list it was handed"),
        ("Exits", "raised SystemExit"),
    ],
)
def test_of_a_bad_plugin_it_is_said_which_promise_it_breaks_and_where(
    name: str, says: str, bad: str, capsys: Any
) -> None:
    words = ["--no-cost", "--timeout", "3", "--only", "large"]
    status, out, err = check(capsys, name if ":" in name else f"{bad}:{name}", *words)
    assert (status, err) == (1, ""), out + err
    assert says in out, out
    assert "FAILED a large pool" in out
    if name == "Exits":
        assert f"raised at {bad}:" in out, out
        assert "in victim" in out, out


def test_a_time_out_is_no_broken_promise_and_says_where_it_was(bad: str, capsys: Any) -> None:
    words = ["--no-cost", "--timeout", "2", "--only"]
    status, out, err = check(capsys, f"{bad}:Hangs", *words, "large")
    assert (status, err) == (2, ""), out + err
    assert "TIMED OUT a large pool" in out, out
    assert "1 timed out" in out, out
    assert "it took more than 2 s and was stopped" in out, out
    assert "raise --timeout" in out, out
    assert f"raised at {bad}:" in out, out
    assert "in victim" in out, out
    found = json.loads(check(capsys, f"{bad}:Hangs", *words, "large", "--json")[1])
    assert [one["status"] for one in found["verdicts"]] == ["timed out"], found


def test_the_large_part_is_run_when_it_is_asked_for_and_named_when_it_is_not(capsys: Any) -> None:
    out = check(capsys, "xxh64", "--no-cost", "--only", "large_prompts", "--large")[1]
    assert "large prompts" in out, out
    assert "1 ok" in out, out
    assert "--large" in check(capsys, "xxh64", "--no-cost", "--only", "pure")[1]
    status, _, err = check(capsys, "none", "--kind", "tracker", "--large")
    assert (status, "has no large part" in err) == (2, True), err


def test_help_says_what_is_taken_by_default(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "0 waits for ever; default: 120" in words, words
    assert "how many shapes; default: full" in words, words
    assert "a check ran out of time" in words, words


def test_costs_show_their_spread_and_that_the_machine_was_busy(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter([{"prompt": 120.0, "single": 300.0}, {"prompt": 180.0, "single": 300.0}])
    monkeypatch.setattr(cost_module, "_MEASURES", {"hash": lambda make: next(rounds)})
    monkeypatch.setattr(cost_module, "BASELINES", {"hash": ()})
    (cost,) = costs(resolve("xxh64"), rounds=2)
    assert (cost.numbers, cost.most) == ({"prompt": 120, "single": 300}, {"prompt": 180, "single": 300}), cost
    monkeypatch.setattr("framework_testing.check.command.costs", lambda *args, **kwargs: [cost])
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 0.0, 0.0))
    out = check(capsys, "xxh64", "--only", "pure")[1]
    assert "120 to 180 " in out, out
    assert "the machine is busy: a load of 99.0 on" in out, out
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert "busy" not in check(capsys, "xxh64", "--only", "pure")[1]


def test_the_shortest_history_is_shown(capsys: Any) -> None:
    out = check(capsys, PINNED, "--no-cost", "--only", "random")[1]
    calls = [line for line in out.splitlines() if line.strip()[:2].rstrip(".").isdigit()]
    assert 2 <= len(calls) <= 9, out


def test_costs_are_shown_though_the_kit_failed_and_the_subject_raises(bad: str, capsys: Any) -> None:
    status, out, _ = check(capsys, f"{bad}:Mutates", "--only", "alike")
    assert status == 1, out
    assert "\n lru " in out, out
    found = costs(resolve(f"{bad}:Mutates"), against=["lru"], rounds=1)
    assert [(one.name.rpartition(":")[2], bool(one.error)) for one in found] == [("Mutates", True), ("lru", False)], (
        found
    )


@pytest.mark.parametrize(
    ("kind", "name", "columns"),
    [
        ("hash", "xxh64", {"prompt", "single"}),
        ("allocator", "contiguous", {"lookup new", "allocate", "commit", "append", "lookup again", "free"}),
        ("backend", "gather", {"error vs fp64", "plain torch's error", "ms a decode"}),
        ("eviction", "lru_k", {"admit", "release", "hit", "victim"}),
    ],
)
def test_each_kind_has_costs_above_zero(kind: str, name: str, columns: set[str]) -> None:
    for cost in costs(resolve(name, kind), rounds=1, device="cpu"):
        assert set(cost.numbers) == columns, cost
        assert all(value > 0 for value in cost.numbers.values()), cost


ONE_CHECK = {
    "allocator": ("naive", "max_request"), "eviction": ("fifo", "alike"), "hash": ("blake2b", "pure"),
    "backend": ("gather", "zero"), "workload": ("rag", "anew"), "trace": ("vidur", "damage"),
    "tiering": ("on_second_hit", "equal"), "store": ("host", "removed"), "tracker": ("none", "stay_apart"),
    "observer": ("explain", "after_a_reset"), "scheduling": ("fair", "alike"),
    "router": ("lmetric", "facts"), "compression": ("streaming", "declared"),
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", [kind for kind in registry.kinds(with_kit=True) if kind != "replay_core"]
)  # none is built in
def test_every_kind_is_checked_by_name(kind: str) -> None:
    name, word = ONE_CHECK[kind]
    found = list(verdicts(resolve(name, kind), only=word))
    assert [one.status for one in found] == ["ok"], found


def test_json_holds_verdicts_and_costs(capsys: Any) -> None:
    status, out, err = check(capsys, PINNED, "--json", "--only", "alike", "--against", "mru")
    assert (status, err) == (1, "")
    found = json.loads(out)
    assert (found["kind"], found["verdicts"][0]["status"]) == ("eviction", "failed")
    assert [cost["name"] for cost in found["costs"]][1:] == ["mru"]


def test_a_check_that_does_not_apply_is_skipped_with_its_reason(capsys: Any) -> None:
    status, out, _ = check(capsys, "torch", "--no-cost", "--cases", "small", "--only", "depend_on_its_batch")
    assert status == 0
    assert "batch_invariant is not declared" in out
    assert "1 skipped" in out


def test_options_reach_the_constructor(capsys: Any) -> None:
    assert resolve("contiguous", options={"reserve": "pow2"}).make.keywords == {"reserve": "pow2"}  # type: ignore[attr-defined]
    status, _, err = check(capsys, "contiguous", "reserve=pow3")
    assert status == 2
    assert "did you mean 'pow2'" in err, err


TWO = '''
from framework.interfaces.hash import DigestScheme
from framework_testing.oracles.eviction import SlowLru
class Two(DigestScheme, SlowLru):
    """Both a hash and a policy."""
    def digest(self, data): return data
class Abstract(DigestScheme): pass
class None_: pass
function = print
'''


@pytest.mark.parametrize(
    ("what", "kind", "error", "says"),
    [
        ("lruu", None, UnknownPlugin, "did you mean 'lru'"),
        ("lru", "hash", UnknownPlugin, "no hash named 'lru'"),
        ("lru", "hashes", ConfigError, "did you mean 'hash'"),
        ("both", None, ConfigError, "of several kinds: eviction, hash; say which with --kind"),
        ("two_kinds:Two", None, ConfigError, "say which with --kind"),
        ("two_kinds:Two", "backend", PluginError, "not a subclass of AttentionBackend"),
        ("two_kinds:Abstract", None, PluginError, "does not implement digest"),
        ("two_kinds:None_", None, PluginError, "no class that implements one of"),
        ("two_kinds:function", None, PluginError, "no class that implements one of"),
        ("two_kinds:Nope", None, PluginImportError, "AttributeError"),
        ("no_such_module_at_all:X", None, PluginImportError, "ModuleNotFoundError"),
        ("no_such_file.py:X", None, PluginImportError, "no file"),
    ],
)
def test_what_cannot_be_checked_is_refused_with_a_sentence(
    what: str, kind: str | None, error: type[FrameworkError], says: str, distribution: Any, capsys: Any
) -> None:
    entry = "[framework.hash]\nboth = two_kinds:Two\n[framework.eviction]\nboth = two_kinds:Two\n"
    distribution("two-kinds", entry, two_kinds=TWO)
    with pytest.raises(error) as caught:
        resolve(what, kind)
    assert says in str(caught.value), caught.value
    status, out, err = check(capsys, what, *(["--kind", kind] if kind else []))
    assert (status, out) == (2, ""), out
    assert says in err, err
    assert err.count("\n") == 1, err


def test_a_constructor_that_raises_is_a_sentence(bad: str, capsys: Any) -> None:
    status, _, err = check(capsys, f"{bad}:Refuses")
    assert status == 1, "a plugin that fails has failed"
    assert "Refuses.__init__: raised RuntimeError('not today')" in err, err
