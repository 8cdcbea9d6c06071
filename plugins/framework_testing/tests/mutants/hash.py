"""Hash schemes with one fault each, and right ones that the kit must pass."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from zlib import crc32

import numpy as np

from framework.interfaces.hash import DigestScheme, HashScheme
from framework_testing import adversarial as bad
from framework_testing import hash as kit


class Weak(DigestScheme):
    """64 sound bits, declared not resistant: legal."""

    def digest(self, data):
        return hashlib.sha256(data).digest()[:8]


def one_by_one(self, parent, tokens, block_size):
    """`blocks` by the scheme's own `block`."""
    return HashScheme.blocks(self, parent, tokens, block_size)


def wrong(name, check, base=bad.ReferenceHash, **methods):
    """A sound scheme with these methods in place of its own, and the check that must catch it."""
    if "block" in methods:
        methods.setdefault("blocks", one_by_one)
    return type(name, (base,), methods), check


def polynomial(self, parent, tokens):
    """Base 31: t[j] + 31 and t[j + 1] - 1 cancel."""
    value = int.from_bytes(parent, "little")
    for token in tokens.tolist():
        value = (value * 31 + token) % 2**64
    return value.to_bytes(8, "little")


def names_partial_blocks(self, parent, tokens, block_size):
    names = bad.ReferenceHash.blocks(self, parent, tokens, block_size)
    if len(tokens) % block_size:
        names.append(self.block(names[-1] if names else parent, tokens[len(names) * block_size :]))
    return names


class Remembers(Weak):
    """Stateful: a name depends on what was named before."""

    seen = b""

    def digest(self, data):
        self.seen = super().digest(self.seen + data)
        return self.seen


class ProcessHash(Weak):
    """Python's own hash of bytes, which is seeded per process."""

    def digest(self, data):
        return hash(data).to_bytes(8, "little", signed=True)


LENGTH, FIELDS, ORDER = (
    kit.check_names_are_bytes_of_one_length,
    kit.check_namespace_and_block_size_matter,
    kit.check_prefix_order_and_content_matter,
)
LARGE = kit.check_every_token_of_a_large_block_matters


def part_of(choose):
    """A `block` that sees only some of a block's tokens."""
    return lambda self, parent, tokens: Weak.block(self, parent, np.ascontiguousarray(choose(tokens)))


def forgets_above(self, parent, tokens, block_size):
    """Blocks from the 500th on are chained from the root again."""
    names = one_by_one(self, parent, tokens[: 500 * block_size], block_size)
    return names + (one_by_one(self, parent, tokens[500 * block_size :], block_size) if len(names) == 500 else [])


