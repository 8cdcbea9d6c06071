"""Links measured as a serve run uses them, and the models that replays take from them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pretended_cuda import Stream, pretended_cuda

from framework.api import run
from framework.config.check import parse
from framework.engine.block_bytes import CudaPoolBytes
from framework.engine.pool import KVPool
from framework.engine.tiers.setup import link_of
from framework.errors import ConfigError, Unsupported
from framework.files.jsonl import read_jsonl
from framework.kernel import link_times
from framework.kernel.copies import DeviceCopies
from framework.kernel.link_times import COUNTS, Samples, measure_copies
from framework.kernel.links import judge, link_file
from framework.modes import links as mode
from framework.report.links import print_links
from framework.tiers.links import Link, LinkTransfers
from framework.tiers.transfers import Copy
from framework.tiers.worker import WorkerTransfers
from framework.types import BlockHash

SIZE = 1 << 20


def modelled(link: Link, sizes: Sequence[int] = (SIZE, SIZE // 4, 4 * SIZE), noise: float = 0.0) -> Samples:
    """What `LinkTransfers` takes for the operations that are measured: loads as one, stores of a block each."""
    draw, samples = random.Random(2), Samples("modelled", SIZE)
    for size in sizes:

        def timer(ways: Sequence[str], count: int, size: int = size) -> float:
            clock = [0.0]
            moves = LinkTransfers([link], size, lambda: clock[0], lambda when: clock.__setitem__(0, when))
            if "read" in ways:
                moves.submit([Copy(BlockHash(b"r%d" % n), 1, 0) for n in range(count)])
            for number in range(count if "write" in ways else 0):
                moves.submit([Copy(BlockHash(b"w%d" % number), 0, 1)])
            while moves.num_pending:
                moves.wait(None)
                moves.finished()
            return clock[0] * (1 + draw.uniform(-noise, noise))

        samples.measure(timer, size, COUNTS, 0.0)
    return samples


LINKS = [
    Link(read_bytes_per_s=25e9, write_bytes_per_s=20e9, read_operation_s=5e-5, write_operation_s=2e-5),
    Link(read_bytes_per_s=3e9, write_bytes_per_s=1e9, read_operation_s=1e-4, write_operation_s=3e-4, duplex=False),
]


@pytest.mark.parametrize("link", LINKS, ids=["duplex", "one at a time"])
def test_the_link_of_a_replay_is_found_again_from_the_times_that_it_predicts(link: Link) -> None:
    report = judge(modelled(link), copies_at_once=False)
    found = report.model
    assert found.duplex == link.duplex
    assert found.link().seconds("read", 7 * SIZE) == pytest.approx(link.seconds("read", 7 * SIZE))
    assert found.link().seconds("write", SIZE) == pytest.approx(link.seconds("write", SIZE))
    assert report.off == []
    assert {row["direction"] for row in report.rows} == {"read", "write", "both"}


def test_noise_below_the_tolerance_is_not_reported_and_a_cliff_is() -> None:
    assert judge(modelled(LINKS[0], noise=0.05), copies_at_once=False).off == []
    samples = modelled(LINKS[0])
    cliff = (("read",), 32, SIZE)
    samples.taken[cliff] = [2 * seconds for seconds in samples.taken[cliff]]
    off = judge(samples, copies_at_once=False).off
    assert [(row["direction"], row["blocks"]) for row in off if row["off"] < -0.15] == [("read", 32)]


def measured(folder: Path, **changes: Any) -> dict[str, Any]:
    config = {
        "mode": "kernel",
        "device": "cpu",
        "cache": {"block_size": 4},
        "kernel": {"measure": "links", "budget_s": 0.01},
        "replay": {"shape": "qwen3-100m"},
        "tiers": [
            {"store": "host", "num_blocks": 9},
            {"store": {"name": "disk", "path": str(folder / "kv")}, "num_blocks": 9},
        ],
        "run": {"dir": str(folder / "run"), "progress": False},
        **changes,
    }  # fmt: skip
    return run(config)


def test_a_cpu_measures_memory_and_disk_and_a_replay_takes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_times, "last_level_cache_bytes", lambda device: 1024)
    result = measured(tmp_path)
    assert result["status"] == "ok"
    assert list(result["links"]) == ["host", "disk"]
    rows = read_jsonl(tmp_path / "run" / "links.jsonl")
    assert len([row for row in rows if row["link"] == "disk" and row["direction"] == "read"]) == len(COUNTS)
    assert {row["block_bytes"] for row in rows if row["direction"] == "write"} == {12288, 49152, 196608}
    assert all(row["time_s"] > 0 and row["device_model"] for row in rows)
    assert not list((tmp_path / "kv").iterdir()), "what was written to measure is removed"
    written = json.loads((tmp_path / "run" / "links.json").read_text())
    assert written["block_size"] == 4
    assert written["shape"] == "qwen3-100m"
    for name in ("host", "disk"):
        tier = {"store": "null", "num_blocks": 4, "link": f"{tmp_path / 'run'}:{name}"}
        config = parse({"mode": "replay", "executor": "roofline", "tiering": "on_eviction", "tiers": [tier],
                        "run": {"dir": "x"}})  # fmt: skip
        fit = written["links"][name]["fits"]["read"]
        seconds = fit["operation_s"] + (10**6 / fit["bytes_per_s"] if fit["bytes_per_s"] else 0)
        assert link_of(config.tiers[0]).seconds("read", 10**6) == pytest.approx(seconds)


def test_a_store_of_keys_alone_has_no_link(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Null holds no K and V"):
        measured(tmp_path, tiers=[{"store": "null", "num_blocks": 4}])


def test_copies_of_a_device_run_on_streams_of_their_own_in_both_directions_at_once() -> None:
    with pretended_cuda({"engine"}) as cuda:
        found = list(measure_copies("cpu", 1024, 0.0))
        assert [samples.name for samples in found] == ["pinned", "pageable"]
        for samples in found:
            assert len(samples.taken) == 3 * len(COUNTS)
            report = judge(samples, copies_at_once=True)
            assert {row["direction"] for row in report.rows} == {"read", "write", "both"}
        cuda.log.clear()
        DeviceCopies("cpu", 64, "pinned").seconds(("read", "write"), 32)
        begun = [line for line in cuda.log if " copies " in line]
        ended = [line for line in cuda.log if line.startswith("host waits")][-2:]
        assert len({line.split(" copies")[0] for line in begun}) == 2, "each direction has a stream"
        assert [line.split(" copies ")[1] for line in begun] == ["in", "out"]
        assert cuda.log.index(begun[1]) < len(cuda.log) - 2, "both are begun before the host waits for either"
        assert [line.removeprefix("host waits for ") for line in ended] == [line.split(" copies")[0] for line in begun]


class InThread(WorkerTransfers):
    """Carries out in the thread that waits: the pretended streams know no other."""

    def _start(self) -> None:
        pass

    def wait(self, until: float | None) -> None:
        self._carry_out()

    def close(self, *, drain: bool) -> None:
        while drain and (self._loads or self._jobs):
            self._carry_out()


def test_on_a_cuda_device_the_pinned_store_is_measured_and_plain_copies_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device is pretended: what is looked at is which copies are asked for, on which streams and memory."""
    with pretended_cuda(()) as cuda:

        def on_device(pool: KVPool) -> CudaPoolBytes:
            for layer in pool.layers:
                cuda.put_on_device(layer.k)
                cuda.put_on_device(layer.v)
            return CudaPoolBytes(pool)

        monkeypatch.setattr(mode, "KVPool", lambda blocks, size, *facts: KVPool(blocks, size, *facts[:-2], "cpu"))
        monkeypatch.setattr(mode, "pool_bytes", on_device)
        monkeypatch.setattr(link_times, "pool_bytes", on_device)
        monkeypatch.setattr(link_times, "WorkerTransfers", InThread)
        monkeypatch.setattr(link_times, "DeviceCopies", lambda device, *facts: DeviceCopies("cpu", *facts))
        config = parse(
            {
                "mode": "kernel", "kernel": {"measure": "links", "budget_s": 0.01}, "replay": {"shape": "qwen3-100m"},
                "cache": {"block_size": 4}, "tiers": [{"store": "host", "num_blocks": 9}], "run": {"dir": "x"},
            }
        )  # fmt: skip
        asked: list[int] = []
        pin = cuda.cudaHostRegister
        monkeypatch.setattr(
            cuda, "cudaHostRegister", lambda start, size, flags: (asked.append(size), pin(start, size, flags))[1]
        )
        reports = list(mode._reports(config, "cuda", ["host"]))
    assert [report.name for report in reports] == ["host", "pinned", "pageable"]
    block = 49152
    store, buffer = asked[:2]
    assert (store, buffer) == ((link_times.POOL_BLOCKS + 1) * block, block), "pinned once, and a buffer"
    written = link_file(reports, {"device": "cuda"})
    assert set(written["links"]) == {"host", "pinned", "pageable"}
    out = [line for line in cuda.log if line.endswith(" copies out")]
    into = [line for line in cuda.log if line.endswith(" copies in")]
    assert len(set(out)) > 1
    assert not {line.split(" copies")[0] for line in out} & {line.split(" copies")[0] for line in into}


