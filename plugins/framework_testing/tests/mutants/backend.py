"""Backends with one fault each, and right ones that the kit must pass."""

from dataclasses import replace
from functools import partial

import torch

from framework.errors import InvalidArgument
from framework.interfaces import torch_ops
from framework.interfaces.backend import AttentionBackend, Capabilities, LayerKV
from framework_testing import backend as kit
from framework_testing.attention_cases import places

ALL = Capabilities(
    dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
    devices=frozenset({"cpu"}),
    layouts=frozenset({"NHD", "HND"}),
    features=frozenset({"sliding_window", "attention_chunk", "soft_cap", "sinks", "alibi", "latent", "lse"}),
    batch_invariant=True,
)
SINGLE = replace(ALL, dtypes=frozenset({"float32"}))


class Correct(AttentionBackend):
    """Row by row and head by head; each step is a method, for a mutant to get wrong."""

    capabilities = ALL

    def attend(self, q, pool, batch, out, *, lse=None):
        self.refuse(q, pool, batch, out, lse)
        starts, contexts = batch.query_starts.tolist(), batch.context_lens.tolist()
        for row, context in self.rows(contexts):
            first, last = starts[row], starts[row + 1]
            if context == 0:
                self.empty(out[first:last], None if lse is None else lse[first:last])
                continue
            slots = self.slots(batch.block_tables[row], context)
            k, v = self.read(pool, slots)
            values, sums = self.attend_row(q[first:last], k, v, context, pool)
            out[first:last] = values.to(out.dtype)
            if lse is not None:
                lse[first:last] = sums.to(lse.dtype)

    def refuse(self, q, pool, batch, out, lse):
        self.require(q, pool, batch, out, lse)

    def rows(self, contexts):
        return enumerate(contexts)

    def empty(self, out, lse):
        out.zero_()
        if lse is not None:
            lse.fill_(-torch.inf)

    def slots(self, table, context):
        position, size = torch.arange(context), self.spec.block_size
        return table.long()[position // size] * size + position % size

    def read(self, pool, slots):
        at = places(slots, pool.block_size, pool.layout)
        return tuple(self.widened(stored[at], scale, at)
                     for stored, scale in ((pool.k, pool.k_scale), (pool.v, pool.v_scale)))  # fmt: skip

    def widened(self, values, scale, at):
        values = values if values.dtype == torch.float64 else values.float()
        if scale is None:
            return values
        return values * (scale[at].unsqueeze(-1) if scale.dim() == 3 else scale[None, :, None])

    def head(self, head):
        return head // (self.spec.num_heads // self.spec.num_kv_heads)

    def seen(self, query, key):
        seen = key <= query
        if self.spec.sliding_window is not None:
            seen &= key > query - self.spec.sliding_window
        if self.spec.attention_chunk is not None:
            seen &= key >= query - query % self.spec.attention_chunk
        return seen

    def scale(self):
        return self.spec.softmax_scale

    def modify(self, scores, head, pool, query, key):
        if self.spec.soft_cap is not None:
            scores = self.spec.soft_cap * torch.tanh(scores / self.spec.soft_cap)
        if self.spec.alibi:
            scores = scores + pool.alibi_slopes[head].to(scores) * (key - query)
        return scores

    def softmax(self, scores, seen, v, sink):
        scores = scores.masked_fill(~seen, -torch.inf)
        if sink is not None:
            scores = torch.cat([scores, sink.to(scores).expand(len(scores), 1)], dim=1)
        weights = torch.softmax(scores, dim=1)[:, : len(v)]
        return weights @ v, torch.logsumexp(scores, dim=1)

    def attend_row(self, q, k, v, context, pool):
        query = torch.arange(context - len(q), context)[:, None]
        key = torch.arange(len(k))[None, :]
        outs, sums = [], []
        for head in range(self.spec.num_heads):
            scores = q[:, head].to(k.dtype) @ k[:, self.head(head)].T * self.scale()
            scores = self.modify(scores, head, pool, query, key)
            sink = pool.sinks[head] if self.spec.sinks else None
            o, s = self.softmax(scores, self.seen(query, key), v[:, self.head(head)], sink)
            outs.append(o)
            sums.append(s)
        return torch.stack(outs, 1), torch.stack(sums, 1)


class LastBlockTailIsRead(Correct):
    """Whole blocks enter the softmax."""

    def slots(self, table, context):
        size = self.spec.block_size
        return super().slots(table, -(-context // size) * size)

    def seen(self, query, key):
        return super().seen(query, key) | (key > query.max())


class SoftCapAfterTheBias(Correct):
    def modify(self, scores, head, pool, query, key):
        if self.spec.alibi:
            scores = scores + pool.alibi_slopes[head].to(scores) * (key - query)
        return scores if self.spec.soft_cap is None else self.spec.soft_cap * torch.tanh(scores / self.spec.soft_cap)


class NoRunningMaximum(Correct):
    def softmax(self, scores, seen, v, sink):
        weights = torch.exp(scores).masked_fill(~seen, 0.0)
        total = weights.sum(1) + (0 if sink is None else sink.to(weights).exp())
        return (weights @ v) / total[:, None], total.log()


class AccumulatesIntoOut(Correct):
    def attend(self, q, pool, batch, out, *, lse=None):
        fresh = torch.zeros_like(out)
        super().attend(q, pool, batch, fresh, lse=lse)
        out += fresh


class ContiguousQueriesAssumed(Correct):
    def attend(self, q, pool, batch, out, *, lse=None):
        flat = torch.as_strided(q, q.shape, (q.shape[1] * q.shape[2], q.shape[2], 1), q.storage_offset())
        super().attend(flat, pool, batch, out, lse=lse)


class ReadsBeyondTheTable(Correct):
    def refuse(self, q, pool, batch, out, lse):
        capacity = batch.block_tables.shape[1] * self.spec.block_size
        super().refuse(q, pool, replace(batch, max_context_len=0), out, lse)
        batch.context_lens.clamp_(max=capacity)


class ShapesNotRefused(Correct):
    def refuse(self, q, pool, batch, out, lse):
        if batch.max_context_len > batch.block_tables.shape[1] * self.spec.block_size:
            raise InvalidArgument("too long")
        out.zero_()


class Int32Offsets(Correct):
    def read(self, pool, slots):
        stride = pool.k[0].numel()
        first = (slots // pool.block_size).int() * stride
        return super().read(pool, first.long() // stride * pool.block_size + slots % pool.block_size)


class WriteIgnoresTheLayout(Correct):
    def write(self, pool, k, v, slot_mapping):
        shape = (pool.k.shape[0], self.spec.block_size, self.spec.num_kv_heads, self.spec.head_dim)
        super().write(LayerKV(pool.k.view(shape), pool.v.view(shape), "NHD"), k, v, slot_mapping)


class RotatesByTheTokensOwnRow(Correct):
    def rotate_and_write(self, pool, q, k, v, rope, slot_mapping):
        if rope.positions is not None:
            rope = replace(rope, positions=torch.arange(len(q)))
        return super().rotate_and_write(pool, q, k, v, rope, slot_mapping)


class CopiesAllAtOnce(Correct):
    """A chain a -> b, b -> c gives c the old b."""

    def copy_blocks(self, pool, copies):
        source, destination = copies[:, 0], copies[:, 1]
        if len(torch.unique(destination)) != len(destination):
            raise InvalidArgument("twice")
        pool.k[destination], pool.v[destination] = pool.k[source], pool.v[source]


class CopiesKOnly(Correct):
    def copy_blocks(self, pool, copies):
        before = pool.v.clone()
        super().copy_blocks(pool, copies)
        pool.v.copy_(before)


class RemembersByShape(Correct):
    """The same shapes give the output of the first call."""

    def setup(self, spec, device):
        super().setup(spec, device)
        self.memo = {}

    def attend(self, q, pool, batch, out, *, lse=None):
        key = (q.shape, pool.k.shape, batch.block_tables.shape, tuple(batch.context_lens.tolist()), lse is None)
        if key not in self.memo:
            super().attend(q, pool, batch, out, lse=lse)
            self.memo[key] = (out.clone(), None if lse is None else lse.clone())
        self.refuse(q, pool, batch, out, lse)
        out.copy_(self.memo[key][0])
        if lse is not None:
            lse.copy_(self.memo[key][1])


class FirstPaddingKeyIsSeen(Correct):
    """In plain decode of unequal rows, a row's tile ends one key too late."""

    def attend(self, q, pool, batch, out, *, lse=None):
        spec, lengths = self.spec, batch.context_lens.tolist()
        plain = not (spec.sliding_window or spec.soft_cap or spec.sinks or spec.alibi) and spec.scale is None
        ragged = len(set(lengths)) > 3 and 0 not in lengths and len(q) == len(lengths)
        self.longest = max(lengths) if plain and ragged else 0
        super().attend(q, pool, batch, out, lse=lse)

    def slots(self, table, context):
        slots = super().slots(table, context)
        return torch.cat([slots, torch.zeros(1, dtype=torch.int64)]) if context < self.longest else slots

    def seen(self, query, key):
        return super().seen(query, key) | (key > query.max())


class SharesByTheFirstBlock(Correct):
    """Rows with one first block are taken to share all whole blocks of the shorter one."""

    def attend(self, q, pool, batch, out, *, lse=None):
        tables = batch.block_tables.clone()
        for row, context in enumerate(batch.context_lens.tolist()):
            alike = int((tables[:, 0] == tables[row, 0]).nonzero()[0])
            whole = max(0, min(context, int(batch.context_lens[alike])) - 1) // self.spec.block_size
            tables[row, :whole] = tables[alike, :whole].clone()
        super().attend(q, pool, replace(batch, block_tables=tables), out, lse=lse)


class SplitsJoinByLogSumExps(Correct):
    """In decode, one split a block, base 2: a large logit leaves no digits for a sum that is no power of 2."""

    def softmax(self, scores, seen, v, sink):
        if sink is not None or len(scores) > 1:
            return super().softmax(scores, seen, v, sink)
        outs, sums = [], []
        logits = scores.masked_fill(~seen, -torch.inf) * 1.4426950408889634
        for part, values in zip(logits.split(self.spec.block_size, 1), v.split(self.spec.block_size), strict=True):
            top = part.amax(1, keepdim=True).clamp_min(torch.finfo(part.dtype).min)
            weights = torch.exp2(part - top)
            total = weights.sum(1, keepdim=True)
            outs.append(weights @ values / total.clamp_min(1e-30))
            sums.append(top + torch.log2(total))
        largest = torch.stack(sums).amax(0)
        shares = torch.exp2(torch.stack(sums) - largest)
        joined = (torch.stack(outs) * shares).sum(0) / shares.sum(0)
        return joined, ((largest + torch.log2(shares.sum(0))) * 0.6931471805599453)[:, 0]


class StridesOfThePoolIgnored(Correct):
    def read(self, pool, slots):
        size, flat = pool.k.shape, torch.empty(pool.k.shape, device="meta").stride()
        k, v = (t.as_strided(size, flat) for t in (pool.k, pool.v))
        return super().read(LayerKV(k, v, pool.layout), slots)


class ReadsLengthsOnTheHost(Correct):
    capabilities = replace(SINGLE, graph_safe=True, simulated_devices=frozenset({"cpu"}))  # its loops are not judged

    def plan(self, batch):
        self.contexts = torch.from_numpy(batch.host_context_lens.copy())

    def attend(self, q, pool, batch, out, *, lse=None):
        super().attend(q, pool, replace(batch, context_lens=self.contexts), out, lse=lse)


class Narrow(Correct):
    """Also right: reads and writes fp8."""

    capabilities = replace(ALL, kv_dtypes=frozenset({"float8_e4m3fn"}))


class NarrowWritesAreCutOff(Narrow):
    def write(self, pool, k, v, slot_mapping):
        if pool.k_scale is not None:
            k, v = (
                self.cut(values.float() / scale[None, :, None], pool.k.dtype) * scale[None, :, None]
                for values, scale in ((k, pool.k_scale), (v, pool.v_scale))
            )
        super().write(pool, k, v, slot_mapping)

    def cut(self, values, dtype):
        stored = values.to(dtype)
        bits = stored.view(torch.uint8) - (stored.float().abs() > values.abs()).to(torch.uint8)
        return bits.view(dtype).float()


class LatentScaledTwice(Narrow):
    def read(self, pool, slots):
        k, v = super().read(pool, slots)
        return k, v * pool.k_scale if pool.is_latent and pool.k_scale is not None else v


class RopeOfAnotherPosition(Correct):
    def write(self, pool, k, v, slot_mapping):
        if pool.is_latent:
            k = torch.cat((k[..., : v.shape[-1]], k[..., v.shape[-1] :].roll(1, 0)), -1)
        super().write(pool, k, v, slot_mapping)


class CopyLeavesTheIndexBehind(Correct):
    def copy_blocks(self, pool, copies):
        super().copy_blocks(replace(pool, index=None), copies)


class SelectsByTheTableOfASibling(Correct):
    def select(self, q, weights, pool, batch, count):
        siblings = batch.block_tables.roll(1, 0)
        return super().select(q, weights, pool, replace(batch, block_tables=siblings), count)


class Int8(Correct):
    """Also right: reads and writes int8, with a scale for each token and head."""

    capabilities = replace(ALL, dtypes=frozenset({"float32"}), kv_dtypes=frozenset({"int8"}))


class Int8CopiesForgetTheScales(Int8):
    def copy_blocks(self, pool, copies):
        super().copy_blocks(LayerKV(pool.k, pool.v, pool.layout), copies)


class Int8WritesAreCutOff(Int8):
    def write(self, pool, k, v, slot_mapping):
        super().write(pool, k, v, slot_mapping)
        if pool.k_scale is not None:  # a step towards zero
            pool.k.sub_(pool.k.sign())


class Int8ReadsOneScaleForAllHeads(Int8):
    def read(self, pool, slots):
        if pool.k_scale is None:
            return super().read(pool, slots)
        axis = 2 if pool.layout == "NHD" else 1
        scales = (s.narrow(axis, 0, 1).expand_as(s) for s in (pool.k_scale, pool.v_scale))
        return super().read(LayerKV(pool.k, pool.v, pool.layout, *scales), slots)


def wrong(name, **methods):
    """A correct backend with these methods in place of its own."""
    return type(name, (Correct,), methods)


def windowed(name, seen):
    """Whether `query` sees `key`, both (.., 1) and (1, ..) positions, in a window: as `seen` says, and causally."""
    return wrong(name, seen=lambda self, query, key: (key <= query) & (
        True if self.spec.sliding_window is None else seen(query, key, self.spec.sliding_window)))  # fmt: skip


def spoiled(name, spoil, **members):
    """Attends rightly, then calls `spoil(self, q, pool, batch, out, lse)`."""

    def attend(self, q, pool, batch, out, *, lse=None):
        Correct.attend(self, q, pool, batch, out, lse=lse)
        spoil(self, q, pool, batch, out, lse)

    return wrong(name, attend=attend, **members)


LOG2_E = 1.4426950408889634
WRONG = [
    wrong("ChunkIsAWindow", seen=lambda self, query, key: (key <= query) & (key > query - (
        self.spec.attention_chunk or self.spec.sliding_window or query.max() + 2))),
    windowed("WindowOneTooWide", lambda query, key, window: key >= query - window),
    windowed("WindowOneTooNarrow", lambda query, key, window: key > query - max(1, window - 1)),
    windowed("WindowFromTheContextsEnd", lambda query, key, window: (key > query.max() - window) | (key == query)),
    # Right to rounding, and another rounding for another batch, call or placement.
    spoiled("DependsOnTheBatch", lambda self, q, pool, batch, out, lse:
            out.mul_(1 + len(batch.context_lens) * 2e-7), capabilities=SINGLE),
    spoiled("DependsOnTheCallBefore", lambda self, q, pool, batch, out, lse:
            (setattr(self, "calls", self.calls + 1), out.mul_(1 + self.calls * 2e-7)), capabilities=SINGLE, calls=0),
    spoiled("DependsOnBlockIds", lambda self, q, pool, batch, out, lse:
            out.mul_(1 + int(batch.block_tables[:, 0].max()) * 3e-7), capabilities=SINGLE),
    spoiled("WritesToThePool", lambda self, q, pool, batch, out, lse: pool.k[0].zero_()),
    spoiled("GroupCutTo16", lambda self, q, pool, batch, out, lse:
            out[:, 16:].zero_() if self.spec.num_heads // self.spec.num_kv_heads > 16 else None),
    # The log-sum-exp of rows long enough to be split.
    spoiled("SplitsMergeInBaseTwo", lambda self, q, pool, batch, out, lse: None if lse is None else
            lse.mul_(torch.where(batch.context_lens > 16 * self.spec.block_size, LOG2_E, 1.0)[:, None])),
    wrong("IgnoresKeysMoreThan8192Back", seen=lambda self, query, key:
          Correct.seen(self, query, key) & (key > query - 8192)),
    *(wrong(f"IgnoresKeysFrom{most}On", seen=lambda self, query, key, most=most:
            Correct.seen(self, query, key) & (key < most)) for most in (8192, 32768)),
    *(spoiled(f"LogSumExpUnwrittenFromToken{first}On", lambda self, q, pool, batch, out, lse, first=first:
              None if lse is None else lse[first:].fill_(torch.nan)) for first in (64, 128)),
    spoiled("OutputUnwrittenFromToken64On", lambda self, q, pool, batch, out, lse: out[64:].fill_(0)),
    spoiled("LogSumExpOfLongRowsIsTheirLastPartS", lambda self, q, pool, batch, out, lse:
            None if lse is None or int(batch.context_lens.max()) < 8192 else lse.sub_(0.01)),
    wrong("SinkAsAKey", softmax=lambda self, scores, seen, v, sink:  # it takes part as the first value does
          (lambda out, sums: (out if sink is None else out + (sink - sums).exp()[:, None] * v[:1], sums))(
          *Correct.softmax(self, scores, seen, v, sink))),
    wrong("LogBaseTwo", softmax=lambda self, *rest:
          (lambda out, sums: (out, sums * LOG2_E))(*Correct.softmax(self, *rest))),
    wrong("LengthOfTheRowBefore", rows=lambda self, contexts: (
          (row, contexts[max(0, row - 1)] and min(contexts[row - 1], length)) for row, length in enumerate(contexts))),
    wrong("EmptyRowHasLogSumExpZero", empty=lambda self, out, lse:
          (out.zero_(), None if lse is None else lse.zero_())),
    wrong("HalfPrecisionAccumulated", modify=lambda self, scores, *rest: Correct.modify(  # rounded twice
          self, scores.bfloat16().to(scores.dtype) if scores.dtype == torch.float32 else scores, *rest)),
    wrong("CausalFromTheTopLeft", attend_row=lambda self, q, k, v, context, pool:  # of the context
          Correct.attend_row(self, q, k, v, context if len(q) == 1 else len(q), pool)),
    wrong("RotatesQOnly", rotate_and_write=lambda self, pool, q, k, v, rope, slots:
          (Correct.rotate_and_write(self, pool, q, k, v, rope, slots), self.write(pool, k, v, slots))[0]),
    wrong("ReadsOneTokenTooFew",
          read=lambda self, pool, slots: Correct.read(self, pool, slots[: max(1, len(slots) - 1)])),
    wrong("WrongOffsetInBlock", slots=lambda self, table, context:
          Correct.slots(self, table, context) // self.spec.block_size * self.spec.block_size
          + (torch.arange(context) + 1) % self.spec.block_size),
    wrong("MaskAfterMultiplying", slots=lambda self, table, context:
          Correct.slots(self, table, -(-context // self.spec.block_size) * self.spec.block_size)),
    wrong("TableIgnored", slots=lambda self, table, context: torch.arange(context) + self.spec.block_size),
    wrong("TableIgnoredFromTheSecondBlockOn", slots=lambda self, table, context:
          torch.arange(context) + int(table[0]) * self.spec.block_size),
    wrong("HeadsInterleaved", head=lambda self, head: head % self.spec.num_kv_heads),
    wrong("FirstKvHeadOnly", head=lambda self, head: 0),
    wrong("CausalOffByOne", seen=lambda self, query, key: Correct.seen(self, query, key + 1) | (key == 0)),
    wrong("NotCausal", seen=lambda self, query, key: torch.ones_like(key <= query)),
    wrong("ScaleMissing", scale=lambda self: 1.0),
    wrong("ValuesAreTheEndOfTheRow", read=lambda self, pool, slots:
          (lambda k, v: (k, k[..., -v.shape[-1] :] if pool.is_latent else v))(*Correct.read(self, pool, slots))),
    wrong("SelectsTheLowestScores", select=lambda self, q, weights, *rest: Correct.select(self, q, -weights, *rest)),
    wrong("SelectsWithoutTheWeights", select=lambda self, q, weights, *rest:
          Correct.select(self, q, torch.ones_like(weights), *rest)),
    wrong("SelectsPositionsForSlots", select=lambda self, q, weights, pool, batch, count: Correct.select(
          self, q, weights, pool, replace(batch, block_tables=torch.arange(batch.block_tables.shape[1]).expand_as(
              batch.block_tables)), count).int()),
    wrong("ScaleOfTheSpecIgnored", scale=lambda self: self.spec.head_dim**-0.5),
    wrong("AlibiSlopeOfTheNextHead", modify=lambda self, scores, head, *rest:
          Correct.modify(self, scores, (head + 1) % self.spec.num_heads, *rest)),
    wrong("SinkNotInTheLogSumExp", softmax=lambda self, scores, seen, v, sink:
          (Correct.softmax(self, scores, seen, v, sink)[0], Correct.softmax(self, scores, seen, v, None)[1])),
    wrong("RowsAfterTheFirstDropped", rows=lambda self, contexts: [(0, contexts[0])]),
    wrong("EmptyRowIsNaN", empty=lambda self, out, lse: out.fill_(torch.nan)),
    wrong("EmptyRowIsLeftAlone", empty=lambda self, out, lse: None),
    wrong("ChecksNothing", check=lambda self, spec, device: []),
    wrong("DeclaresADtypeItGetsWrong", read=lambda self, pool, slots:
          tuple(t.half().to(t.dtype) for t in Correct.read(self, pool, slots))),
    wrong("WriteToPaddingSlots",
          write=lambda self, pool, k, v, slots: Correct.write(self, pool, k, v, slots.clamp(min=0))),
    wrong("WriteSwapsKAndV", write=lambda self, pool, k, v, slots: Correct.write(self, pool, v, k, slots)),
    wrong("WriteThroughHalf", write=lambda self, pool, k, v, slots:
          Correct.write(self, pool, k.half().to(k.dtype), v.half().to(v.dtype), slots)),
    wrong("RotatesKOnly", rotate_and_write=lambda self, pool, q, *rest:
          (Correct.rotate_and_write(self, pool, q, *rest), q.clone())[1]),
    wrong("RotatesVToo", rotate_and_write=lambda self, pool, q, k, v, rope, slots: Correct.rotate_and_write(
          self, pool, q, k, torch_ops.rotate(v, rope), rope, slots)),
    wrong("RotatesBackwards", rotate_and_write=lambda self, pool, q, k, v, rope, slots: Correct.rotate_and_write(
          self, pool, q, k, v, replace(rope, sin=-rope.sin), slots)),
    wrong("RotatesTheOtherPairs", rotate_and_write=lambda self, pool, q, k, v, rope, slots: Correct.rotate_and_write(
          self, pool, q, k, v, replace(rope, interleaved=not rope.interleaved), slots)),
    wrong("RotatesHalvesOnly", rotate_and_write=lambda self, pool, q, k, v, rope, slots: Correct.rotate_and_write(
          self, pool, q, k, v, replace(rope, interleaved=False), slots)),
    wrong("RotatesInPlace", rotate_and_write=lambda self, pool, q, *rest:
          q.copy_(Correct.rotate_and_write(self, pool, q, *rest))),
    wrong("RotatesInHalfPrecision",
          rotate_and_write=lambda self, pool, q, k, v, rope, slots: Correct.rotate_and_write(
          self, pool, q, k, v, replace(rope, cos=rope.cos.bfloat16(), sin=rope.sin.bfloat16()), slots)),
    wrong("RotatesIntoPaddingSlots",
          rotate_and_write=lambda self, pool, q, k, v, rope, slots: Correct.rotate_and_write(
          self, pool, q, k, v, rope, slots.clamp(min=0))),
    wrong("CopiesBackwards", copy_blocks=lambda self, pool, copies: Correct.copy_blocks(self, pool, copies.flip(1))),
    wrong("CopiesToOneBlockTwice", copy_blocks=lambda self, pool, copies:
          [torch_ops.copy_blocks(pool, pair[None]) for pair in copies] and None),
    wrong("BlockIdsClamped", read=lambda self, pool, slots:
          Correct.read(self, pool, slots.clamp(max=pool.num_blocks * pool.block_size - 1))),
    *(
        value
        for value in list(globals().values())
        if isinstance(value, type) and issubclass(value, Correct) and value not in (Correct, Narrow, Int8)
    ),
]  # fmt: skip
CAUGHT_BY = {
    kit.check_what_is_declared_is_served:
        "SinkAsAKey LengthOfTheRowBefore HalfPrecisionAccumulated CausalFromTheTopLeft ReadsOneTokenTooFew "
        "WrongOffsetInBlock TableIgnored TableIgnoredFromTheSecondBlockOn FirstKvHeadOnly CausalOffByOne NotCausal "
        "ScaleMissing AlibiSlopeOfTheNextHead DeclaresADtypeItGetsWrong AccumulatesIntoOut "
        "Int8ReadsOneScaleForAllHeads",
    kit.check_what_is_not_declared_is_refused: "ChecksNothing ShapesNotRefused",
    kit.check_written_tokens_are_stored_exactly:
        "WriteToPaddingSlots WriteSwapsKAndV WriteThroughHalf WriteIgnoresTheLayout RopeOfAnotherPosition",
    kit.check_tokens_are_rotated_on_their_way:
        "RotatesQOnly RotatesKOnly RotatesVToo RotatesBackwards RotatesTheOtherPairs RotatesHalvesOnly RotatesInPlace "
        "RotatesInHalfPrecision RotatesIntoPaddingSlots RotatesByTheTokensOwnRow",
    kit.check_block_copies_are_exact_and_in_order:
        "CopiesBackwards CopiesToOneBlockTwice CopiesAllAtOnce CopiesKOnly CopyLeavesTheIndexBehind",
    kit.check_a_row_does_not_depend_on_its_batch: "DependsOnTheBatch",
    kit.check_what_is_no_input_changes_no_bit:
        "DependsOnTheCallBefore DependsOnBlockIds LastBlockTailIsRead MaskAfterMultiplying",
    kit.check_a_context_beyond_its_table_is_refused: "ReadsBeyondTheTable",
    kit.check_extreme_logits_stay_finite: "NoRunningMaximum SplitsJoinByLogSumExps",
    kit.check_rows_of_context_zero_give_zeros:
        "EmptyRowIsNaN EmptyRowIsLeftAlone EmptyRowHasLogSumExpZero WritesToThePool",
    kit.check_numbers_match_fp64_over_the_grid:
        "ContiguousQueriesAssumed WindowFromTheContextsEnd WindowOneTooWide WindowOneTooNarrow HeadsInterleaved "
        "RowsAfterTheFirstDropped ScaleOfTheSpecIgnored SinkNotInTheLogSumExp SoftCapAfterTheBias LatentScaledTwice",
    kit.check_values_decide_and_not_shapes: "RemembersByShape",
    kit.check_an_index_selects_the_highest_scores:
        "SelectsByTheTableOfASibling SelectsTheLowestScores SelectsWithoutTheWeights SelectsPositionsForSlots",
    kit.check_rows_of_unequal_length:
        "FirstPaddingKeyIsSeen GroupCutTo16 SplitsMergeInBaseTwo LogBaseTwo ValuesAreTheEndOfTheRow",
    kit.check_contexts_beyond_8192:
        "IgnoresKeysMoreThan8192Back IgnoresKeysFrom8192On LogSumExpOfLongRowsIsTheirLastPartS",
    kit.check_many_rows: "LogSumExpUnwrittenFromToken64On OutputUnwrittenFromToken64On",
    kit.check_rows_may_share_blocks: "SharesByTheFirstBlock",
    kit.check_interleaved_pools_are_read_and_written: "StridesOfThePoolIgnored",
    kit.check_a_block_outside_the_pool_is_refused: "BlockIdsClamped",
    kit.check_a_recorded_step_serves_other_lengths: "ReadsLengthsOnTheHost",
    kit.check_narrow_writes_round_to_nearest: "NarrowWritesAreCutOff Int8WritesAreCutOff Int8CopiesForgetTheScales",
    kit.check_blocks_beyond_2_31_elements_are_addressed: "Int32Offsets",
    kit.check_large_contexts: "IgnoresKeysFrom32768On",
    partial(kit.check_what_is_declared_is_served, cases="full"): "ChunkIsAWindow",
    partial(kit.check_many_rows, cases="full"): "LogSumExpUnwrittenFromToken128On",
}  # fmt: skip
SMALL = {check: partial(check, cases="small") for check in (*kit.backend_checks, *kit.backend_large_checks)}
_CHECKS = {name: SMALL.get(check, check) for check, names in CAUGHT_BY.items() for name in names.split()}
MUTANTS = [(mutant, _CHECKS[mutant.__name__]) for mutant in WRONG]
GRID = SMALL[kit.check_numbers_match_fp64_over_the_grid]
NARROW = [SMALL[check] for check in kit.backend_checks if "write" in check.__name__ or "declared" in check.__name__]
RIGHT = [
    (Correct, kit.backend_large_checks),
    (Correct, [SMALL[check] for check in kit.backend_checks
               if check is not kit.check_blocks_beyond_2_31_elements_are_addressed]),  # which takes a process
    (Narrow, NARROW),
    (Int8, [*NARROW, GRID]),
]  # fmt: skip