MUTANTS = {
    **dict.fromkeys(bad.BAD_NAMES, LENGTH),
    bad.BAD_NAMES[-1]: kit.check_one_call_equals_many,
    bad.Fickle: kit.check_naming_is_pure,
    Remembers: kit.check_naming_is_pure,
    ProcessHash: kit.check_processes_agree,
} | dict([
    wrong("IgnoresTheNamespace", FIELDS,
          root=lambda self, namespace, block_size: self.digest(block_size.to_bytes(8, "little"))),
    wrong("IgnoresTheAdapter", FIELDS, root=lambda self, namespace, block_size: bad.ReferenceHash.root(
          self, type(namespace)(namespace.model, "", namespace.salt), block_size)),
    wrong("IgnoresContents", FIELDS, root=lambda self, namespace, block_size:
          bad.ReferenceHash.root(self, namespace.root, block_size)),
    wrong("NamesOfContentsHave16Bits", kit.check_names_of_contents_are_taken_whole, root=lambda self, space, block_size:
          bad.ReferenceHash.root(self, replace(space, contents=tuple(
              (start, end, f"{crc32(name.encode()) & 0xFFFF}") for start, end, name in space.contents)), block_size)),
    wrong("IgnoresTheBlockSize", FIELDS, root=lambda self, namespace, block_size: self.digest(namespace.encode())),
    # ("ab", "") and ("a", "b") are one namespace; so are ("a\0", "b") and ("a", "\0b") with a separator of zero.
    *(wrong(name, FIELDS, root=lambda self, namespace, block_size, zero=zero: self.digest(
          block_size.to_bytes(8, "little") + zero.join((namespace.model, namespace.adapter, namespace.salt)).encode()))
      for name, zero in (("RunsFieldsTogether", ""), ("SeparatesFieldsByZero", "\0"))),
    wrong("IgnoresTheParent", ORDER, Weak, block=lambda self, parent, tokens: self.digest(tokens.tobytes())),
    wrong("IgnoresTheOrder", ORDER, Weak, block=lambda self, parent, tokens: Weak.block(self, parent, np.sort(tokens))),
    wrong("SumsPolynomially", ORDER, Weak, block=polynomial),
    wrong("TruncatesTokens", ORDER, Weak,  # 65536 is 0
          block=lambda self, parent, tokens: self.digest(parent + tokens.astype(np.uint16).tobytes())),
    wrong("NamesByTheFirst64Tokens", LARGE, Weak, block=part_of(lambda tokens: tokens[:64])),
    wrong("NamesByTheLast64Tokens", LARGE, Weak, block=part_of(lambda tokens: tokens[-64:])),
    wrong("ForgetsTheLastOf128", LARGE, Weak, block=part_of(lambda tokens: tokens[:127])),
    wrong("SeesEveryOtherTokenOfLargeBlocks", LARGE, Weak, block=part_of(
          lambda tokens: tokens if len(tokens) < 256 else tokens[::2])),
    wrong("ForgetsWhatIsFarAbove", LARGE, Weak, blocks=forgets_above),
    *(wrong(f"BlockSizeModulo{bits}Bits", FIELDS, root=lambda self, namespace, block_size, bits=bits:
            bad.ReferenceHash.root(self, namespace, block_size % 2**bits)) for bits in (8, 16)),
    wrong("OneCallDiffersInLargeBlocks", kit.check_one_call_equals_many, blocks=lambda self, parent, tokens, block_size:
          bad.ReferenceHash.blocks(self, parent, tokens // (1 + (block_size >= 128)), block_size)),
    wrong("LosesTheChainAfter4096Blocks", kit.check_large_prompts, blocks=lambda self, parent, tokens, block_size:
          bad.ReferenceHash.blocks(self, parent, tokens[: 4096 * block_size], block_size) + bad.ReferenceHash.blocks(
              self, parent, tokens[4096 * block_size :], block_size)),
    wrong("NamesPartialBlocks", kit.check_one_call_equals_many, blocks=names_partial_blocks),
    wrong("ForgetsToChain", kit.check_one_call_equals_many, blocks=lambda self, parent, tokens, block_size: [
          self.block(parent, tokens[start : start + block_size])
          for start in range(0, len(tokens) - block_size + 1, block_size)]),
    wrong("NamesDifferInLength", LENGTH,
          digest=lambda self, data: bad.ReferenceHash.digest(self, data).lstrip(bytes(range(8)))),
    wrong("ClaimsResistanceWithFewBits", kit.check_resistant_schemes_do_not_collide, bad.Truncated,
          collision_resistant=True),
    wrong("ClaimsResistanceAndCollides", kit.check_resistant_schemes_do_not_collide,
          block=lambda self, parent, tokens: self.digest(parent + int(tokens.sum()).to_bytes(8, "little"))),
    wrong("MutatesTokens", kit.check_tokens_are_left_alone, blocks=lambda self, parent, tokens, block_size:
          (bad.ReferenceHash.blocks(self, parent, tokens, block_size), tokens.fill(0))[0]),
    wrong("FailsOnReadOnly", kit.check_tokens_are_left_alone, blocks=lambda self, parent, tokens, block_size:
          bad.ReferenceHash.blocks(self, parent, tokens.__iadd__(0), block_size)),
])  # fmt: skip

RIGHT = [(scheme, (*kit.hash_checks, *kit.hash_large_checks))
         for scheme in (bad.ReferenceHash, Weak, bad.Constant, bad.Truncated)]  # fmt: skip