def test_pageable_memory_said_to_be_pinned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_cuda(()) as cuda:
        cuda.pins = False
        with pytest.raises(Unsupported, match="pinned memory was asked for"):
            DeviceCopies("cpu", 64, "pinned")


def test_a_time_that_does_not_wait_for_the_copy_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pretended device runs a late copy only when somebody waits for it."""
    with pretended_cuda({"stream 1", "stream 2"}) as cuda:
        pair = DeviceCopies("cpu", 64, "pinned")
        pair.seconds(("read", "write"), 64)
        assert all(not stream.queue for stream in cuda.streams), "copies were still under way when the clock stopped"
        monkeypatch.setattr(Stream, "run_until", lambda self, event: None)
        pair.seconds(("read", "write"), 64)
        assert any(stream.queue for stream in cuda.streams)


def test_the_table_names_where_model_and_measurement_differ(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    samples = modelled(LINKS[1])
    cliff = (("read",), 32, SIZE)
    samples.taken[cliff] = [2 * seconds for seconds in samples.taken[cliff]]
    report = judge(samples, copies_at_once=False)
    print_links({"disk": report.facts()}, Console(width=100))
    said = " ".join(capsys.readouterr().out.split())
    assert "one operation at a time" in said
    assert "differ by more than 15 % at" in said
    assert "most at read 32 x 1,048,576 bytes" in said
