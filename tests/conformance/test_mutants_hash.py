"""Each known-bad hash scheme must be caught, by a check that is named here."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from framework.interfaces.hash import DigestScheme
from framework.testing import adversarial as bad
from framework.testing import hash as kit
from framework.testing.driver import Violation


class Weak(DigestScheme):
    """64 sound bits, declared not resistant: legal."""

    def digest(self, data):
        return hashlib.sha256(data).digest()[:8]


class IgnoresTheNamespace(bad.ReferenceHash):
    def root(self, namespace, block_size):
        return self.digest(block_size.to_bytes(8, "little"))


class IgnoresTheAdapter(bad.ReferenceHash):
    def root(self, namespace, block_size):
        return super().root(type(namespace)(namespace.model, "", namespace.salt), block_size)


class IgnoresTheBlockSize(bad.ReferenceHash):
    def root(self, namespace, block_size):
        return self.digest(namespace.encode())


class RunsFieldsTogether(bad.ReferenceHash):
    """("ab", "") and ("a", "b") are one namespace."""

    def root(self, namespace, block_size):
        text = namespace.model + namespace.adapter + namespace.salt
        return self.digest(block_size.to_bytes(8, "little") + text.encode())


class SeparatesFieldsByZero(bad.ReferenceHash):
    r"""("a\0", "b") and ("a", "\0b") are one namespace."""

    def root(self, namespace, block_size):
        text = "\0".join((namespace.model, namespace.adapter, namespace.salt))
        return self.digest(block_size.to_bytes(8, "little") + text.encode())


class IgnoresTheParent(Weak):
    def block(self, parent, tokens):
        return self.digest(tokens.tobytes())

    def blocks(self, parent, tokens, block_size):
        return super(DigestScheme, self).blocks(parent, tokens, block_size)


class IgnoresTheOrder(Weak):
    def block(self, parent, tokens):
        return super().block(parent, np.sort(tokens))

    def blocks(self, parent, tokens, block_size):
        return super(DigestScheme, self).blocks(parent, tokens, block_size)


class SumsPolynomially(Weak):
    """Base 31: t[j] + 31 and t[j + 1] - 1 cancel."""

    def block(self, parent, tokens):
        value = int.from_bytes(parent, "little")
        for token in tokens.tolist():
            value = (value * 31 + token) % 2**64
        return value.to_bytes(8, "little")

    def blocks(self, parent, tokens, block_size):
        return super(DigestScheme, self).blocks(parent, tokens, block_size)


class TruncatesTokens(Weak):
    """Token ids as 16 bits: 65536 is 0."""

    def block(self, parent, tokens):
        return self.digest(parent + tokens.astype(np.uint16).tobytes())

    def blocks(self, parent, tokens, block_size):
        return super(DigestScheme, self).blocks(parent, tokens, block_size)


class NamesPartialBlocks(bad.ReferenceHash):
    def blocks(self, parent, tokens, block_size):
        names = super().blocks(parent, tokens, block_size)
        if len(tokens) % block_size:
            names.append(self.block(names[-1] if names else parent, tokens[len(names) * block_size :]))
        return names


class ForgetsToChain(bad.ReferenceHash):
    """blocks() hangs every block on the first parent."""

    def blocks(self, parent, tokens, block_size):
        starts = range(0, len(tokens) - block_size + 1, block_size)
        return [self.block(parent, tokens[start : start + block_size]) for start in starts]


class NamesDifferInLength(bad.ReferenceHash):
    def digest(self, data):
        return super().digest(data).lstrip(b"\x00\x01\x02\x03\x04\x05\x06\x07")


class ClaimsResistanceWithFewBits(bad.Truncated):
    collision_resistant = True


class ClaimsResistanceAndCollides(bad.ReferenceHash):
    """Digest of a sum: long, and colliding."""

    def block(self, parent, tokens):
        return self.digest(parent + int(tokens.sum()).to_bytes(8, "little"))

    def blocks(self, parent, tokens, block_size):
        return super(DigestScheme, self).blocks(parent, tokens, block_size)


class Remembers(Weak):
    """Stateful: a name depends on what was named before."""

    seen = b""

    def digest(self, data):
        self.seen = super().digest(self.seen + data)
        return self.seen


class FailsOnReadOnly(bad.ReferenceHash):
    def blocks(self, parent, tokens, block_size):
        tokens += 0
        return super().blocks(parent, tokens, block_size)


MUTANTS = {
    bad.NamesAreText: kit.check_names_are_bytes_of_one_length,
    bad.NamesAreNumbers: kit.check_names_are_bytes_of_one_length,
    bad.NamesAreNone: kit.check_names_are_bytes_of_one_length,
    bad.OneNameShort: kit.check_one_call_equals_many,
    bad.Fickle: kit.check_naming_is_pure,
    bad.MutatesTokens: kit.check_tokens_are_left_alone,
    bad.ProcessHash: kit.check_processes_agree,
    IgnoresTheNamespace: kit.check_namespace_and_block_size_matter,
    IgnoresTheAdapter: kit.check_namespace_and_block_size_matter,
    IgnoresTheBlockSize: kit.check_namespace_and_block_size_matter,
    RunsFieldsTogether: kit.check_namespace_and_block_size_matter,
    SeparatesFieldsByZero: kit.check_namespace_and_block_size_matter,
    IgnoresTheParent: kit.check_prefix_order_and_content_matter,
    IgnoresTheOrder: kit.check_prefix_order_and_content_matter,
    SumsPolynomially: kit.check_prefix_order_and_content_matter,
    TruncatesTokens: kit.check_prefix_order_and_content_matter,
    NamesPartialBlocks: kit.check_one_call_equals_many,
    ForgetsToChain: kit.check_one_call_equals_many,
    NamesDifferInLength: kit.check_names_are_bytes_of_one_length,
    ClaimsResistanceWithFewBits: kit.check_resistant_schemes_do_not_collide,
    ClaimsResistanceAndCollides: kit.check_resistant_schemes_do_not_collide,
    Remembers: kit.check_naming_is_pure,
    FailsOnReadOnly: kit.check_tokens_are_left_alone,
}


@pytest.mark.parametrize("check", kit.hash_checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("scheme", [bad.ReferenceHash, Weak, bad.Constant, bad.Truncated], ids=lambda c: c.__name__)
def test_sound_and_legally_weak_schemes_pass(scheme, check):
    check(scheme)


@pytest.mark.parametrize(("mutant", "check"), MUTANTS.items(), ids=lambda value: value.__name__)
def test_the_kit_catches(mutant, check):
    with pytest.raises(Violation):
        check(mutant)
