"""Runs are read back whole, also beside damaged ones, with what they read and where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from framework.errors import ConfigError, Unsupported
from framework_report import records


def make_run(folder: Path, result: dict[str, Any] | None = None, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"mode": "serve", "seed": 0, "run": {"dir": "x"}, **config}))
    (folder / "result.json").write_text(json.dumps({"status": "ok", "hit_rate": 0.5, **(result or {})}))
    return folder


REPLAY = {
    "mode": "replay",
    "eviction": {"name": "lru"},
    "allocator": {"name": "prefix_cow"},
    "hash": {"name": "sha256"},
    "workload": {"name": "trace", "path": "t/a.jsonl"},
    "cache": {"num_blocks": 8, "block_size": 512, "layout": "NHD"},
    "engine": {"max_batch_tokens": 2048},
    "replay": {"step_s": 0.025, "optimum": True, "device": "h200", "shape": "llama-3.1-8b", "capacity": None},
    "model": {"name": "tiny"},
}


def test_only_settings_that_the_mode_reads_are_listed(tmp_path: Path) -> None:
    make_run(tmp_path / "a", **REPLAY)
    make_run(tmp_path / "b", **{**REPLAY, "executor": "roofline"})
    make_run(tmp_path / "c", **{**REPLAY, "mode": "serve", "executor": None})
    replay, roofline, serve = (set(run.settings) for run in records.read(tmp_path))
    components = {"mode", "seed", "eviction", "allocator", "workload", "workload.path"}
    shared = components | {"cache.num_blocks", "cache.block_size"}
    steps = {"hash", "engine.max_batch_tokens", "replay.step_s", "replay.capacity", "replay.optimum"}
    assert replay == shared | steps
    assert roofline == shared | steps | {"executor", "replay.device", "replay.shape"}
    assert serve == shared | {"hash", "model", "engine.max_batch_tokens", "cache.layout"}


def test_records_hold_settings_and_results(tmp_path: Path) -> None:
    make_run(tmp_path / "s" / "one", {"num_evictions": 7, "eviction": "lru"}, **REPLAY)
    (record,) = records.read(tmp_path / "s").records()
    assert (record["run"], record["status"], record["num_evictions"], record["hit_rate"]) == ("one", "ok", 7, 0.5)
    assert record["cache.num_blocks"] == 8


def test_origin_carries_command_date_machine_and_checksum(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", **REPLAY)
    provenance = {
        "command": "python -m framework.run eviction=lru,s3fifo 'workload.path=a b.jsonl'",
        "started_at": "2026-11-22T08:39:23.249+00:00",
        "cpu": {"model": "EPYC"},
        "platform": "Linux",
        "package": {"git_revision": "abc", "git_dirty": True},
        "inputs": [{"name": "a.jsonl", "sha256": "ff" * 32}],
    }
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (run,) = records.read(tmp_path)
    assert run.origin.command == "python -m framework.run eviction=lru,s3fifo 'workload.path=a b.jsonl'"
    assert (run.origin.date, run.origin.machine) == ("2026-11-22 08:39:23", "EPYC, Linux")
    assert (run.origin.revision, run.trace, run.trace_name) == ("abc+", "ff" * 32, "a.jsonl")


DAMAGE: dict[str, tuple[str, str]] = {
    "401 digits": ("result.json", json.dumps({"status": "ok", "hit_rate": 0.1}).replace("0.1", "9" * 401)),
    "5000 digits": ("result.json", '{"status": "ok", "hit_rate": ' + "9" * 5000 + "}"),
    "deep JSON": ("result.json", '{"status": "ok", "a": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "infinite": ("result.json", '{"status": "ok", "hit_rate": 1e999}'),
    "no object": ("result.json", "[1]"),
    "not text": ("result.json", "\udcff"),
    "surrogates": ("result.json", '{"status": "ok", "hit_rate": 0.1, "\\ud800": "\\ud800"}'),
    "odd status": ("result.json", '{"status": [1], "num_failed": "x", "reasons": {"a": 1}}'),
    "recursive YAML": ("config.yaml", "a: &a\n  b: *a\n"),
    "odd keys": ("config.yaml", "1: 2\nnull: 3\n2026-01-01: 4\n[1, 2]: 5\n"),
    "no mapping": ("config.yaml", "- 1\n- 2\n"),
    "deep YAML": ("config.yaml", "[" * 5000),
    "odd provenance": (
        "provenance.json",
        json.dumps({"package": "x", "argv": [1], "cpu": [], "inputs": [{"name": []}]}),
    ),
    "provenance is a list": ("provenance.json", "[]"),
    "odd overrides": ("job.json", json.dumps({"overrides": [1, None, "a"]})),
    "odd failure": ("failure.json", json.dumps({"status": 3, "reason": {"a": []}, "overrides": 7})),
}
"""What a crash, a disk or a hostile hand may leave in the files of a run: the file and its text."""


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_run_is_a_row_and_the_others_are_read(tmp_path: Path, kind: str) -> None:
    name, text = DAMAGE[kind]
    make_run(tmp_path / "good", **REPLAY)
    folder = make_run(tmp_path / "odd", **REPLAY)
    (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    found = {run.name: run for run in records.read(tmp_path)}
    assert found["good"].ok
    assert found["odd"].ok or found["odd"].reason, found["odd"]
    if kind == "401 digits":
        assert found["odd"].number("hit_rate") is None, "no table can hold it"


def test_a_run_in_two_of_the_folders_is_read_once(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "sweep" / "a", **REPLAY)
    assert len(records.read(tmp_path, tmp_path / "sweep", folder)) == 1


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run below"):
        records.read(tmp_path)


def test_lines_of_all_runs_carry_their_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (make_run(tmp_path / name) / "requests.jsonl").write_text('{"request": 0, "prompt_tokens": 3}\n')
    assert records.read(tmp_path).lines("requests") == [
        {"run": name, "request": 0, "prompt_tokens": 3} for name in ("a", "b")
    ]
    with pytest.raises(Unsupported, match=r"there are metrics, events, requests, recording, .*kernel"):
        records.read(tmp_path).lines("blocks")


def test_runs_are_found_with_their_state_settings_and_reason(sweep: Path) -> None:
    rows = {row.name: row for row in records.read(sweep)}
    assert len(rows) == 14
    assert rows["lru_64-0"].settings["eviction"] == "lru"
    assert rows["lru_64-0"].settings["cache.num_blocks"] == 64
    assert not any(key.startswith(("run", "tracker")) for key in rows["lru_64-0"].settings)
    assert (rows["killed"].status, rows["killed"].settings["eviction"]) == ("unfinished", "mru")
    assert (rows["bad_<b>&"].status, rows["bad_<b>&"].settings) == ("failed", {"eviction": "sieve", "seed": 0})


def settings(folder: Path, **config: Any) -> dict[str, Any]:
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return records.settings_of(folder, ())


def test_a_component_in_a_list_among_the_options_of_another_stands_under_its_number(tmp_path: Path) -> None:
    places = [{"eviction": {"name": "lru"}, "num_blocks": 4}, {"eviction": {"name": "lru_k", "k": 3}, "num_blocks": 9}]
    found = settings(tmp_path, mode="replay", below={"name": "x", "places": places}, replay={"shape": "tiny"})
    assert found == {
        "mode": "replay",
        "below": "x",
        "below.places.1.eviction": "lru",
        "below.places.1.num_blocks": 4,
        "below.places.2.eviction": "lru_k",
        "below.places.2.eviction.k": 3,
        "below.places.2.num_blocks": 9,
        "replay.shape": "tiny",
    }, "bytes moved are of this shape"


def test_where_nothing_asks_for_the_bytes_of_a_block_their_shape_is_no_setting(tmp_path: Path) -> None:
    for below in ("none", {"name": "none"}):
        assert "replay.shape" not in settings(tmp_path, mode="replay", below=below, replay={"shape": "tiny"})
