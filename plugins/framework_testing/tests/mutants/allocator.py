"""Allocators with one fault each, and right ones that the kit must pass."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import pairwise
from zlib import crc32

import numpy as np

from framework import registry
from framework.errors import OutOfBlocks
from framework.types import BlockCopy, TableChange, as_tokens
from framework_testing import allocator as kit

PREFIX, COW = (registry.load("allocator", name) for name in ("prefix", "prefix_cow"))


class Sound(COW):
    """What the mutants break. Shares between steps only, and does not check itself: the kit must see each fault."""

    def __init__(self, *, num_blocks, block_size, hash, eviction):
        super().__init__(num_blocks=num_blocks, block_size=block_size, hash=hash, eviction=eviction)
        self.scheme = hash
        self.spoil()

    def spoil(self):
        """What a mutant changes once it is made."""

    def check(self):
        pass

    def publish(self, request, tokens):
        pass

    def evict_all(self):
        """Make every cached block free."""
        while self.pool.cached:
            self.cache.give_up(*self.cache.host.victims(1))

    def blocks_for(self, num_tokens):
        return -(-num_tokens // self.block_size)


class FindsByName(Sound):
    """Finds blocks by a name of its own; whatever has been published under it is found."""

    keeps_evicted = False

    def spoil(self):
        self.holders = {}

    def name(self, hashes, namespace, tokens, index):
        return hashes[index]

    def commit(self, request, tokens):
        change, table = super().commit(request, tokens), self.tables[request]
        for index in range(table.num_null, table.published):
            name = self.name(table.hashes, table.request.namespace, tokens, index)
            self.holders[name] = table.blocks[index]
        return change

    def lookup(self, tokens, namespace, previous=None):
        hit, blocks = super().lookup(tokens, namespace, previous), []
        for index in range((len(tokens) - 1) // self.block_size):
            block = self.holders.get(self.name(hit.hashes, namespace, tokens, index))
            if block is None or not (self.keeps_evicted or self.pool.block_hash[block]):
                break
            blocks.append(block)
        return replace(hit, num_tokens=len(blocks) * self.block_size, blocks=tuple(blocks))


class PublishesAtAllocation(Sound):
    """Hashes are entered before the KV exists."""

    def allocate(self, request, tokens, hit, num_tokens=None):
        super().allocate(request, tokens, hit)
        committed = self.tables[request.id].committed
        self.commit(request.id, tokens)
        self.tables[request.id].committed = committed


class PublishesPartialBlocks(Sound):
    def commit(self, request, tokens):
        table, size = self.tables[request], self.block_size
        tokens, known = as_tokens(tokens), np.frombuffer(bytes(table.token_bytes), np.int32)
        padded = np.append(tokens, [*known[len(tokens) :], *[0] * size])[: self.blocks_for(len(tokens)) * size]
        change = super().commit(request, as_tokens(padded))
        table.committed = len(tokens)
        del table.token_bytes[4 * max(len(tokens), len(known)) :]
        return change


class DuplicateOverwrites(Sound):
    """The later copy takes over the map; the older can no longer be found."""

    def commit(self, request, tokens):
        table, tokens = self.tables[request], as_tokens(tokens)
        rest = tokens[len(table.hashes) * self.block_size :]
        hashes = [*table.hashes, *self.hasher.blocks(table.hashes[-1] if table.hashes else table.root, rest)]
        holders = self.cache.index.find(table.anchor, hashes, tokens.tobytes(), len(tokens) // self.block_size)
        older = [block for block in holders[table.published :] if block not in table.blocks]
        self.cache.unpublish(older[::-1])
        self.pool.set_free([block for block in older if not self.pool.ref[block]])
        return super().commit(request, tokens)


class EvictsWhatItHit(Sound):
    """I33: the hit is not pinned while room is made."""

    def allocate(self, request, tokens, hit, num_tokens=None):
        while len(self.pool.free) < self.blocks_for(len(tokens)) - len(hit.blocks) and self.pool.cached:
            self.cache.give_up(*self.cache.host.victims(1))
        super().allocate(request, tokens, hit)


class KeepsBlocksOnRefusal(Sound):
    """Takes what there is, then gives up."""

    def allocate(self, request, tokens, hit, num_tokens=None):
        if not self.fits(request, tokens, hit):
            self.cache.take(len(self.pool.free))
        super().allocate(request, tokens, hit)


class EvictsOnRefusal(Sound):
    """Makes room, then finds it is not enough."""

    def extend(self, request, num_tokens):
        try:
            return super().extend(request, num_tokens)
        except OutOfBlocks:
            self.evict_all()
            raise


class ExtendIsNotIdempotent(Sound):
    """F12."""

    def extend(self, request, num_tokens):
        change = super().extend(request, num_tokens)
        self.tables[request].blocks.fromlist(self.cache.take(min(1, len(self.pool.free))))
        return change


class HandsOutOnePastTheEnd(Sound):
    def __init__(self, *, num_blocks, block_size, hash, eviction):
        super().__init__(num_blocks=num_blocks + 1, block_size=block_size, hash=hash, eviction=eviction)
        self.num_blocks = self.pool.num_blocks = num_blocks
        self.pool.take_free([1])


class LeaksAReferenceOnFork(Sound):
    def fork(self, parent, child, num_tokens):
        change = super().fork(parent, child, num_tokens)
        for block in self.tables[child.id].blocks[-1:]:
            self.pool.ref[block] += 1
        return change


class HandsOutABlockTwice(Sound):
    def allocate(self, request, tokens, hit, num_tokens=None):
        super().allocate(request, tokens, hit)
        if len(self.tables) > 1:
            self.pool.free.insert(0, self.tables[request.id].blocks[-1])


class PublishesOldWeightsAfterReset(Sound):
    def reset(self, request=None):
        super().reset(request)
        for table in self.tables.values():
            table.closed = False


class LosesABlockOnFree(Sound):
    def free(self, request, next_use=()):
        super().free(request)
        if len(self.pool.free) > 3 and not self.tables:
            self.pool.free.pop()
            self.pool.num_blocks -= 1


class UnreferencesTwice(Sound):
    """What a window has passed loses a second reference when its request ends."""

    def spoil(self):
        self.passed = {}

    def unref_leading(self, request, num_tokens):
        before = self.tables[request].blocks[:]
        found = super().unref_leading(request, num_tokens)
        self.passed.setdefault(request, []).extend(block for block in before[:found] if block)
        return found

    def free(self, request, next_use=()):
        super().free(request)
        self.cache.unref([block for block in self.passed.pop(request, ()) if self.pool.ref[block]])


class FreesPassedBlocksThatOthersUse(Sound):
    def unref_leading(self, request, num_tokens):
        before = self.tables[request].blocks[:]
        found = super().unref_leading(request, num_tokens)
        for block in before[:found]:
            if block and self.pool.ref[block]:
                self.pool.ref[block] = 1
                self.cache.unref([block])
        return found


class CommitGoesBackwards(Sound):
    def commit(self, request, tokens):
        table = self.tables[request]
        table.committed = min(table.committed, len(tokens))
        return super().commit(request, tokens)


class CommitPassesTheRoom(Sound):
    def commit(self, request, tokens):
        table = self.tables[request]
        return super().commit(request, tokens[: max(len(table.blocks) * self.block_size, table.committed)])


class EventsDependOnAddresses(Sound):
    """Invariant 12: the order of free blocks comes from something that differs between runs."""

    def free(self, request, next_use=()):
        super().free(request)
        self.pool.restore_free(sorted(self.pool.free, key=lambda block: (id(self) // 16 + block * 7919) % 13))


PASSED = kit.check_blocks_that_windows_passed_are_unreferenced_soundly
RANDOM, COLLIDING = kit.check_random_histories, kit.check_random_histories_under_colliding_hashes


class ComparesTheLastBlockOnly(Sound):
    def commit(self, request, tokens):
        known = self.tables[request].token_bytes
        first = min(len(known) // 4 - self.block_size, len(tokens))
        if first > 0:
            known[: 4 * first] = as_tokens(tokens)[:first].tobytes()
        return super().commit(request, tokens)


class FoundAfterAFailedStep(PREFIX):
    def reset(self, request=None):
        for table in () if request is not None else self.tables.values():
            table.committed = max(table.committed, table.published * self.block_size)
        if not self.ahead or request is not None:
            super().reset(request)
        self.ahead.clear()


class PublishesOtherTokens(PREFIX):
    def publish(self, request, tokens):
        known = np.frombuffer(bytes(self.tables[request].token_bytes), np.int32)[: len(tokens)]
        super().publish(request, np.append(known, tokens[len(known) :]).astype(np.int32))


class CountsItsQuestions(Sound):
    def facts(self):
        self.questions = getattr(self, "questions", 0) + 1
        return {"questions": self.questions}


READS, APART = kit.check_the_policy_reads_all_that_is_known, kit.check_namespaces_are_kept_apart
CONTENTS = kit.check_contents_are_kept_apart


def replaced(**fields):
    """Methods of an allocator that takes requests and namespaces to have these fields."""
    return misread(lambda value: replace(value, **{name: new for name, new in fields.items() if hasattr(value, name)}))


def contents_read_as(change):
    """Methods of an allocator that takes each content of a namespace to be another one."""
    return misread(lambda value: replace(value, contents=tuple(sorted(change(*content) for content in value.contents)))
                   if hasattr(value, "contents") else value)  # fmt: skip


def misread(changed):
    """Methods of an allocator that takes requests and namespaces to be `changed`."""

    def request_of(request):
        return changed(replace(request, namespace=changed(request.namespace)))

    return {
        "lookup": lambda self, tokens, namespace, previous=None: Sound.lookup(
            self, tokens, changed(namespace), previous),
        "fits": lambda self, request, tokens, hit: Sound.fits(self, request_of(request), tokens, hit),
        "allocate": lambda self, request, tokens, hit, num_tokens=None: Sound.allocate(
            self, request_of(request), tokens, hit, num_tokens),
        "fork": lambda self, parent, child, num_tokens: Sound.fork(self, parent, request_of(child), num_tokens),
    }  # fmt: skip


class LeaksBeyondTheEighthRun(Sound):
    """Blocks after a table's first eight runs of adjacent ids stay in use."""

    def free(self, request, next_use=()):
        blocks = self.table(request).tolist()
        runs = np.cumsum([0, *(after != block + 1 for block, after in pairwise(blocks))]) if blocks else []
        super().free(request, next_use)
        lost = [block for block, run in zip(blocks, runs, strict=True) if run >= 8 and self.pool.is_free(block)]
        self.pool.take_free(lost)
        self.pool.used += len(lost)
        for block in lost:
            self.pool.ref[block] = 1


