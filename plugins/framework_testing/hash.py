"""Conformance kit of hash schemes.

`hash_checks` are plain functions `check(make)`, cheap first, and `hash_large_checks` those of long prompts; `make()`
builds a fresh scheme. A scheme that is not
collision resistant may collide; it may not forget the namespace, the prefix or the order.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import Any

import numpy as np

from framework.interfaces.hash import HashScheme
from framework.types import BlockHash, Namespace, as_tokens
from framework_testing.driver import Violation
from framework_testing.rules import checks_of, large_checks_of, need, require_same_elsewhere

Make = Callable[[], HashScheme]

NAMESPACES = (
    Namespace(), Namespace(model="a"), Namespace(adapter="a"), Namespace(salt="a"), Namespace(model="ab"),
    Namespace("a", "b", ""), Namespace("a", "", "b"), Namespace("", "a", "b"), Namespace("ab", "", "c"),
    Namespace("a", "bc", ""), Namespace("a\x00", "b"), Namespace("a", "\x00b"), Namespace(salt="\x00"),
    Namespace(model="\N{SNOWMAN}"), Namespace(model="a" * 300),
    *(Namespace(contents=contents) for contents in (
        ((0, 1, "a"),), ((0, 2, "a"),), ((1, 2, "a"),), ((-1, 2, "a"),), ((0, 1, "ab"),), ((0, 1, "a"), (1, 2, "a")),
        ((0, 1, "a"), (0, 1, "b")), ((0, 1, "a" * 300),), ((0, 1, "a" * 299 + "b"),))),
)  # fmt: skip

CONTENT_NAMES = tuple(sha256(b"%d" % number).hexdigest() for number in range(1500))


def spreads(scheme: HashScheme) -> bool:
    """Whether unrelated contents get different names: false for a constant or a few-bit scheme, which is legal."""
    root = scheme.root(Namespace(), 4)
    names = {bytes(scheme.block(root, as_tokens([i, i + 1, 7 * i, i * i]))) for i in range(64)}
    return len(names) == 64


def _distinct(scheme: HashScheme, named: dict[Any, BlockHash], rule: str) -> None:
    """Different things have different names, unless the scheme is one that collides anywhere."""
    seen: dict[bytes, Any] = {}
    for thing, name in named.items():
        need(scheme, name not in seen, rule, f"{seen.get(name)!r} and {thing!r} are both {bytes(name).hex()}")
        seen[name] = thing


def check_names_are_bytes_of_one_length(make: Make) -> None:
    """Names are non-empty bytes, all of one length, for roots and blocks."""
    scheme = make()
    names: list[Any] = [scheme.root(space, size) for space in NAMESPACES for size in (1, 16)]
    for size in (1, 3, 16):
        names += scheme.blocks(names[0], as_tokens(range(100)), size)
    for name in names:
        need(scheme, type(name) is bytes and len(name) > 0, "a name is no non-empty bytes", repr(name))
    need(scheme, len({len(name) for name in names}) == 1, "names differ in length", sorted({len(n) for n in names}))


def check_naming_is_pure(make: Make) -> None:
    """The same question has the same answer, in this instance and in another, in any order."""
    scheme, other = make(), make()
    root = scheme.root(Namespace(salt="s"), 4)
    tokens = as_tokens(range(40))
    first = [root, *scheme.blocks(root, tokens, 4)]
    other.blocks(other.root(Namespace(), 2), as_tokens([5] * 9), 2)
    for again in (scheme, other):
        parent = again.root(Namespace(salt="s"), 4)
        need(scheme, [parent, *again.blocks(parent, tokens, 4)] == first, "the same content was named differently")


def check_one_call_equals_many(make: Make) -> None:
    """blocks() names each full block as block() does, and no partial one."""
    scheme = make()
    for size in (1, 2, 3, 16, 128, 257, 1024):
        parent = scheme.root(Namespace(), size)
        for count in (0, 1, size - 1, size, size + 1, 3 * size, 5 * size + size // 2):
            tokens = as_tokens([(7 * i + 3) % 150_001 for i in range(count)])
            names, expected = scheme.blocks(parent, tokens, size), [parent]
            for start in range(0, count - size + 1, size):
                expected.append(scheme.block(expected[-1], tokens[start : start + size]))
            rule = f"blocks() differs from block() for {count} tokens in blocks of {size}"
            need(scheme, isinstance(names, list) and names == expected[1:], rule, names)


def check_tokens_are_left_alone(make: Make) -> None:
    """Tokens are read: a read-only array is fine, a writable one comes back as it was, a strided one is equal."""
    scheme = make()
    root = scheme.root(Namespace(), 2)
    tokens = as_tokens([1, 2, 3, 4, 5, 6])
    expected = scheme.blocks(root, tokens, 2)
    need(scheme, tokens.tolist() == [1, 2, 3, 4, 5, 6], "blocks() wrote to the caller's tokens", tokens)
    scheme.block(root, tokens[:2])
    need(scheme, tokens.tolist() == [1, 2, 3, 4, 5, 6], "block() wrote to the caller's tokens", tokens)
    tokens.flags.writeable = False
    strided = np.repeat(tokens, 2)[::2]
    for same in (tokens, strided):
        try:
            names = scheme.blocks(root, same, 2)
        except Exception as error:
            raise Violation(f"{type(scheme).__name__}: read-only or strided tokens raised {error!r}") from error
        need(scheme, names == expected, "a view of equal tokens is named differently", names)


def check_namespace_and_block_size_matter(make: Make) -> None:
    """Every field of the namespace and the block size is mixed into the root, and fields do not run together."""
    scheme = make()
    if scheme.collision_resistant or spreads(scheme):
        roots = {(space, size): scheme.root(space, size) for space in NAMESPACES for size in (1, 2, 16, 256)}
        roots |= {(NAMESPACES[0], size): scheme.root(NAMESPACES[0], size) for size in BLOCK_SIZES}
        _distinct(scheme, roots, "two roots have one name")
        firsts = {
            key: scheme.blocks(root, as_tokens([1] * 256), key[1])[0] for key, root in roots.items() if key[1] <= 256
        }
        _distinct(scheme, firsts, "first blocks of different roots have one name")


def check_names_of_contents_are_taken_whole(make: Make) -> None:
    """Of 1,500 names of contents none is mistaken for another: had they 16 bits, some 17 pairs would be."""
    scheme = make()
    if (scheme.collision_resistant or spreads(scheme)) and len(scheme.root(Namespace(), 16)) >= 4:
        named = {name: scheme.root(Namespace(contents=((0, 16, name),)), 16) for name in CONTENT_NAMES}
        _distinct(scheme, named, "two contents have one root")


def check_prefix_order_and_content_matter(make: Make) -> None:
    """A name depends on the parent, on every token and on their order; roots and blocks never share one."""
    scheme = make()
    if not (scheme.collision_resistant or spreads(scheme)):
        return
    named: dict[Any, BlockHash] = {("root", size): scheme.root(Namespace(), size) for size in (1, 2, 4)}
    root = named["root", 4]
    rows = [[1, 2, 3, 4], [4, 3, 2, 1], [2, 1, 3, 4], [1, 2, 4, 3], [0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
    rows += [[5, 40, 3, 4], [6, 40 - 31, 3, 4], [2**16, 0, 0, 0], [2**24, 0, 0, 0]]
    rows += [[1 + 31, 2 - 1, 3, 4], [1, 2, 3, 2**31 - 1], [258, 0, 0, 0], [2, 1, 0, 0], [513, 0, 0, 0], [0, 2, 1, 0]]
    for row in rows:
        name = named["first", tuple(row)] = scheme.block(root, as_tokens(row))
        for second in ([1, 2, 3, 4], [0, 0, 0, 0]):
            named[tuple(row), tuple(second)] = scheme.block(name, as_tokens(second))
    _distinct(scheme, named, "two contents have one name")


def check_every_token_of_a_large_block_matters(make: Make) -> None:
    """In blocks of 64 to 1,024 tokens a name depends on each token, and so do the names of 1,000 blocks below it.

    Of names of fewer than 4 bytes two may be equal by chance: they are not asked.
    """
    scheme = make()
    if not (scheme.collision_resistant or spreads(scheme)) or len(scheme.root(Namespace(), 16)) < 4:
        return
    for size in (64, 65, 128, 256, 257, 512, 1024):
        root, plain = scheme.root(Namespace(), size), [(7 * i + 3) % 150_001 for i in range(size)]
        step = 1 if size <= 128 else 37
        named: dict[Any, BlockHash] = {f"blocks of {size}": scheme.block(root, as_tokens(plain))}
        for place in sorted(
            {*range(0, size, step), *range(size - 3, size), *(2**n for n in range(size.bit_length() - 1))}
        ):
            changed = as_tokens([*plain[:place], plain[place] + 1, *plain[place + 1 :]])
            named[f"the same with another token {place}"] = scheme.blocks(root, changed, size)[0]
        _distinct(scheme, named, "two contents have one name")
    for size in (1, 16):
        root = scheme.root(Namespace(), size)
        one, other = (scheme.blocks(root, as_tokens([first, *[5] * (1000 * size - 1)]), size) for first in (5, 6))
        chained: dict[Any, BlockHash] = {
            ("prompt", p, "block", i): n for p, ns in enumerate((one, other)) for i, n in enumerate(ns)
        }
        _distinct(scheme, chained, f"two blocks of {size}, of one prompt or of two that differ in their first token")


def check_large_prompts(make: Make) -> None:
    """A million tokens in blocks of 1 to 4,096: as many names as blocks, each its own, `blocks` as `block`."""
    scheme = make()
    if not (scheme.collision_resistant or spreads(scheme)):
        return
    tokens = as_tokens(np.random.default_rng(0).integers(0, 150_000, 1 << 20))
    for size in (1, 16, 128, 4096):
        part = tokens[: min(len(tokens), 200_000 * size)]
        root = scheme.root(Namespace(), size)
        names = scheme.blocks(root, part, size)
        need(scheme, len(names) == len(part) // size, f"{len(part)} tokens in blocks of {size} have names", len(names))
        if len(names[0]) >= 8:  # else two of so many may well be equal
            _distinct(scheme, dict(enumerate(names)), f"two blocks of {size} have one name")
        for index in {1, 255, 256, 257, len(names) // 2, len(names) - 1} & {*range(1, len(names))}:
            alone = scheme.block(names[index - 1], part[index * size : (index + 1) * size])
            need(scheme, alone == names[index], f"block {index} of {size} tokens is named differently alone", alone)
        for index in (len(names) // 2, len(names) - 1):
            other = part.copy()
            other[index * size + size // 2] += 1
            again = scheme.blocks(root, other, size)
            need(scheme, again[:index] == names[:index], f"a token of block {index} changes blocks before it", size)
            _distinct(scheme, dict(enumerate([*names[index:], *again[index:]])), f"names after block {index} stay")


BLOCK_SIZES = (1, 2, 3, 4, 8, 16, 32, 64, 128, 255, 256, 257, 258, 272, 384, 512, 513, 1024, 4096, 65536, 65537, 65552)
"""Some that differ by a multiple of 256 or of 65,536: one byte, or two, tell them not apart."""

GOLDEN = ([108879, 39402, 22434, 64464, 80930], [24108, 98172, 9969, 97247, 62542])
"""At positions 0, 4, 8, 12, 16 of an otherwise equal block: one xxh64 digest over little-endian int64 tokens."""

BUILTIN = ([108879, 81531, 65425, 34532, 39402], [98855, 41375, 121632, 97027, 64197])
"""After (False, 0): one value of CPython's hash of the tuple, whatever follows."""


