"""Each known-bad allocator must be caught, by a check that is named here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from framework import registry
from framework.errors import OutOfBlocks, PluginError
from framework.testing import allocator as kit
from framework.testing.driver import Violation
from framework.testing.oracles.allocator import Row
from framework.testing.oracles.allocator import SlowAllocator as Sound
from framework.testing.oracles.eviction import SlowLru
from framework.types import BlockCopy, BlockId, TableChange


class WritesIntoPublished(Sound):
    def must_copy(self, block):
        return self.references[block] > 1


class CopiesBackwards(Sound):
    def extend(self, request, num_tokens):
        change = super().extend(request, num_tokens)
        return TableChange(change.start, tuple(BlockCopy(c.destination, c.source) for c in change.copies))


class StaleMapEntry(Sound):
    """The map still finds an evicted block, and only the hash is compared."""

    def forget(self, block):
        block_hash = self.hash_of[block]
        super().forget(block)
        self.holder_of[block_hash] = block

    def find(self, block_hash, content):
        return self.holder_of.get(block_hash)


class ComparesOwnTokensOnly(Sound):
    """F2: a block's own tokens are compared, its ancestry is not."""

    def find(self, block_hash, content):
        block = self.holder_of.get(block_hash)
        if block is None or self.content[block][1][-self.block_size :] != content[1][-self.block_size :]:
            return None
        return block if len(self.content[block][1]) == len(content[1]) else None


class PublishesAtAllocation(Sound):
    """Hashes are entered before the KV exists."""

    def allocate(self, request, tokens, hit, num_tokens=None):
        super().allocate(request, tokens, hit)
        committed = self.rows[request.id].committed
        self.commit(request.id, tokens)
        self.rows[request.id].committed = committed


