"""A plugin for each way to be bad, or lossy: it ends its run by name, what was found is kept, other runs go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hostile_plugins as villain
import pytest

from framework.results.reading import read_result
from framework_workloads.lines import read_jsonl

SMALL = (
    "workload.num_requests=8", "workload.output_tokens=5", "workload.prefix_tokens=48", "cache.num_blocks=24",
    "run.progress=false", "run.dir=out",
)  # fmt: skip

SAYS = {
    "RaisesAttach": "eviction policy RaisesAttach.attach: raised RuntimeError('attach is broken')",
    "RaisesVictim": "eviction policy RaisesVictim.victim: raised RuntimeError('victim is broken')",
    "WritesFacts": "eviction policy WritesFacts.release: raised TypeError('cannot modify read-only memory')",
    "RaisesFree": "allocator RaisesFree.free: raised RuntimeError('free is broken')",
    "RaisesAttend": "attention backend RaisesAttend.attend_one: raised RuntimeError('attend_one is broken')",
}
"""What ends the run, behind `villain 1.5: `."""
REPORTED = {"GivesNan": "logits not finite", "WrongNumbers": "requests differ from the dense model"}


@pytest.fixture
def bad(distribution: Any) -> Path:
    folder: Path = distribution("villain", villain.entry_points(), **villain.MODULES)
    return folder


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in villain.SPOILS_A_RUN.items() for name in names]
)
def test_a_run_names_the_plugin_that_spoils_it(kind: str, name: str, bad: Path, command: Any, elsewhere: Path) -> None:
    status, _, err = command(f"{kind}={name}", *SMALL)
    assert status == 1, "the run failed; nothing was asked wrongly: " + err
    assert err.count("\n") == 1, err
    result = read_result(elsewhere / "out")
    if name in SAYS:
        assert err == f"villain 1.5: {SAYS[name]}; set HYDRA_FULL_ERROR=1 for the traceback\n"
        assert (result["status"], result["reasons"]) == ("failed", [err.strip()]), result
        if name != "RaisesAttach":
            assert len(read_jsonl(elsewhere / "out" / "requests.jsonl")) == result["num_requests"] == 8, result
        return
    assert REPORTED[name] in err, err
    assert result["num_requests"] == 8 == result["num_finished"] + result["num_failed"], result
    assert result["status"] == ("faulty" if name == "WrongNumbers" else "failed_requests"), result
    if name == "GivesNan":
        assert result["dense_mismatches"] == 0, "a request that finished has wrong tokens"
        failed = [row for row in read_jsonl(elsewhere / "out" / "requests.jsonl") if row["status"] == "failed"]
        assert len(failed) == result["num_failed"] > 0, result
        assert all(row["reason"] for row in failed), failed
    else:
        assert result["dense_mismatches"] > 0, result


def test_in_a_sweep_the_next_job_runs(bad: Path, command: Any, elsewhere: Path) -> None:
    status, _, err = command("-m", "eviction=RaisesVictim,fifo", *SMALL[:-1], "run.sweep=s", "run.report=false")
    assert status == 1, err
    assert SAYS["RaisesVictim"] in err, err
    assert "1 of 2 jobs failed" in err, err
    statuses = {read_result(path.parent)["eviction"]: read_result(path.parent)["status"]
                for path in elsewhere.rglob("result.json")}  # fmt: skip
    assert statuses == {"RaisesVictim": "failed", "fifo": "ok"}


def test_a_plugin_that_ends_the_process_ends_its_run_alone(bad: Path, command: Any, elsewhere: Path) -> None:
    status, _, err = command("eviction=Exits", *SMALL)
    assert (status, err) == (1, "PluginError: villain 1.5: eviction policy Exits.victim: raised SystemExit(0)\n")
    assert read_result(elsewhere / "out")["status"] == "failed"
    status, _, err = command("eviction=ExitsAtOnce", *SMALL)
    assert (status, err.count("\n")) == (1, 1), err
    assert "villain 1.5: eviction policy ExitsAtOnce.__init__: raised SystemExit(0)" in err, err


def test_a_number_that_a_component_refuses_was_asked_wrongly(command: Any) -> None:
    status, _, err = command("eviction=depth_aware", "eviction.weight=-1", *SMALL)
    assert (status, err.count("\n")) == (2, 1), err
    assert "depth_aware.weight must be at least 0, found -1" in err


def test_a_third_party_that_takes_a_default_s_name_takes_nothing_away(
    bad: Path, distribution: Any, command: Any, elsewhere: Path
) -> None:
    distribution("thief", "[framework.eviction]\nlru = villain_eviction:RaisesVictim\nslru = villain_eviction:Base\n")
    assert command(*SMALL)[::2] == (0, "")
    assert read_result(elsewhere / "out")["eviction"] == "lru"
    status, _, err = command("eviction=thief:lru", *SMALL)
    assert status == 1
    assert "RaisesVictim.victim: raised RuntimeError('victim is broken')" in err, err
    provenance = json.loads((elsewhere / "out" / "provenance.json").read_text())
    assert provenance["components"]["eviction"]["distribution"] == "thief", provenance["components"]
    status, _, err = command("eviction=kvcache-framework:slru", *SMALL)
    assert (status, err) == (0, "")


def test_in_a_sweep_over_all_a_thief_is_a_row_of_its_own(bad: Path, command: Any, elsewhere: Path) -> None:
    status, _, err = command("-m", "eviction=glob([fifo,*slru])", *SMALL[:-1], "run.sweep=s", "run.report=false")
    assert status == 0, err
    found = {read_result(path.parent)["eviction"] for path in elsewhere.rglob("result.json")}
    assert found == {"fifo", "slru", "villain:slru"}


@pytest.mark.parametrize("name", ["Spins", "Sleeps"])
def test_a_policy_that_never_returns_is_ended_and_named(name: str, bad: Path, command: Any, elsewhere: Path) -> None:
    assert command("eviction=fifo", *SMALL)[0] == 0, "what is slow the first time is not to be blamed"
    status, _, err = command(f"eviction={name}", *SMALL, "run.stall_timeout_s=1")
    assert status == 1, err
    assert err.startswith(f"PluginError: eviction {name}.victim (villain_eviction.py:"), err
    assert "has not returned for 1 seconds (run.stall_timeout_s" in err
    assert err.count("\n") == 1, err
    result = read_result(elsewhere / "out")
    assert result["status"] == "failed", "what was found so far is kept, and is no result"
    assert command("eviction=fifo", *SMALL)[0] == 0


def test_a_replay_is_watched_like_a_serve_run(bad: Path, command: Any, elsewhere: Path) -> None:
    lines = [{"chat_id": i, "timestamp": i, "input_length": 64, "output_length": 2,
              "hash_ids": [4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3]} for i in range(30)]  # fmt: skip
    (elsewhere / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("mode=replay", "workload=trace", "workload.path=trace.jsonl", "workload.block_tokens=16", *SMALL[3:])
    status, _, err = command(*words, "eviction=Spins", "run.stall_timeout_s=0.6")
    assert status == 1, err
    assert err.startswith("PluginError: eviction Spins.victim (villain_eviction.py:"), err


SURROGATES = """
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.workload import Sampling, Workload, WorkloadRequest
from framework_builtin.eviction.lru import Lru