def check_resistant_schemes_do_not_collide(make: Make) -> None:
    """A scheme that declares itself collision resistant: at least 128 bits, and no collision in a truncated search."""
    scheme = make()
    if not scheme.collision_resistant:
        return
    draw = Random(0)
    root = scheme.root(Namespace(), 20)
    need(scheme, len(root) >= 16, "a collision-resistant name has at least 16 bytes, found", len(root))
    rows: list[list[int]] = []
    for pair in (GOLDEN, BUILTIN):
        for values in pair:
            row = list(range(20))
            for position, value in zip(range(0, 20, 4), values, strict=True):
                row[position] = value
            rows += [row, [*values, *range(15)], [0, 0, *values, *range(13)]]
    rows += [[draw.randrange(150_000) for _ in range(20)] for _ in range(4000)]
    rows += [[int(i == j) * k for i in range(20)] for j in range(20) for k in (1, 2, 2**16, 2**30)]
    names = {tuple(row): scheme.block(root, as_tokens(row)) for row in rows}
    _distinct(scheme, names, "a collision")
    for part in (slice(0, 8), slice(-8, None)):
        cut = {row: BlockHash(bytes(name)[part]) for row, name in names.items()}
        _distinct(scheme, cut, "a collision in 8 bytes of the name")


def check_processes_agree(make: Make) -> None:
    """The same names in another process, whatever PYTHONHASHSEED (LMCache issue 1139); needs a picklable `make`."""
    require_same_elsewhere(probe, make, "must name the same content the same way")


def probe(make: Make) -> str:
    """A few names in hex: what processes compare."""
    scheme = make()
    root = scheme.root(Namespace("m", "a", "s"), 4)
    return " ".join(bytes(name).hex() for name in [root, *scheme.blocks(root, as_tokens(range(12)), 4)])


hash_checks, hash_large_checks = checks_of(globals()), large_checks_of(globals())