class PublishesPartialBlocks(Sound):
    def newly_full(self, row, num_tokens):
        return range(row.committed // self.block_size, min(self.room(num_tokens), len(row.table)))

    def hashes(self, tokens, namespace):
        whole = super().hashes(tokens, namespace)
        return [*whole, self.hash.root(namespace, len(tokens) + 77)]

    def commit(self, request, tokens):
        size = self.block_size
        padded = tokens if len(tokens) % size == 0 else tokens.tolist() + [0] * (size - len(tokens) % size)
        committed = len(tokens)
        change = super().commit(request, np.asarray(padded, dtype=np.int32))
        self.rows[request].committed = committed
        return change


class DuplicateOverwrites(Sound):
    """The later copy takes over the map; the older can no longer be found."""

    def commit(self, request, tokens):
        row, values = self.row(request), tuple(tokens.tolist())
        hashes = self.hashes(tokens, row.info.namespace)
        for index in self.newly_full(row, len(values)):
            content = (row.info.namespace, values[: (index + 1) * self.block_size])
            holder = self.holder_of.get(hashes[index])
            if holder is not None and holder != row.table[index] and self.content[holder] == content:
                used = self.references[holder]
                self.forget(holder)
                if not used:
                    self.free_blocks.append(holder)
        return super().commit(request, tokens)


class EvictsWhatItHit(Sound):
    """I33: the hit is not pinned while room is made."""

    def allocate(self, request, tokens, hit, num_tokens=None):
        need = self.room(len(tokens)) - len(hit.blocks)
        while len(self.free_blocks) < need and self.cached():
            self.evict()
        super().allocate(request, tokens, hit)

    def share(self, blocks, *, hits):
        for block in blocks:
            if block in self.free_blocks:
                self.free_blocks.remove(block)
        super().share(blocks, hits=hits)


class KeepsBlocksOnRefusal(Sound):
    """Takes what there is, then gives up."""

    def allocate(self, request, tokens, hit, num_tokens=None):
        if not self.fits(request, tokens, hit):
            self.take(len(self.free_blocks))
        super().allocate(request, tokens, hit)


class EvictsOnRefusal(Sound):
    """Makes room, then finds it is not enough."""

    def extend(self, request, num_tokens):
        try:
            return super().extend(request, num_tokens)
        except OutOfBlocks:
            while self.cached():
                self.evict()
            raise


class ExtendIsNotIdempotent(Sound):
    """F12."""

    def extend(self, request, num_tokens):
        change = super().extend(request, num_tokens)
        self.rows[request].table += self.take(min(1, len(self.free_blocks)))
        return change


class HandsOutTheNullBlock(Sound):
    """F18."""

    def __init__(self, **options):
        super().__init__(**options)
        self.free_blocks = [block - 1 for block in self.free_blocks]


class HandsOutOnePastTheEnd(Sound):
    def __init__(self, **options):
        super().__init__(**options)
        self.free_blocks = [block + 1 for block in self.free_blocks]
        for column in self.columns.values():
            column.append(0)


class LeaksAReferenceOnFork(Sound):
    def fork(self, parent, child, num_tokens):
        change = super().fork(parent, child, num_tokens)
        if self.rows[child.id].table:
            self.references[self.rows[child.id].table[-1]] += 1
        return change


class ForkTakesNoReference(Sound):
    def fork(self, parent, child, num_tokens):
        change = super().fork(parent, child, num_tokens)
        for block in self.rows[child.id].table:
            self.references[block] -= 1
        return change

    def drop(self, blocks):
        super().drop([block for block in blocks if self.references[block] > 0])


class CountsPromptsOnRefusal(Sound):
    def allocate(self, request, tokens, hit, num_tokens=None):
        self.totals["prompt_tokens"] += len(tokens)
        try:
            super().allocate(request, tokens, hit)
        except PluginError:
            raise
        self.totals["prompt_tokens"] -= len(tokens)


class HandsOutABlockTwice(Sound):
    def take(self, count):
        blocks = super().take(count)
        if count and len(self.rows) > 1:
            self.free_blocks.insert(0, blocks[0])
        return blocks


class PublishesOldWeightsAfterReset(Sound):
    def reset(self, request=None):
        super().reset(request)
        for row in self.rows.values():
            row.stale = False


class LosesABlockOnFree(Sound):
    def drop(self, blocks: Sequence[int]):
        super().drop(list(blocks))
        if len(self.free_blocks) > 3 and not self.rows:
            self.free_blocks.pop()


class UnreferencesTheLastFullBlock(Sound):
    def unref_leading(self, request, num_tokens):
        row = self.row(request)
        row.committed += self.block_size
        try:
            return super().unref_leading(request, num_tokens)
        finally:
            row.committed -= self.block_size


class UnreferencesTwice(Sound):
    def free(self, request, next_use=()):
        row = self.row(request)
        self.references.update(dict.fromkeys(self.cached()[: row.num_null], 1))
        super().free(request)


class FreesPassedBlocksThatOthersUse(Sound):
    def unref_leading(self, request, num_tokens):
        row = self.row(request)
        before = list(row.table)
        found = super().unref_leading(request, num_tokens)
        for block in before[:found]:
            if block and self.references[block]:
                self.references[block] = 0
                self.free_blocks.append(block)
        return found


class CommitGoesBackwards(Sound):
    def commit(self, request, tokens):
        row: Row = self.row(request)
        row.committed = min(row.committed, len(tokens))
        return super().commit(request, tokens)


class CommitPassesTheRoom(Sound):
    def commit(self, request, tokens):
        room = len(self.row(request).table) * self.block_size
        return super().commit(request, tokens[: max(room, self.row(request).committed)])


class EventsDependOnAddresses(Sound):
    """Invariant 12: the order of free blocks comes from something that differs between runs."""

    def drop(self, blocks):
        super().drop(blocks)
        self.free_blocks.sort(key=lambda block: (id(self) // 16 + block * 7919) % 13)


class AcceptsAnyVictim(Sound):
    def evict(self):
        block = BlockId(int(self.policy.victim(self.now) or 1))
        if block in self.content:
            self.forget(block)
            self.free_blocks.append(block)
            self.totals["evictions"] += 1
        else:
            self.free_blocks.append(self.cached()[0])
            self.forget(self.cached()[0])


PASSED = kit.check_blocks_that_windows_passed_are_unreferenced_soundly
RANDOM, COLLIDING = kit.check_random_histories, kit.check_random_histories_under_colliding_hashes


class SaysThatAllFits(Sound):
    def fits(self, request, tokens, hit):
        return True

    def allocate(self, request, tokens, hit, num_tokens=None):
        if not super().fits(request, tokens, hit):
            raise OutOfBlocks("no room after all")
        super().allocate(request, tokens, hit)


class SaysThatTheLastBlockIsTaken(Sound):
    asked_by_itself = False

    def fits(self, request, tokens, hit):
        new = self.room(len(tokens)) - len(hit.blocks)
        return super().fits(request, tokens, hit) and (self.asked_by_itself or new < self.reclaimable(hit.blocks))

    def allocate(self, request, tokens, hit, num_tokens=None):
        self.asked_by_itself = True
        try:
            super().allocate(request, tokens, hit)
        finally:
            self.asked_by_itself = False


class ForgetsItsTokens(Sound):
    def commit(self, request, tokens):
        self.row(request).tokens = ()
        return super().commit(request, tokens)


class ComparesTheLastBlockOnly(Sound):
    def commit(self, request, tokens):
        row = self.row(request)
        known = len(row.tokens) - self.block_size
        row.tokens = (*tokens.tolist()[:known], *row.tokens[known:]) if known > 0 else row.tokens
        return super().commit(request, tokens)


PREFIX: type = registry.load("allocator", "prefix")


class FoundAfterWithdrawal(PREFIX):
    def withdraw(self, request):
        return tuple(self.promises.readers(request))


class NamesNobodyWhoRelied(PREFIX):
    def withdraw(self, request):
        super().withdraw(request)
        return ()


class PromisesOtherTokens(PREFIX):
    def promise(self, request, tokens):
        known = np.frombuffer(bytes(self.tables()[request].token_bytes), np.int32)[: len(tokens)]
        super().promise(request, np.append(known, tokens[len(known) :]).astype(np.int32))


class CopiesWhatItPromised(PREFIX):
    def promise(self, request, tokens):
        super().promise(request, tokens)
        self.tables()[request].shared = True

    def extend(self, request, num_tokens):
        owner, self.promises.owner = self.promises.owner, {}
        try:
            return super().extend(request, num_tokens)
        finally:
            self.promises.owner = owner


class CountsItsQuestions(Sound):
    def facts(self):
        self.questions = getattr(self, "questions", 0) + 1
        return {"questions": self.questions}


CAUGHT_BY = {
    ComparesOwnTokensOnly: COLLIDING,
    CountsItsQuestions: kit.check_facts_are_plain,
    SaysThatAllFits: kit.check_what_fits_is_given,
    SaysThatTheLastBlockIsTaken: kit.check_what_fits_is_given,
    UnreferencesTheLastFullBlock: PASSED,
    UnreferencesTwice: PASSED,
    FreesPassedBlocksThatOthersUse: PASSED,
    EventsDependOnAddresses: kit.check_the_same_history_gives_the_same_events,
    AcceptsAnyVictim: kit.check_a_bad_policy_is_named_and_contained,
}
"""The others by the random histories."""
MUTANTS = {
    value: CAUGHT_BY.get(value, RANDOM)
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, (Sound, PREFIX)) and value not in (Sound, PREFIX)
}


def wrong(name, check=RANDOM, **methods):
    """A sound allocator with these methods in place of its own, and the check that must catch it."""
    return type(name, (Sound,), methods), check


MUTANTS |= dict([
    wrong("FreesTwiceInSilence",
          free=lambda self, request, next_use=(): request in self.rows and Sound.free(self, request)),
    wrong("KeepsWhatIsNotSound", kit.check_discarded_content_is_not_found, reset=lambda self, request: None),
    wrong("IgnoresUnknownExtend", extend=lambda self, request, num_tokens:
          Sound.extend(self, request, num_tokens) if request in self.rows else TableChange(0)),
    wrong("WritesWithoutCopying", to_copy=lambda self, row: []),
    wrong("CopiesOnlyWhatIsPublished", must_copy=lambda self, block: block in self.content),
    wrong("ForgetsToNameTheCopy", extend=lambda self, request, num_tokens:
          TableChange(Sound.extend(self, request, num_tokens).start)),
    wrong("TrustsEveryHash", COLLIDING,
          find=lambda self, block_hash, content: self.holder_of.get(block_hash)),
    wrong("HitsWholePrompt", most_hit_blocks=lambda self, num_tokens: num_tokens // self.block_size),
    wrong("IgnoresHitsAtAdmission", fits=lambda self, request, tokens, hit:
          self.room(len(tokens)) <= self.reclaimable(keep=hit.blocks)),
    wrong("CountsEvictableHitsTwice", fits=lambda self, request, tokens, hit:
          self.room(len(tokens)) - len(hit.blocks) <= self.reclaimable()),
    wrong("ForkSharesOneBlockTooMany", fork=lambda self, parent, child, num_tokens: Sound.fork(
          self, parent, child, max(num_tokens, self.block_size * min(
              num_tokens // self.block_size + 1, len(self.row(parent).table))))),
    wrong("RoomIsOneTokenShort", room=lambda self, num_tokens:
          max(0, num_tokens - 2) // self.block_size + 1 if num_tokens else 0),
    wrong("RoomIsOneTokenTooMuch", room=lambda self, num_tokens:
          num_tokens // self.block_size + 1 if num_tokens else 0),
    wrong("IgnoresTheNamespace", hashes=lambda self, tokens, namespace: Sound.hashes(self, tokens, type(namespace)()),
          find=lambda self, block_hash, content: self.holder_of.get(block_hash)),
    wrong("LooksUpImpurely", lookup=lambda self, tokens, namespace, previous=None:
          self.totals.update(prompt_tokens=1) or Sound.lookup(self, tokens, namespace, previous)),
    wrong("CountsHitsTwice", allocate=lambda self, request, tokens, hit:
          Sound.allocate(self, request, tokens, hit) or self.totals.update(hit_tokens=hit.num_tokens)),
    wrong("CountsAreOffByOne",
          stats=lambda self: replace(Sound.stats(self), free_blocks=max(0, len(self.free_blocks) - 1))),
    wrong("HonoursStaleHits", allocate=lambda self, request, tokens, hit:
          Sound.allocate(self, request, tokens, replace(hit, version=self.version))),
    wrong("ResetKeepsNames", reset=lambda self, request=None: self.changed()),
    wrong("NeverReusesCached", reclaimable=lambda self, keep=(): len(self.free_blocks)),
    wrong("UnreferencesWhatIsStillRead", PASSED, unref_leading=lambda self, request, num_tokens:
          Sound.unref_leading(self, request, num_tokens + self.block_size)),
    wrong("LeavesPassedBlocksInTheTable", PASSED, table=lambda self, request, group=0:
          np.array([block or 1 for block in self.row(request).table], dtype=np.int32)),
    wrong("DoesNotReportEvictions", send=lambda self, kind, block: kind == "admit" and Sound.send(self, kind, block)),
    wrong("ReportsTheWrongStart",
          commit=lambda self, request, tokens: Sound.commit(self, request, tokens) and TableChange(0)),
    wrong("PromisesTooMuch", kit.check_max_request_tokens_is_true, max_request_tokens=10),
    wrong("TrustsNames", kit.check_a_bad_hash_is_named_and_contained,
          hashes=lambda self, tokens, namespace: self.hash.blocks(
          self.hash.root(namespace, self.block_size), tokens, self.block_size)),
    wrong("ReportsAnArray", kit.check_facts_are_plain, facts=lambda self: {"counts": np.arange(3)}),
    wrong("ReportsNotANumber", kit.check_facts_are_plain, facts=lambda self: {"share": float("nan")}),
])  # fmt: skip

# The slow allocator judges a policy's choice and does not contain a callback that raises.
UNGUARDED = {kit.check_a_failing_policy_leaves_sound_metadata}


@pytest.mark.parametrize("check", [check for check in kit.allocator_checks if check not in UNGUARDED])
def test_the_reference_allocator_passes(check):
    check(Sound)


class Forwards(SlowLru):
    """Not a mutant: what an allocator puts around the policy that it is given."""

    def __init__(self, inner):
        self.inner = inner
        for hook in ("attach", "admit", "hit", "pin", "release", "victim", "evicted"):
            setattr(self, hook, getattr(inner, hook))


def test_a_policy_wrapped_inside_an_allocator_need_not_be_named():
    prefix: type = registry.load("allocator", "prefix")

    def wrapping(*, num_blocks, block_size, hash, eviction):
        return prefix(num_blocks=num_blocks, block_size=block_size, hash=hash, eviction=Forwards(eviction))

    kit.check_a_bad_policy_is_named_and_contained(wrapping)
    kit.check_a_failing_policy_leaves_sound_metadata(wrapping)


@pytest.mark.parametrize(("mutant", "check"), MUTANTS.items(), ids=lambda value: value.__name__)
def test_the_kit_catches(mutant, check):
    with pytest.raises(Violation):
        check(mutant)


def test_a_violation_names_the_rule_the_component_and_the_shortest_history():
    with pytest.raises(Violation) as caught:
        RANDOM(WritesIntoPublished)
    text = str(caught.value)
    assert "WritesIntoPublished" in text, text
    assert "calls so far:" in text, text
    assert text.count("\n") < 40, text
