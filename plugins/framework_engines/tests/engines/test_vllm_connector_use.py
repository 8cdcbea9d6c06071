"""PolicyConnector as a user meets it: the page's configuration, the default clock, another connector beside it."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from experiments.fidelity import vllm_side
from experiments.fidelity.streams import Outcome, grown
from experiments.live.server import both, policy_config

transfer = partial(policy_config, clock="steps")
PAGE = Path(__file__).parents[4] / "docs" / "vllm.md"


def through(config: Any, **limits: Any) -> tuple[Outcome, Any]:
    scheduler = vllm_side.scheduler_of(
        **{"num_blocks": 60, "max_batch_requests": 6, "max_batch_tokens": 256, **limits}, transfer=config
    )
    return vllm_side.run(grown(80), scheduler), scheduler


def test_the_configuration_on_the_page_is_taken_as_it_stands() -> None:
    found = re.search(r"--kv-transfer-config '(\{.*?\})'", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, "the page shows no configuration"
    outcome, scheduler = through(json.loads(found.group(1)))
    queue = scheduler.connector.watch.queue
    assert type(queue.facts.policy.plugin).__name__ == "S3Fifo"
    assert queue.failure is None
    assert len(outcome.evicted) > 100


def test_the_default_clock_is_seconds_since_the_start() -> None:
    config = transfer("lru")
    del config["kv_connector_extra_config"]["clock"]
    _, scheduler = through(config)
    connector = scheduler.connector
    first = connector.watch.queue.facts.clock()
    assert 0 < first < 600
    assert connector.watch.num_steps > 100, "a clock of steps would say as much"
    assert connector.watch.queue.facts.clock() > first, "it goes on between steps"


def test_with_a_connector_that_loads_blocks_lru_is_still_vllms_own_order() -> None:
    other = {"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}

    stock, _ = through(both(other))
    assert len(stock.evicted) > 100
    for connectors in ((transfer("lru"), other), (other, transfer("lru"))):
        led, scheduler = through(both(*connectors))
        assert type(scheduler.kv_cache_manager.block_pool.free_block_queue).__name__ == "PolicyQueue"
        assert (led.evicted, led.hits, led.steps) == (stock.evicted, stock.hits, stock.steps)
    other_policy, scheduler = through(both(transfer("s3fifo"), other))
    assert scheduler.kv_cache_manager.block_pool.free_block_queue.failure is None
    assert other_policy.evicted != stock.evicted