class Broken(Lru):
    def facts(self):
        return {"half": "\\udc80"}

class Requests(Workload):
    def __init__(self, num_requests: int = 4) -> None:
        self.num_requests = num_requests

    def requests(self):
        for number in range(self.num_requests):
            yield WorkloadRequest(prompt=[1, 2, 3, number + 4], key=f"\\ud800{number}", category="\\udfff",
                                  tenant="t", sampling=Sampling(max_tokens=3), output_tokens=3)

    def facts(self):
        return {"half": "\\ud83d"}
"""


@pytest.mark.parametrize("mode", ["serve", "replay"])
def test_half_a_surrogate_pair_of_a_plugin_breaks_no_file_of_a_run(mode: str, command: Any, elsewhere: Path) -> None:
    (elsewhere / f"half_{mode}.py").write_text(SURROGATES)
    words = (f"mode={mode}", f"workload=half_{mode}.py:Requests", f"eviction=half_{mode}.py:Broken",
             "cache.num_blocks=32", "run.progress=false", "run.events=true", "run.check_requests=0")  # fmt: skip
    status, _, err = command("-m", *words, "run.sweep=s", "seed=0,1")
    assert (status, err) == (0, ""), err
    for folder in Path("sweeps/s").glob("seed=*"):
        for name in ("requests.jsonl", "events.jsonl", "metrics.jsonl"):
            assert read_jsonl(folder / name), name
        assert [row["key"] for row in read_jsonl(folder / "requests.jsonl")] == [
            f"\ud800{number}" for number in range(4)
        ]
        assert read_result(folder)["status"] == "ok"
    assert Path("sweeps/s/runs.csv").read_text(encoding="utf-8").count("\n") == 3
    assert Path("sweeps/s/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("backend", "fails"), [("Int8Reader", False), ("Int2Reader", True)])
def test_a_run_reports_the_loss_and_fails_beyond_what_is_declared(
    backend: str, fails: bool, distribution: Any, command: Any, elsewhere: Path, repository: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(str(repository / "plugins/framework-example"))
    backends = """
from framework_example.lossy_backend import Int8Reader, rounded

class Int2Reader(Int8Reader):
    def attend_one(self, q, k, v, row):
        return super().attend_one(q, rounded(k, 1), rounded(v, 1), row)
"""
    entries = "".join(f"{name} = lossy_module:{name}\n" for name in ("Int8Reader", "Int2Reader"))
    distribution("lossy", f"[framework.backend]\n{entries}", lossy_module=backends)
    status, out, err = command(f"backend={backend}", "workload.num_requests=4", "workload.output_tokens=6", *SMALL[-2:])
    assert status == int(fails), err
    result = read_result(elsewhere / "out")
    assert result["dense_checked"] > 0, result
    assert 0.0 <= result["dense_agreement"] <= 1.0, result
    assert result["dense_logit_error"] > 0.0, result
    assert result["dense_kl_divergence"] > 0.0, result
    assert result["attention_error_declared"] == 0.05, result
    assert (result["attention_error"] > 0.05) == fails, result
    assert "attention error" in out, out
    assert ("lost more than the backend declares" in err) == fails, err


@pytest.mark.parametrize("file", ["METADATA", "entry_points.txt"])
def test_a_distribution_whose_metadata_is_no_utf_8_is_named_and_stops_nothing(
    file: str, distribution: Any, command: Any
) -> None:
    site = distribution("latin", "[framework.eviction]\nlatin = latin:Latin\n", latin="Latin = 1")
    path = site / "latin-1.5.dist-info" / file
    path.write_bytes(path.read_bytes() + "\nSummary: caf\u00e9".encode("latin-1"))
    words = ("mode=replay", "workload=conversations", "cache.num_blocks=64")
    status, _, err = command(*words, "run.progress=false", "run.dir=one")
    assert status == 0, err
    assert err.count("\n") == 1, err
    assert f"skipped: the metadata in {path.parent} cannot be read: UnicodeDecodeError" in err, err
    status, _, err = command(*words, "eviction=latin", "run.dir=two")
    assert status == 2
    assert "UnknownPlugin: no eviction named 'latin'" in err, err
