"""`python -m framework layout MODEL`: what a model keeps of a request, and from which length on a prompt can hit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

from framework.interfaces.command import Command
from framework.interfaces.groups import KVGroup, alignment
from framework.results.metric import SCALES
from framework_hybrid.layers import Layers
from framework_hybrid.named import padded
from framework_hybrid.shapes import SHAPES, config_of, groups_of, layers_known, unified_block_tokens

_KEEPS = {"full": "every token", "window": "the last {length:,} tokens", "chunk": "chunks of {length:,} tokens",
          "state": "one state at each place"}  # fmt: skip


class Layout(Command):
    """What a model keeps of a request, from its config.json alone: groups, bytes, the common unit of hits and the
    shortest prompt that can hit, and what three ways to share memory make of it."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "model", metavar="MODEL_OR_CONFIG",
            help=f"a config.json, the folder of a checkpoint, a hub id, or one of {', '.join(sorted(SHAPES))}",
        )  # fmt: skip
        parser.add_argument("--block-tokens", type=int, default=16, metavar="N", help="tokens a block (default: 16)")
        parser.add_argument("--tokens", type=int, default=32_768, metavar="N",
                            help="of the request that is counted (default: 32768)")  # fmt: skip
        parser.add_argument("--interval", type=int, metavar="N",
                            help="tokens between two places to resume at, beside those kept by default")  # fmt: skip
        parser.add_argument("--tp", type=int, default=1, metavar="N", help="count one of N ranks (default: 1)")

    def run(self, options: argparse.Namespace) -> int:
        from framework.cli.options import require_in_bounds

        require_in_bounds(options, "block_tokens", "tokens", "interval", "tp")
        lines = report(options.model, options.block_tokens, options.tokens, options.interval, options.tp)
        sys.stdout.write("\n".join(lines) + "\n")
        return 0


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which groups share memory.

    Attributes:
        page_bytes: what memory is handed out by; 0 where each group has blocks of its own size.
        groups: as they are there. held_bytes: by a request of the asked number of tokens.
    """

    name: str
    page_bytes: int
    groups: tuple[KVGroup, ...]
    held_bytes: int


def ways_of(config: Mapping[str, Any] | str, block_tokens: int, num_tokens: int) -> tuple[Way, Way, Way]:
    """Equal pages as in vLLM, a pool a group as in SGLang, two levels as in Jenga; see framework.groups.memory.

    Raises:
        ConfigError: as `groups_of`.
    """
    equal = groups_of(config, block_tokens=block_tokens, layout="one_page")
    own = groups_of(config, block_tokens=block_tokens)
    small = tuple(padded(own))
    page = lcm(*(group.block_bytes for group in small))
    pages = sum(-(-held_blocks(group, num_tokens) * group.block_bytes // page) for group in small)
    return (
        Way("equal pages", equal[0].block_bytes, equal, held_bytes(equal, num_tokens)),
        Way("a pool a group", 0, own, held_bytes(own, num_tokens)),
        Way("two levels", page, small, pages * page),
    )


def held_blocks(group: KVGroup, num_tokens: int) -> int:
    """Blocks of the group that a request of so many tokens, at least one, holds when all are computed."""
    return -(-num_tokens // group.block_tokens) - group.first(num_tokens)


def held_bytes(groups: Sequence[KVGroup], num_tokens: int) -> int:
    """Bytes of all groups, by a request of so many tokens."""
    return sum(held_blocks(group, num_tokens) * group.block_bytes for group in groups)


def shortest_hit(groups: Sequence[KVGroup], *, lookahead: bool = False) -> int:
    """Tokens of the shortest prompt that can hit: one unit, one more with a draft's lookahead, and the last token."""
    return alignment(groups) * (1 + lookahead) + 1


def place_bytes(groups: Sequence[KVGroup], place: int) -> int:
    """What a place to resume at costs beyond full attention, which is kept anyway."""
    return sum(len(group.needs(place)) * group.block_bytes for group in groups if group.kind != "full")


def report(
    config: Mapping[str, Any] | str,
    block_tokens: int = 16,
    num_tokens: int = 32_768,
    interval: int | None = None,
    ranks: int = 1,
) -> Iterator[str]:
    """The command's text, line by line, of one of `ranks`.

    Raises:
        ConfigError: as `groups_of`; heads that do not divide over the ranks.
    """
    config = config_of(config, ranks)
    kept = layers_known(config)
    ways = ways_of(config, block_tokens, num_tokens)
    own = ways[1].groups
    yield "Numbers have 2 bytes, as in bfloat16, those of a state's memory 4."
    if ranks > 1:
        yield f"Counted is one of {ranks} ranks, which has its heads of K, V and states; latents are whole on each."
    yield ""
    yield from _table(
        ("group", "layers", "keeps", "planes, bytes of a layer", "bytes a token", "tokens a block", "bytes a block"),
        [_row(group, layers) for group, layers in zip(own, kept, strict=True)],
    )
    token_bytes = sum(_token_bytes(layers) for layers in kept)
    always = sum(_token_bytes(layers) for layers in kept if layers.kind == "full")
    yield ""
    yield f"A token takes {_count(token_bytes)} bytes" + (
        f", of which {_count(always)} stay as long as the request runs." if always < token_bytes else "."
    )
    yield f"A request of {num_tokens:,} tokens holds {_size(ways[1].held_bytes)}."
    yield ""
    yield from _hits(kept, ways, block_tokens)
    yield from _places(own, num_tokens, interval)
    yield "Memory"
    yield from _table(
        ("", "bytes a page", "tokens a block", "common unit", f"{num_tokens:,} tokens hold", "beyond own pools"),
        [
            (way.name, f"{way.page_bytes:,}" if way.page_bytes else "by group", _blocks(way.groups),
             f"{alignment(way.groups):,}", _size(way.held_bytes), f"{way.held_bytes / ways[1].held_bytes - 1:+.1%}")
            for way in ways
        ],
    )  # fmt: skip