class Doubling(registry.load("allocator", "cow")):
    """Right: a request that grows gets as many blocks again as it has, where the pool has them."""

    def _double(self, request, before):
        table = self.tables[request]
        more = min(len(table.blocks), self.cache.available())
        if len(table.blocks) > max(before, 3):  # exact for short requests
            table.blocks.fromlist(self.cache.take(more))

    def allocate(self, request, tokens, hit, num_tokens=None):
        super().allocate(request, tokens, hit, num_tokens)
        self._double(request.id, 0)

    def extend(self, request, num_tokens):
        before = len(self.tables[request].blocks)
        change = super().extend(request, num_tokens)
        self._double(request, before)
        return change


CAUGHT_BY = {
    LeaksBeyondTheEighthRun: kit.check_scattered_tables_are_given_back,
    CountsItsQuestions: kit.check_facts_are_plain,
    UnreferencesTwice: PASSED,
    FreesPassedBlocksThatOthersUse: PASSED,
    EventsDependOnAddresses: kit.check_the_same_history_gives_the_same_events,
}
"""The others by the random histories."""
MUTANTS = {
    value: CAUGHT_BY.get(value, RANDOM)
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, (Sound, PREFIX)) and value not in (Sound, PREFIX, FindsByName)
}


def wrong(name, check=RANDOM, base=Sound, /, **methods):
    """A sound allocator with these members in place of its own, and the check that must catch it."""
    return type(name, (base,), methods), check


