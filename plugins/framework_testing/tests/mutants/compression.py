"""Compressions with one fault each, right ones that the kit must pass, and faults of an engine that drops tokens."""

from __future__ import annotations

import random

import numpy as np

from framework.engine.executors.model import ModelExecutor
from framework.interfaces.compression import PAST
from framework.paged.cache import BlockCache
from framework_lossy.compression import Kept, TokenDropping
from framework_lossy.executor import HeadExecutor
from framework_testing import compression as kit

FOLLOWS = kit.check_what_is_served_follows_from_what_stays


class EveryOther(TokenDropping):
    """Right: each head keeps every other token of a prompt, beginning with its own number, once it is computed."""

    reads_cache = False

    def due(self, written):
        return written.compressed_at is None and written.computed >= (written.info.prompt_tokens or 0)

    def keep(self, written):
        last = written.stored - written.stored % 2
        return Kept(tokens=np.array([[range(0, last, 2), range(1, last, 2)]]))


class EveryOtherBlock(EveryOther):
    """Right: whole blocks."""

    def keep(self, written):
        last = (written.stored - 1) // written.block_size
        return Kept(blocks=[*range(last % 2, last + 1, 2)])


class Uneven(EveryOther):
    """Right: of each layer one head keeps all, and the others what is left of its last block; again after 8 tokens."""

    by_head, reads_cache = True, True

    def due(self, written):
        return super().due(written) or (written.compressed_at or 0) + 8 == written.computed

    def keep(self, written):
        layers, size = written.layers(), written.block_size
        tokens = np.full((len(layers), *layers[0].positions.shape), -1)
        for number, layer in enumerate(layers):
            had = [int((where <= written.computed).sum()) for where in layer.positions]
            for head, count in enumerate(had):
                left = count if head == number % 2 else count % size or size
                tokens[number, head, :left] = np.arange(count - left, count)
        return Kept(tokens=tokens)


class Looks(Uneven):
    """Right: a head that kept fewer tokens is filled up."""

    def keep(self, written):
        for layer in written.layers():
            filling = layer.positions == PAST
            assert filling.any() == (written.compressed_at is not None)
            assert (layer.keys[filling] == 0).all()
            assert (layer.keys[~filling].norm(dim=-1) > 0).all()
            assert (layer.positions[:, 1:] >= layer.positions[:, :-1]).all()
        return super().keep(written)


def wrong(name, check, base=EveryOther, **methods):
    """A right compression with these methods in place of its own, and the check that must catch it."""
    return type(name, (base,), methods), check


def ends_apart(self, written):
    """Heads come to the end of a block in different steps."""
    tokens = np.arange(8)[None, None] + np.zeros((1, 2, 1), dtype=int)
    tokens[0, 1, -1] = -1
    return Kept(tokens=tokens)


def reads_in_secret(self, written):
    """Reads keys, and has not said so."""
    keys = written.layers()[0].keys
    return Kept(tokens=keys.norm(dim=-1).topk(written.stored // 2).indices.sort(-1).values.numpy()[None])


MUTANTS = [
    wrong("NotRising", FOLLOWS, keep=lambda self, written: Kept(tokens=np.array([[[3, 1]]]))),
    wrong("BeyondTheEnd", FOLLOWS, keep=lambda self, written: Kept(tokens=np.array([[[0, written.stored]]]))),
    wrong("HeadsThatEndApart", FOLLOWS, Uneven, keep=ends_apart),
    wrong("LosesTheBlockThatIsWritten", FOLLOWS, EveryOtherBlock, keep=lambda self, written: Kept(blocks=[0])),
    wrong("EmptyStep", kit.check_chunks_are_computed, step_end=lambda self, request, start, end: max(start, end - 24)),
    wrong("ByChance", kit.check_the_same_requests_keep_the_same, keep=lambda self, written: Kept(
          tokens=np.array([[sorted(random.sample(range(written.stored), written.stored // 2))]]))),
    wrong("ReadsInSecret", kit.check_the_cache_is_read_only_by_who_says_so, keep=reads_in_secret),
    wrong("Undeclared", kit.check_results_are_declared, results=lambda self: {"kept": 3}),
]  # fmt: skip
RIGHT = [
    *((compression, kit.compression_checks) for compression in (EveryOther, EveryOtherBlock, Uneven)),
    (Looks, [FOLLOWS]),
]


blocks_of, hidden = HeadExecutor._blocks, ModelExecutor._hidden
set_table, compact = ModelExecutor.set_table, ModelExecutor.compact


def keeps_a_stale_table(self, row, start, ids, group=0):
    if start or not self.tables.host[row, 0]:  # what was dropped after that does not reach the executor
        set_table(self, row, start, ids, group)


def moves_the_neighbour(self, row, source, destination, tokens, start):
    compact(self, row, source, destination, np.maximum(tokens - 1, 0), start)


def mixes_heads(self, row, source, destination, tokens, start):
    compact(self, row, source, destination, tokens[:, ::-1], start)


def renumbers(self, tokens, positions, batches, rows=None):
    return hidden(self, tokens, positions.clamp_max(int(batches[0].max_context_len) - 1), batches, rows)


def mixes_tables(self, table, *of):
    return blocks_of(self, table, *of)[:, ::-1]


def keeps_hashes(self, blocks):
    pass


FAULTS = [
    (ModelExecutor, "set_table", keeps_a_stale_table, EveryOtherBlock, FOLLOWS),
    (ModelExecutor, "compact", moves_the_neighbour, EveryOther, FOLLOWS),
    (ModelExecutor, "compact", mixes_heads, EveryOther, FOLLOWS),
    (HeadExecutor, "_blocks", mixes_tables, Uneven, FOLLOWS),
    (ModelExecutor, "_hidden", renumbers, EveryOther, FOLLOWS),
    (BlockCache, "unpublish", keeps_hashes, EveryOther, kit.check_a_prefix_is_found_only_where_it_is_whole),
]
"""Where, what, the fault, a right compression, and the check that must catch it."""