def _row(group: KVGroup, layers: Layers) -> tuple[str, ...]:
    planes = " + ".join(f"{plane.name} {plane.num_bytes:,}" for plane in layers.planes)
    entry = f", one entry for {layers.entry_tokens} tokens" if layers.entry_tokens > 1 else ""
    token = "-" if layers.kind == "state" else _count(_token_bytes(layers))
    tokens = "a state" if layers.kind == "state" else f"{group.block_tokens:,}"
    keeps = _KEEPS[layers.kind].format(length=layers.length) + entry
    return group.name, str(layers.count), keeps, planes, token, tokens, f"{group.block_bytes:,}"


def _token_bytes(layers: Layers) -> float:
    """Bytes a token of all these layers; of a state, which does not grow with tokens, 0."""
    return 0 if layers.kind == "state" else layers.count * layers.num_bytes / layers.entry_tokens


def _hits(kept: Sequence[Layers], ways: Sequence[Way], block_tokens: int) -> Iterator[str]:
    equal, own = ways[0].groups, ways[1].groups
    unit, unit_of_pages = alignment(own), alignment(equal)
    yield "Hits"
    yield f"  A hit is a multiple of the common unit, {unit:,} tokens, and leaves the last token: no prompt below"
    yield f"  {shortest_hit(own):,} tokens can hit, nor one that shares less than {unit:,} with those before."
    if unit_of_pages != unit:
        shortest = shortest_hit(equal)
        yield f"  With equal pages, as in vLLM, it is {unit_of_pages:,}, and no prompt below {shortest:,} can hit."
    drafts = f"{shortest_hit(own, lookahead=True):,} tokens"
    if unit_of_pages != unit:
        drafts += f", with equal pages {shortest_hit(equal, lookahead=True):,},"
    yield f"  A draft model's lookahead takes one unit off each hit: no prompt below {drafts} can hit then."
    yield from (f"  To act: {one}" for one in _advice(kept, unit_of_pages, block_tokens))
    yield ""


def _advice(kept: Sequence[Layers], unit: int, block_tokens: int) -> Iterator[str]:
    """What makes the unit smaller."""
    widest = max(layers.entry_tokens for layers in kept)
    if widest > 1:
        yield (f"an entry stands for up to {widest} tokens, so blocks of {block_tokens} entries have up to "
               f"{block_tokens * widest:,}; smaller blocks (--block-tokens) have a smaller unit.")  # fmt: skip
    states = [layers for layers in kept if layers.kind == "state"]
    attention = [layers.num_bytes for layers in kept if layers.kind != "state"]
    if states and attention:
        half = max(
            sum(plane.num_bytes // (1 + (plane.name == "memory")) for plane in layers.planes) for layers in states
        )
        smaller = unified_block_tokens(half, max(attention), block_tokens)
        if smaller < unit:
            yield (f"an attention block must hold a state; memory of 2 bytes a number (vLLM: --mamba-ssm-cache-dtype) "
                   f"makes it {smaller:,} tokens.")  # fmt: skip


def _places(own: Sequence[KVGroup], num_tokens: int, interval: int | None) -> Iterator[str]:
    unit = alignment(own)
    place = (num_tokens - 1) // unit * unit
    if place == 0 or all(group.kind == "full" for group in own):
        return
    cost, token_bytes = place_bytes(own, place), sum(g.block_bytes / g.block_tokens for g in own if g.kind == "full")
    yield "Retention"
    alike = f", as much as {cost / token_bytes:,.0f} tokens of full attention" if token_bytes else ""
    yield f"  A place to resume at takes {_size(cost)} beside full attention{alike}."
    yield "  vLLM's retention 0 keeps one at a prompt's last whole unit, and one where prompts part."
    every = max(unit, -(-interval // unit) * unit) if interval else 0
    if every:
        count = place // every
        size = sum(place_bytes(own, at) for at in range(every, place + 1, every))
        yield f"  One every {every:,} tokens: {count:,} places in {num_tokens:,} tokens, {_size(size)}."
    yield ""


def _blocks(groups: Sequence[KVGroup]) -> str:
    return " and ".join(f"{tokens:,}" for tokens in sorted({group.block_tokens for group in groups}))


def _count(number: float) -> str:
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.1f}"


def _size(num_bytes: float) -> str:
    word, factor = next(((word, factor) for word, factor in SCALES["bytes"] if num_bytes * factor >= 1), ("B", 1.0))
    return f"{num_bytes * factor:,.4g} {word}" + (f" ({num_bytes:,.0f} bytes)" if factor < 1 else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their longest cell."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
