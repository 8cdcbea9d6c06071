"""Each known-bad compression, and each known fault of an engine that drops tokens, must be caught by a check that is
named here; those that are right pass the whole kit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from framework import registry
from framework.engine.executors.model import ModelExecutor
from framework.interfaces.compression import PAST
from framework.paged.cache import BlockCache
from framework.types import RequestInfo
from framework_lossy.compression import Kept, TokenDropping, Written
from framework_lossy.executor import HeadExecutor
from framework_testing import compression as kit
from framework_testing import compression_checks
from framework_testing.driver import Violation

FOLLOWS = kit.check_what_is_served_follows_from_what_stays


class EveryOther(TokenDropping):
    """Right: each head keeps every other token of a prompt, beginning with its own number, once it is computed."""

    reads_cache = False

    def due(self, written: Written) -> bool:
        return written.compressed_at is None and written.computed >= (written.info.prompt_tokens or 0)

    def keep(self, written: Written) -> Kept | None:
        last = written.stored - written.stored % 2
        return Kept(tokens=np.array([[range(0, last, 2), range(1, last, 2)]]))


class EveryOtherBlock(EveryOther):
    """Right: whole blocks."""

    def keep(self, written: Written) -> Kept | None:
        last = (written.stored - 1) // written.block_size
        return Kept(blocks=[*range(last % 2, last + 1, 2)])


class Uneven(EveryOther):
    """Right: of each layer one head keeps all, and the others what is left of its last block; again after 8 tokens."""

    by_head, reads_cache = True, True

    def due(self, written: Written) -> bool:
        return super().due(written) or (written.compressed_at or 0) + 8 == written.computed

    def keep(self, written: Written) -> Kept | None:
        layers, size = written.layers(), written.block_size
        tokens = np.full((len(layers), *layers[0].positions.shape), -1)
        for number, layer in enumerate(layers):
            had = [int((where <= written.computed).sum()) for where in layer.positions]
            for head, count in enumerate(had):
                left = count if head == number % 2 else count % size or size
                tokens[number, head, :left] = np.arange(count - left, count)
        return Kept(tokens=tokens)


class HeadsThatEndApart(Uneven):
    """Heads come to the end of a block in different steps."""

    def keep(self, written: Written) -> Kept | None:
        tokens = np.arange(8)[None, None] + np.zeros((1, 2, 1), dtype=int)
        tokens[0, 1, -1] = -1
        return Kept(tokens=tokens)


class NotRising(EveryOther):
    def keep(self, written: Written) -> Kept | None:
        return Kept(tokens=np.array([[[3, 1]]]))


class BeyondTheEnd(EveryOther):
    def keep(self, written: Written) -> Kept | None:
        return Kept(tokens=np.array([[[0, written.stored]]]))


class LosesTheBlockThatIsWritten(EveryOtherBlock):
    def keep(self, written: Written) -> Kept | None:
        return Kept(blocks=[0])


class EmptyStep(EveryOther):
    def step_end(self, request: RequestInfo, start: int, end: int) -> int:
        return max(start, end - 24)


class ByChance(EveryOther):
    def keep(self, written: Written) -> Kept | None:
        return Kept(tokens=np.array([[sorted(random.sample(range(written.stored), written.stored // 2))]]))


class ReadsInSecret(EveryOther):
    """Reads keys, and has not said so."""

    def keep(self, written: Written) -> Kept | None:
        keys = written.layers()[0].keys
        return Kept(tokens=keys.norm(dim=-1).topk(written.stored // 2).indices.sort(-1).values.numpy()[None])


class Undeclared(EveryOther):
    def results(self) -> dict[str, Any]:
        return {"kept": 3}


@pytest.mark.parametrize(("mutant", "check"), [
    (NotRising, FOLLOWS),
    (BeyondTheEnd, FOLLOWS),
    (HeadsThatEndApart, FOLLOWS),
    (LosesTheBlockThatIsWritten, FOLLOWS),
    (EmptyStep, kit.check_chunks_are_computed),
    (ByChance, kit.check_the_same_requests_keep_the_same),
    (ReadsInSecret, kit.check_the_cache_is_read_only_by_who_says_so),
    (Undeclared, kit.check_results_are_declared),
], ids=lambda value: value.__name__)  # fmt: skip
def test_the_kit_catches(mutant: Any, check: Any) -> None:
    with pytest.raises(Violation):
        check(mutant)


blocks_of, hidden = HeadExecutor._blocks, ModelExecutor._hidden
set_table, compact = ModelExecutor.set_table, ModelExecutor.compact


def keeps_a_stale_table(self: Any, row: int, start: int, ids: Any, group: int = 0) -> None:
    if start or not self.tables.host[row, 0]:  # what was dropped after that does not reach the executor
        set_table(self, row, start, ids, group)


def moves_the_neighbour(self: Any, row: int, source: Any, destination: Any, tokens: Any, start: int) -> None:
    compact(self, row, source, destination, np.maximum(tokens - 1, 0), start)


def mixes_heads(self: Any, row: int, source: Any, destination: Any, tokens: Any, start: int) -> None:
    compact(self, row, source, destination, tokens[:, ::-1], start)


def renumbers(self: Any, tokens: Any, positions: Any, batches: Any, rows: Any = None) -> Any:
    return hidden(self, tokens, positions.clamp_max(int(batches[0].max_context_len) - 1), batches, rows)


def mixes_tables(self: Any, table: Any, *of: Any) -> Any:
    return blocks_of(self, table, *of)[:, ::-1]


def keeps_hashes(self: Any, blocks: Any) -> None:
    pass


@pytest.mark.parametrize(("target", "name", "fault", "right", "check"), [
    (ModelExecutor, "set_table", keeps_a_stale_table, EveryOtherBlock, FOLLOWS),
    (ModelExecutor, "compact", moves_the_neighbour, EveryOther, FOLLOWS),
    (ModelExecutor, "compact", mixes_heads, EveryOther, FOLLOWS),
    (HeadExecutor, "_blocks", mixes_tables, Uneven, FOLLOWS),
    (ModelExecutor, "_hidden", renumbers, EveryOther, FOLLOWS),
    (BlockCache, "unpublish", keeps_hashes, EveryOther, kit.check_a_prefix_is_found_only_where_it_is_whole),
], ids=lambda value: getattr(value, "__name__", str(value)))  # fmt: skip
def test_the_kit_catches_an_engine_that(
    target: Any, name: str, fault: Any, right: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(right)
    monkeypatch.setattr(target, name, fault)
    with pytest.raises(Violation, match="follow from the tokens that stay"):
        check(right)


class Looks(Uneven):
    def keep(self, written: Written) -> Kept | None:
        for layer in written.layers():
            filling = layer.positions == PAST
            assert filling.any() == (written.compressed_at is not None)
            assert (layer.keys[filling] == 0).all()
            assert (layer.keys[~filling].norm(dim=-1) > 0).all()
            assert (layer.positions[:, 1:] >= layer.positions[:, :-1]).all()
        return super().keep(written)


def test_a_head_that_kept_fewer_tokens_is_filled_up() -> None:
    FOLLOWS(Looks)


RIGHT = {"every other": EveryOther, "every other block": EveryOtherBlock, "uneven": Uneven}


@pytest.mark.parametrize("check", compression_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", [*RIGHT, *registry.names("compression")])
def test_those_that_are_right_pass(name: str, check: Any) -> None:
    check(RIGHT[name] if name in RIGHT else lambda: registry.build("compression", name))
