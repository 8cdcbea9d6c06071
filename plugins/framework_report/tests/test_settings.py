"""Settings of a run as flat keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from framework_report.settings import settings_of


def settings(folder: Path, **config: Any) -> dict[str, Any]:
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return settings_of(folder, ())


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