MUTANTS |= dict([
    wrong("TrustsEveryHash", COLLIDING, FindsByName),
    wrong("StaleMapEntry", RANDOM, FindsByName, keeps_evicted=True),  # the map still finds an evicted block
    # F2: a block's own tokens are compared, its ancestry is not.
    wrong("ComparesOwnTokensOnly", COLLIDING, FindsByName, name=lambda self, hashes, namespace, tokens, index: (
          hashes[index], index, namespace, tuple(tokens[index * self.block_size : (index + 1) * self.block_size]))),
    wrong("IgnoresTheNamespace", RANDOM, FindsByName, name=lambda self, hashes, namespace, tokens, index:
          tuple(tokens[: (index + 1) * self.block_size])),
    wrong("CopiesBackwards", extend=lambda self, request, num_tokens: TableChange(
          (change := Sound.extend(self, request, num_tokens)).start,
          tuple(BlockCopy(copy.destination, copy.source) for copy in change.copies))),
    wrong("HandsOutTheNullBlock",  # F18
          spoil=lambda self: setattr(self.pool, "free", array("i", range(self.num_blocks - 1, -1, -1)))),
    wrong("TrustsNames", kit.check_wrong_names_are_refused, spoil=lambda self: setattr(self.hasher, "blocks",
          lambda parent, tokens, *_: self.scheme.blocks(parent, tokens, self.block_size))),
    # Whatever the policy names, some cached block goes.
    wrong("AcceptsAnyVictim", kit.check_a_wrong_victim_is_refused, spoil=lambda self: setattr(
          self.cache.host, "victims",
          lambda count: [block for block, offered in enumerate(self.pool.candidate) if offered][:count])),
    wrong("ForgetsItsTokens", commit=lambda self, request, tokens: (
          self.tables[request].token_bytes.clear(), Sound.commit(self, request, tokens))[1]),
    wrong("FreesTwiceInSilence",
          free=lambda self, request, next_use=(): request in self.tables and Sound.free(self, request)),
    wrong("KeepsWhatIsNotSound", kit.check_discarded_content_is_not_found, reset=lambda self, request: None),
    wrong("IgnoresUnknownExtend", extend=lambda self, request, num_tokens:
          Sound.extend(self, request, num_tokens) if request in self.tables else TableChange(0)),
    wrong("WritesWithoutCopying", _unsafe=lambda self, table: []),
    wrong("WritesIntoPublished", _unsafe=lambda self, table: [
          index for index in Sound._unsafe(self, table) if self.pool.ref[table.blocks[index]] > 1]),
    wrong("CopiesOnlyWhatIsPublished", _unsafe=lambda self, table: [
          index for index in Sound._unsafe(self, table) if self.pool.block_hash[table.blocks[index]]]),
    wrong("ForgetsToNameTheCopy", extend=lambda self, request, num_tokens:
          TableChange(Sound.extend(self, request, num_tokens).start)),
    wrong("HitsWholePrompt", lookup=lambda self, tokens, namespace, previous=None: replace(
          hit := Sound.lookup(self, np.append(tokens, 0), namespace),
          hashes=hit.hashes[: len(tokens) // self.block_size])),
    wrong("SaysThatAllFits", kit.check_what_fits_is_given, fits=lambda self, request, tokens, hit: True),
    wrong("SaysThatTheLastBlockIsTaken", kit.check_what_fits_is_given, fits=lambda self, request, tokens, hit:
          self.blocks_for(len(tokens)) - len(hit.blocks) < self.cache.available(hit.blocks)),
    wrong("IgnoresHitsAtAdmission", fits=lambda self, request, tokens, hit:
          self.blocks_for(len(tokens)) <= self.cache.available(hit.blocks)),
    wrong("CountsEvictableHitsTwice", fits=lambda self, request, tokens, hit:
          self.blocks_for(len(tokens)) - len(hit.blocks) <= self.cache.available()),
    wrong("ForkSharesOneBlockTooMany", fork=lambda self, parent, child, num_tokens: Sound.fork(
          self, parent, child, max(num_tokens, self.block_size * min(
              num_tokens // self.block_size + 1, len(self.tables[parent].blocks))))),
    wrong("RoomIsOneTokenShort", extend=lambda self, request, num_tokens:
          Sound.extend(self, request, num_tokens - (num_tokens > 0))),
    wrong("RoomIsOneTokenTooMuch", kit.check_max_request_tokens_is_true, extend=lambda self, request, num_tokens:
          Sound.extend(self, request, num_tokens + (num_tokens > 0))),
    wrong("LooksUpImpurely", lookup=lambda self, tokens, namespace, previous=None:
          vars(self).update(_prompt_tokens=1) or Sound.lookup(self, tokens, namespace, previous)),
    wrong("CountsHitsTwice", allocate=lambda self, request, tokens, hit: Sound.allocate(self, request, tokens, hit)
          or vars(self).update(_hit_tokens=self._hit_tokens + hit.num_tokens)),
    wrong("CountsAreOffByOne",
          stats=lambda self: replace(Sound.stats(self), free_blocks=max(0, len(self.pool.free) - 1))),
    wrong("HonoursStaleHits", allocate=lambda self, request, tokens, hit:
          Sound.allocate(self, request, tokens, replace(hit, version=self.version))),
    wrong("ResetKeepsNames", reset=lambda self, request=None: vars(self).update(version=self.version + 1)),
    wrong("NeverReusesCached", _shortage=lambda self, num_tokens, hit:
          (self.blocks_for(num_tokens) - len(hit.blocks), len(self.pool.free), 0)),
    wrong("UnreferencesWhatIsStillRead", PASSED, unref_leading=lambda self, request, num_tokens:
          Sound.unref_leading(self, request, num_tokens + self.block_size)),
    wrong("LeavesPassedBlocksInTheTable", PASSED, table=lambda self, request, group=0:
          np.array([block or 1 for block in Sound.table(self, request)], dtype=np.int32)),
    wrong("DoesNotReportEvictions", listen=lambda self, listener: Sound.listen(
          self, lambda event: event.kind == "admit" and listener(event))),
    wrong("ReportsTheWrongStart",
          commit=lambda self, request, tokens: Sound.commit(self, request, tokens) and TableChange(0)),
    wrong("PromisesTooMuch", kit.check_max_request_tokens_is_true, max_request_tokens=10),
    wrong("CountsNoEviction", stats=lambda self: replace(Sound.stats(self), evictions=0)),
    wrong("CountsEvictionsTwice", stats=lambda self: replace(
          stats := Sound.stats(self), evictions=2 * stats.evictions)),
    wrong("CountsNoCollision", kit.check_collisions_are_counted,
          stats=lambda self: replace(Sound.stats(self), collisions=0)),
    wrong("CountsCollisionsThatAreNone", stats=lambda self: replace(Sound.stats(self), collisions=1)),
    wrong("DropsTheFuture", READS, free=lambda self, request, next_use=(): Sound.free(self, request)),
    wrong("StopsTheClock", READS, advance=lambda self, now: None),
    *(wrong(f"DropsThe{name.title()}", READS, **replaced(**{name: nothing})) for name, nothing in (
      ("priority", 0), ("tenant", ""), ("session", None), ("category", None), ("hint", None), ("arrival", None))),
    *(wrong(f"IgnoresThe{name.title()}", check, **replaced(**{name: ""}))
      for name in ("model", "adapter", "salt") for check in (APART, RANDOM)),
    wrong("IgnoresContents", CONTENTS, **replaced(contents=())),
    wrong("NamesOfContentsHave16Bits", kit.check_names_of_contents_are_taken_whole, **contents_read_as(
          lambda start, end, name: (start, end, f"{crc32(name.encode()) & 0xFFFF}"))),
    wrong("ForgetsThePlaceOfContents", CONTENTS, **contents_read_as(
          lambda start, end, name: (start // 2 * 2, -(-end // 2) * 2, name))),
    wrong("ForgetsWhereContentsEnd", CONTENTS, **contents_read_as(lambda start, end, name: (start, start + 1, name))),
    wrong("ContentsEnterEveryBlock", CONTENTS, **misread(lambda value: replace(
          value, salt=f"{value.salt}{value.contents}", contents=()) if hasattr(value, "contents") else value)),
    wrong("GivesOneBlockAtFirst", kit.check_a_prompt_gets_its_room_in_parts,
          allocate=lambda self, request, tokens, hit, num_tokens=None: Sound.allocate(
              self, request, tokens, hit, None if num_tokens is None else 1),
          extend=lambda self, request, num_tokens: TableChange(len(self.tables[request].blocks))),
    wrong("ForgetsThePartsAfterTheFirst", kit.check_a_prompt_gets_its_room_in_parts,
          allocate=lambda self, request, tokens, hit, num_tokens=None: (
              Sound.allocate(self, request, tokens, hit, num_tokens),
              setattr(self.tables[request.id], "closed", num_tokens is not None and num_tokens < len(tokens)))[0]),
    wrong("RoomIsAlwaysOneBlockMore", kit.check_max_request_tokens_is_true, extend=lambda self, request, num_tokens:
          Sound.extend(self, request, num_tokens + self.block_size)),
    wrong("ReportsAnArray", kit.check_facts_are_plain, facts=lambda self: {"counts": np.arange(3)}),
    wrong("ReportsNotANumber", kit.check_facts_are_plain, facts=lambda self: {"share": float("nan")}),
])  # fmt: skip

RIGHT = [(Doubling, (*kit.allocator_checks, *kit.allocator_large_checks))]
