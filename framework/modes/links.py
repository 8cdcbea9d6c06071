"""mode=kernel kernel.measure=links: copies between a pool and the tiers' stores, and the link models they fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from framework.cli.progress import cell_progress
from framework.config.config import Config
from framework.config.sections import ReplayOptions
from framework.engine.block_bytes import pool_bytes
from framework.engine.executors.checks import default_device
from framework.engine.pool import KVPool
from framework.files.atomic import write_json
from framework.kernel.link_times import POOL_BLOCKS, measure_copies, measure_store
from framework.kernel.links import LinkReport, judge, link_file
from framework.modes.kernel import origin_of
from framework.modes.session import OnBegin, Session
from framework.replay.shapes import ROOFLINE_SHAPES
from framework.results.layout import LINK_ROWS, LINKS


def links(config: Config, on_begin: OnBegin = lambda path: None) -> dict[str, Any]:
    """Measure the links of `config.tiers`: rows in links.jsonl, the models in links.json. See api.run.

    Raises:
        ConfigError: a tier that holds no K and V.
        StoreFailed: a store that cannot be opened.
    """
    device = default_device(config.device)
    with Session(config, on_begin=on_begin, stalls=False) as session:
        session.facts |= {"device": device}
        named = _names(config)
        origin = origin_of(session.begin(device, session.label("kernel-links")))
        reports: list[LinkReport] = []

        def work() -> None:
            with cell_progress(enabled=session.progress) as tick:
                for report in _reports(config, device, named):
                    reports.append(report)
                    for step, row in enumerate(report.rows):
                        session.run.writer(LINK_ROWS).write({**row, **origin})
                        session.log(step, {key: value for key, value in row.items() if not isinstance(value, str)})
                        tick({"cell": _cell(row), "status": "ok", **row})
            facts = {"device": device, "block_size": config.cache.block_size, **_shape(config.replay), **origin}
            write_json(session.run.path / LINKS, link_file(reports, facts))

        return session.record(work, lambda complete: {"links": {r.name: r.facts() for r in reports}, **origin})


def _cell(row: Mapping[str, Any]) -> str:
    return f"{row['link']} {row['direction']} {row['blocks']} x {row['block_bytes']:,} bytes"


def _names(config: Config) -> list[str]:
    """What each tier's link is called: by its store, numbered from the second of one name on."""
    names: list[str] = []
    for entry in config.tiers:
        store = str(entry["store"]["name"])
        count = sum(name.split("-")[0] == store for name in names)
        names.append(f"{store}-{count + 1}" if count else store)
    return names


def _shape(options: ReplayOptions) -> dict[str, Any]:
    return {"shape": options.shape, "kv_dtype": options.dtype}


def _reports(config: Config, device: str, named: list[str]) -> Iterator[LinkReport]:
    """Each tier's link, and on a CUDA device those of plain copies."""
    size, budget_s, dtype = config.cache.block_size, config.kernel.budget_s, config.replay.dtype
    shape = ROOFLINE_SHAPES[config.replay.shape]
    facts = (shape.num_layers, 1, shape.kv_numbers_per_token // 2, dtype, device, config.cache.layout)

    def make_pool(tokens: int) -> KVPool:
        return KVPool(POOL_BLOCKS, tokens, *facts)

    for entry, name in zip(config.tiers, named, strict=True):
        yield judge(measure_store(entry, name, make_pool, size, budget_s), copies_at_once=False)
    if device.startswith("cuda"):
        block_bytes = pool_bytes(make_pool(size)).block_bytes
        for samples in measure_copies(device, block_bytes, budget_s):
            yield judge(samples, copies_at_once=True)
