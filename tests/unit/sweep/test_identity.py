"""What makes a run's numbers: two runs that differ in any of it have two identities."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from framework import registry
from framework.registry.lookup import Plugin
from framework.sweep import identity as identities
from framework.sweep.identity import Repeats, components, digest_of, identity, inputs, uses_seed


def config(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "mode": "replay",
        "workload": {"name": "trace", "path": "t.jsonl"},
        "eviction": {"name": "lru"},
        "tracker": {"name": "none"},
        "run": {"dir": "x"},
    }
    return plain | changes


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text("{}\n")
    return tmp_path


def test_code_and_inputs_that_change_make_another_identity(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "ed.py").write_text("class Mine: ...\n")
    mine = config(eviction={"name": "ed.py:Mine"})
    found = [identity(mine)]
    assert identity(mine) == found[0]
    (folder / "t.jsonl").write_text("{} \n")
    found.append(identity(mine))
    monkeypatch.setattr(identities.registry, "framework_content", lambda: "another")
    found.append(identity(mine))
    monkeypatch.setattr(identities.registry, "content_of", lambda plugin: "edited")
    found.append(identity(mine))
    assert len(set(found)) == 4, found


def test_a_run_s_plugins_are_those_among_the_options_of_others_and_of_its_trace_too() -> None:
    below = {"name": "x", "places": [{"num_blocks": 4, "eviction": {"name": "fifo"}}], "hash": "sha256"}
    found = dict(components(config(below=below, workload={"name": "trace", "format": "csv", "path": "t"})))
    assert found == {
        "mode": "replay",
        "workload": "trace",
        "eviction": "lru",
        "below": "x",
        "below.places.1.eviction": "fifo",
        "below.hash": "sha256",
        "trace": "csv",
    }


def test_what_a_run_writes_is_no_input_and_folders_are_those_of_traces_and_models(folder: Path) -> None:
    for name in ("model", "kept", "out"):
        (folder / name).mkdir()
        (folder / name / "file.json").write_text("{}")
    (folder / "scales.json").write_text("{}")
    plain = config(
        model={"name": "hf", "path": "model"},
        cache={"kv_scales": "scales.json", "num_blocks": 4},
        below={"name": "x", "places": [{"store": {"name": "disk", "path": "scales.json"}, "link": "scales.json"}]},
        eviction={"name": "lru", "table": "kept"},
        run={"dir": "out"},
        tracker={"name": "lines", "file": "scales.json"},
    )
    found = {key: str(path) for key, path in inputs(plain)}
    assert found == {
        "workload.path": "t.jsonl",
        "model.path": "model",
        "cache.kv_scales": "scales.json",
        "below.places.1.link": "scales.json",
    }
    before = digest_of(folder / "model")
    (folder / "model" / "file.json").write_text("[]")
    assert digest_of(folder / "model") != before
    assert digest_of(folder / "missing") == ""


def test_a_folder_s_digest_has_all_files_below_it_with_their_places(folder: Path) -> None:
    (folder / "model" / "part").mkdir(parents=True)
    (folder / "model" / "part" / "a.json").write_text("1")
    seen = [digest_of(folder / "model")]
    (folder / "model" / "part" / "a.json").write_text("2")
    seen.append(digest_of(folder / "model"))
    (folder / "model" / "part").rename(folder / "model" / "other")
    seen.append(digest_of(folder / "model"))
    assert len(set(seen)) == 3, seen


def test_large_weights_count_by_size_and_time_and_a_large_trace_by_its_lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "_LARGE_BYTES", 10)
    found = {}
    for name in ("weights.safetensors", "trace.jsonl"):
        digests = list[str]()
        for text, time in (("a" * 20, 1), ("b" * 20, 1), ("b" * 20, 2), ("b" * 21, 2)):
            path = folder / str(len(digests)) / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            os.utime(path, (time, time))
            digests.append(digest_of(path))
        found[name] = [digests.index(digest) for digest in digests]
    assert found == {"weights.safetensors": [0, 0, 2, 3], "trace.jsonl": [0, 1, 1, 3]}


def test_what_a_mode_is_given_and_others_readers_are_plugins_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Plugin("trace", "mine", "mine:Reader", "mine-1", "1")
    installed = registry.entries
    monkeypatch.setattr(registry, "entries", lambda kind: [mine, *installed(kind)])
    found = dict(components(config(mode={"name": "replay", "eviction": "mru"})))
    assert found == {
        "mode": "replay", "mode.eviction": "mru", "workload": "trace", "eviction": "lru",
        "auto.mine-1:mine.trace": "mine-1:mine",
    }  # fmt: skip
    assert "auto.mine-1:mine.trace" not in dict(components(config(workload={"name": "trace", "format": "own"})))


def test_what_a_run_does_is_in_its_identity_and_how_it_is_watched_is_not() -> None:
    plain = identity(config())
    for changes in ({"tracker": {"name": "wandb"}}, {"run": {"dir": "y", "progress": False, "overwrite": True}}):
        assert identity(config(**changes)) == plain, changes
    for changes in ({"run": {"dir": "x", "explain": True}}, {"eviction": {"name": "fifo"}}, {"seed": 1}):
        assert identity(config(**changes)) != plain, changes


REPLAY = {
    "mode": "replay",
    "workload": {"name": "trace"},
    "allocator": {"name": "prefix_cow"},
    "eviction": {"name": "lru"},
    "hash": {"name": "sha256"},
}


@pytest.mark.parametrize(
    ("changes", "uses"),
    [
        ({}, False),
        ({"executor": "none"}, False),
        ({"executor": "roofline"}, False),
        ({"workload": {"name": "recording"}, "executor": "none"}, False),
        ({"eviction": {"name": "random"}}, True),
        ({"mode": "serve"}, True),
        ({"mode": "kernel"}, True),
        ({"workload": {"name": "chat"}}, True),
    ],
)
def test_a_replay_uses_the_seed_where_a_component_s_constructor_takes_it(changes: dict[str, Any], uses: bool) -> None:
    assert uses_seed({**REPLAY, **changes}) is uses


def test_the_first_of_the_jobs_that_differ_in_an_unused_seed_is_run() -> None:
    repeats = Repeats()
    jobs = [([f"+eviction={name}", "cache.num_blocks=8", f"seed={seed}"], name) for seed in (4, 5, 6) for name in "ab"]
    names = {"a": "lru", "b": "random"}
    found = [
        repeats.repeats(words, lambda name=name: {**REPLAY, "eviction": {"name": names[name]}}) for words, name in jobs
    ]
    assert found == [False, False, True, False, True, False]
    assert repeats.names == {"eviction=lru": 2}
    assert not repeats.repeats(["eviction=lru", "cache.num_blocks=16", "seed=5"], lambda: REPLAY)
    assert not repeats.repeats(["eviction=lru"], lambda: REPLAY), "no seed was asked for"
