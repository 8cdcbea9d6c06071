"""Every key that a run writes is declared, means the same in every mode, and is documented."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.results.catalogue import FAMILIES, catalogue, find, higher_is_better, is_wall_time, sections
from framework.results.metric import is_number
from framework.run import call
from framework_testing.kernel import bench

TRACE = "workload=trace workload.path=trace.jsonl cache.num_blocks=8 cache.block_size=512"
COMMANDS = {
    "serve": "model=tiny backend=torch workload=chat workload.num_requests=2 cache.num_blocks=64 run.record=true",
    "none": f"mode=replay executor=none {TRACE}",
    "roofline": f"mode=replay executor=roofline {TRACE}",
    "cache_only": f"mode=cache_only {TRACE}",
    "recording": "mode=replay executor=none workload=recording workload.path=serve/recording.jsonl cache.num_blocks=64",
    "kernel": "mode=kernel backend=torch cache.block_size=16 mode.budget_s=0.01 mode.batch=[1] mode.context=[16] "
    "mode.prefill=[] mode.lengths=[uniform] mode.heads=[2/1/16]",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each mode and executor writes, by name, from the smallest run of it."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [
        {"timestamp": 1000 * i, "input_length": 1500, "output_length": 3, "hash_ids": [1, 2, 3 + i]} for i in range(4)
    ]
    (folder / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(bench, "last_level_cache_bytes", lambda device: 1 << 18)  # few pools of mode=kernel
        for name, words in COMMANDS.items():
            assert call([*words.split(), f"run.dir={name}", "run.progress=false"]) == 0, name
    return {name: json.loads((folder / name / "result.json").read_text()) for name in COMMANDS}


def test_every_key_that_a_mode_writes_is_declared(results: dict[str, dict[str, Any]]) -> None:
    for name, result in results.items():
        unknown = [key for key in result if find(key) is None]
        assert not unknown, f"{name} writes {unknown}: add a Metric to framework/results/metrics"


def test_a_value_fits_its_declared_unit(results: dict[str, dict[str, Any]]) -> None:
    for name, result in results.items():
        for key, value in result.items():
            metric = find(key)
            assert metric is not None
            if metric.section == "plugins" or value is None:
                continue
            assert is_number(value) == metric.numeric, (name, key, value, metric.unit)
            assert metric.text(value), (name, key)


def test_all_modes_of_a_replay_share_what_a_serve_run_says_of_its_prefix_cache(
    results: dict[str, dict[str, Any]],
) -> None:
    keys = ("hit_rate", "hit_rate_blocks", "hit_tokens", "prompt_tokens", "hit_blocks", "prompt_blocks",
            "num_evictions", "num_requests", "num_blocks", "block_size", "seed", "eviction", "workload")  # fmt: skip
    for name in ("serve", "none", "roofline", "cache_only", "recording"):
        assert not [key for key in keys if key not in results[name]], name


def test_declarations_are_whole_sentences_with_known_sections_and_partners() -> None:
    for metric in catalogue().values():
        assert metric.section in sections(), metric
        assert metric.definition.endswith("."), metric
        assert metric.title, metric
        for other in (metric.of, metric.row):
            assert not other or other in catalogue(), metric
        if metric.key.endswith(("_s", "_s_p50", "_s_p95", "_s_p99")) and not metric.key.endswith("_per_s"):
            assert metric.unit == "s", metric


@pytest.mark.parametrize(
    ("key", "higher", "wall"),
    [
        ("hit_rate", True, False), ("output_tokens_per_s", True, True), ("ttft_s_p95", False, True),
        ("replay_s", False, True), ("utilisation", True, False), ("gap_to_optimum", False, False),
        ("cached_idle", None, False), ("backend_decode", None, False), ("nobody_declared_me", None, False),
    ],
)  # fmt: skip
def test_the_catalogue_says_which_way_is_better_and_whether_wall_time_is_in_it(
    key: str, higher: bool | None, wall: bool
) -> None:
    assert (higher_is_better(key), is_wall_time(key)) == (higher, wall)


def test_docs_results_lists_the_catalogue(repository: Path) -> None:
    page = (repository / "docs" / "results.md").read_text(encoding="utf-8")
    assert with_definitions(page) == page, "renew it: python tests/packaging/test_results_page.py"


def with_definitions(page: str) -> str:
    """docs/results.md with the tables between its two markers renewed: one a section, in the order of the catalogue."""
    begin, end = "<!-- definitions:begin -->", "<!-- definitions:end -->"
    before, rest = page.split(begin, 1)
    tables = (f"### {section[0].upper()}{section[1:]}\n\n" + "\n".join(_rows(section)) for section in sections())
    return "\n\n".join([before + begin, *tables, end + rest.split(end, 1)[1]])


def _rows(section: str) -> Iterator[str]:
    yield "| key | unit | better | definition |"
    yield "|---|---|---|---|"
    for metric in catalogue().values():
        if metric.section == section:
            definition = metric.definition.replace("|", "\\|")  # a pipe would end the cell
            yield f"| `{metric.key}` | {metric.unit} | {metric.better} | {definition} |"
    if section == "plugins":
        for kind, definition in FAMILIES.items():
            yield f"| `{kind}_*` | any | | {definition[0].upper()}{definition[1:]}. |"


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("hit_rate", 0.58833, "58.8 %"),
        ("ttft_s_p50", 0.0321, "32.1 ms"),
        ("wall_steps", 25.0, "25"),
        ("replay_s", 25.0, "25 s"),
        ("kv_bytes", 2_105_344, "2.01 MiB"),
        ("kv_bytes", 13_600 * 2**30, "13.3 TiB"),
        ("kv_bytes", 1023 * 2**30, "1,023 GiB"),
        ("kv_bytes", 20_000 * 2**40, "20,000 TiB"),
        ("num_evictions", 266650, "266,650"),
        ("bandwidth_bytes_per_s", 3.03e9, "3.03 GB/s"),
        ("num_evictions", 10**401, "an integer beyond 10^18"),
        ("hit_rate", "lots", "lots"),
    ],
)
def test_values_are_written_with_their_unit(key: str, value: Any, text: str) -> None:
    assert catalogue()[key].text(value) == text


if __name__ == "__main__":
    _page = Path("docs/results.md")
    _page.write_text(with_definitions(_page.read_text(encoding="utf-8")), encoding="utf-8")
