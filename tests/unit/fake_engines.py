"""An executor without a model, engines over it, and what they must return.

Each token follows from the whole prefix, read back through the block tables. A slot holds the chained name of the
prefix that ends there, so that a block with another prefix, a stale one, or one never written changes what comes out.
The same numbers come from `FakeModel` as a pure function of the prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from framework import registry
from framework.config.sections import CacheOptions, EngineOptions, FaultOptions
from framework.engine.engine import Engine, ModelLimits, Trial
from framework.engine.executors.base import BoolArray, Executor, FloatArray, Step
from framework.engine.request import Request, Status
from framework.engine.rows import IntArray, Rows
from framework.interfaces.allocator import Allocator, CacheEvent
from framework.interfaces.observer import Call, Move, Note, Observed, Observer
from framework.registry.components import Component, build_allocator
from framework.sampling import Sampling
from framework.types import BlockCopy
from framework.validation import Options

if TYPE_CHECKING:
    from framework.llm import LLM

_MASK = (1 << 64) - 1
_STALE = 0xDEAD_0000_0000_0000
UintArray = npt.NDArray[np.uint64]
DoubleArray = npt.NDArray[np.float64]


class FakeModel:
    """Logits as a pure function of all tokens before; no weights.

    Args:
        vocab_size: tokens are 0 to vocab_size - 1.
        nan_after: logits are NaN where the last token is one of these.
        window: the last slots that are read, as under a sliding window; None: all.
    """

    def __init__(self, vocab_size: int = 32, nan_after: Container[int] = (), window: int | None = None) -> None:
        self.vocab_size, self.nan_after, self.window = vocab_size, nan_after, window

    def chain(self, previous: int, token: int) -> int:
        """The name of a prefix from that of the prefix before it; what a slot of the fake pool holds."""
        return _mix((previous * 3 + token + 1) & _MASK)

    def names(self, tokens: Sequence[int]) -> list[int]:
        """The name of each prefix of `tokens`."""
        names, name = [], 0
        for token in tokens:
            name = self.chain(name, int(token))
            names.append(name)
        return names

    def logits(self, names: UintArray, token: int) -> DoubleArray:
        """(vocab_size,) float64, from all slots of a context and its last token."""
        if token in self.nan_after:
            return np.full(self.vocab_size, np.nan)
        read = names if self.window is None else names[-self.window :]
        key = np.uint64(int(read.sum(dtype=np.uint64)))
        values = _mix_array(np.arange(self.vocab_size, dtype=np.uint64) ^ key)
        logits: DoubleArray = 6.0 * (values >> np.uint64(11)).astype(np.float64) / 2.0**53
        return logits

    def logits_of(self, tokens: Sequence[int]) -> DoubleArray:
        """(vocab_size,) float64 after these tokens."""
        return self.logits(np.array(self.names(tokens), dtype=np.uint64), int(tokens[-1]))

    def draw(self, logits: DoubleArray, temperature: float, seed: int, stream: int, position: int) -> int:
        """Greedy, or Gumbel noise that depends on (seed, stream, position) alone."""
        if temperature == 0:
            return int(np.argmax(logits))
        key = _mix(_mix(_mix(seed) ^ stream) ^ position)
        bits = _mix_array(np.arange(self.vocab_size, dtype=np.uint64) ^ np.uint64(key))
        uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
        return int(np.argmax(logits / temperature - np.log(-np.log(uniform))))

    def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        stream: int = 0,
        stop: Container[int] = (),
    ) -> list[int]:
        """What any engine must return for this request."""
        tokens = [int(token) for token in prompt]
        for _ in range(max_tokens):
            tokens.append(self.draw(self.logits_of(tokens), temperature, seed, stream, len(tokens)))
            if tokens[-1] in stop:
                break
        return tokens[len(prompt) :]


class FakeExecutor(Executor):
    """Runs `model` over a pool of names, on a virtual clock of one second a step.

    Checks every step against the rules an engine must keep: new tokens follow the computed ones, no row comes twice,
    no write to the null block, none by two rows to one block, and none to a slot that another row holds for computed
    unless this step writes it. As in a transformer's layer, all rows' slots are written before any row reads.

    Args:
        before_forward: called with each step before anything is written; may raise.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        model: FakeModel | None = None,
        before_forward: Callable[[Step], None] | None = None,
    ) -> None:
        self.model, self.block_size = model or FakeModel(), block_size
        self.pool = np.full((num_blocks + 1, block_size), _STALE, dtype=np.uint64)
        self.pool[0] = 0
        self.tables: dict[int, list[int]] = {}
        self.time = 0.0
        self.num_tokens = self.num_fresh = 0
        self._before = before_forward
        self._logits: list[DoubleArray] = []

    def restart_clock(self) -> None:
        self.time = 0.0

    def reset(self) -> None:
        self.tables.clear()
        self._logits = []

    def set_table(self, row: int, start: int, ids: npt.NDArray[np.int32], group: int = 0) -> None:
        if group:
            return  # it computes over the first alone
        table = self.tables.setdefault(row, [])
        assert start <= len(table), f"row {row}: entries from {start} on leave a gap after {len(table)}"
        table[start:] = [int(block) for block in ids]
        null = next((at for at, block in enumerate(table) if block), 0) if start == 0 else table.count(0)
        known = table[null:]
        assert all(0 < block < len(self.pool) for block in known), f"row {row} names blocks outside the pool: {table}"

    def clear_table(self, row: int) -> None:
        self.tables.pop(row)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            self.pool[copy.destination] = self.pool[copy.source]

    def fresh(self, ids: npt.NDArray[np.int32], group: int = 0) -> None:
        """Overwrite: whatever was there is nobody's."""
        if group:
            return
        self.num_fresh += 1
        self.pool[ids] = _STALE + self.num_fresh

    def now(self) -> float:
        """Virtual seconds."""
        return self.time

    def wait_until(self, when: float) -> None:
        """Jump."""
        self.time = max(self.time, when)

    def forward(self, step: Step, rows: Rows) -> None:
        if self._before is not None:
            self._before(step)
        self._check(step, rows)
        self._write(step, rows)
        ends = step.computed + step.num_new
        self._logits = [self._attend(int(step.rows[i]), int(ends[i]), rows) for i in step.sampled]
        self.num_tokens += step.num_tokens
        self.time += 1.0

    def _write(self, step: Step, rows: Rows) -> None:
        """Each row's slots, after those of the row that this step lets write the slot before its first."""
        left = {
            row: range(first, first + count)
            for row, count, first in zip(step.rows.tolist(), step.num_new.tolist(), step.computed.tolist(), strict=True)
        }
        unwritten = {self._slot(self.tables[row], position) for row, new in left.items() for position in new}
        while left:
            row = next(row for row, new in left.items() if not new[0] or self._before_of(row, new) not in unwritten)
            new = left.pop(row)
            name = int(self.pool[self._before_of(row, new)]) if new[0] else 0
            for position in new:
                name = self.model.chain(name, int(rows.tokens[row, position]))
                slot = self._slot(self.tables[row], position)
                self.pool[slot] = name
                unwritten.discard(slot)

    def _before_of(self, row: int, new: range) -> tuple[int, int]:
        return self._slot(self.tables[row], new[0] - 1)

    def _slot(self, table: list[int], position: int) -> tuple[int, int]:
        return table[position // self.block_size], position % self.block_size

    def _attend(self, row: int, context: int, rows: Rows) -> DoubleArray:
        names = self.pool[self.tables[row]].reshape(-1)[:context]
        return self.model.logits(names, int(rows.tokens[row, context - 1]))

    def _check(self, step: Step, rows: Rows) -> None:
        assert len(set(step.rows.tolist())) == len(step.rows) > 0, f"rows come twice or not at all: {step}"
        assert (step.num_new >= 1).all(), f"a row without a token: {step}"
        assert (step.computed == rows.computed[step.rows]).all(), f"computed differs: {step}"
        assert (step.computed + step.num_new <= rows.length[step.rows]).all(), f"tokens nobody knows: {step}"
        for table in self.tables.values():
            known = [block for block in table if block]
            assert len(set(known)) == len(known), f"a table names a block twice: {table}"
        writers: dict[int, int] = {}
        for row, count, first in zip(step.rows.tolist(), step.num_new.tolist(), step.computed.tolist(), strict=True):
            last = (first + count - 1) // self.block_size
            written = self.tables[row][first // self.block_size : last + 1]
            assert len(written) == last + 1 - first // self.block_size, f"row {row} has no room: {self.tables[row]}"
            for block in written:
                assert writers.setdefault(block, row) == row, f"rows {writers[block]} and {row} write block {block}"
        for row, table in self.tables.items():
            for at, block in enumerate(table):
                if writers.get(block, row) != row:
                    self._check_shared(step, rows, row, at, writers[block])

    def _check_shared(self, step: Step, rows: Rows, row: int, at: int, writer: int) -> None:
        """`row` names a block that `writer` writes: it is a full block of both, which the step completes."""
        end, place = (at + 1) * self.block_size, step.rows.tolist().index(writer)
        done = int(step.computed[place] + step.num_new[place])
        same = self.tables[writer][at : at + 1] == self.tables[row][at : at + 1]
        whole = same and end <= rows.computed[row] and end <= done
        assert whole, (
            f"row {writer} writes block {self.tables[row][at]} up to token {done}; row {row} reads it from token "
            f"{at * self.block_size} on and has {rows.computed[row]} computed"
        )
        assert (rows.tokens[row, :end] == rows.tokens[writer, :end]).all(), f"rows {row} and {writer} differ in a block"

    def sample(self, indices: IntArray, streams: IntArray, step: Step, rows: Rows) -> tuple[IntArray, BoolArray]:
        tokens, bad = np.zeros(len(indices), dtype=np.int64), np.zeros(len(indices), dtype=bool)
        for i, (which, stream) in enumerate(zip(indices.tolist(), streams.tolist(), strict=True)):
            row, logits = int(step.rows[step.sampled[which]]), self._logits[which]
            bad[i] = not np.isfinite(logits).all()
            if not bad[i]:
                temperature, seed = float(rows.temperature[row]), int(rows.seed[row])
                tokens[i] = self.model.draw(logits, temperature, seed, stream, int(rows.length[row]))
        return tokens, bad

    def logprobs(self, indices: IntArray, tokens: IntArray, k: int) -> tuple[FloatArray, IntArray, FloatArray]:
        all_logprobs = np.stack([log_softmax(self._logits[which]) for which in indices])
        ids = np.argsort(-all_logprobs, axis=1, kind="stable")[:, :k]
        chosen = np.take_along_axis(all_logprobs, np.asarray(tokens)[:, None], axis=1)[:, 0]
        return chosen.astype(np.float32), ids, np.take_along_axis(all_logprobs, ids, axis=1).astype(np.float32)


def log_softmax(logits: DoubleArray) -> DoubleArray:
    """Log-probabilities of (V,) logits."""
    shifted = logits - logits.max()
    values: DoubleArray = shifted - np.log(np.exp(shifted).sum())
    return values


def _mix(value: int) -> int:
    """SplitMix64's finaliser."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: UintArray) -> UintArray:
    """`_mix` of each element."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: UintArray = values ^ (values >> np.uint64(31))
    return mixed


ALLOCATORS: list[Component] = [
    *(name for name in registry.names("allocator") if name != "contiguous"),
    *({"name": "contiguous", "reserve": reserve} for reserve in ("max", "pow2", "oracle")),
]


def named(component: Any) -> str:
    """A test id."""
    return component if isinstance(component, str) else "-".join(str(value) for value in component.values())


class Heard(Observer):
    """An observer that keeps what it is given: calls with their events, notes and moves, in order."""

    def __init__(self) -> None:
        self.caches: list[Observed] = []
        self.calls: list[tuple[Call, list[CacheEvent]]] = []
        self.notes: list[Note] = []
        self.moves: list[Move] = []

    def begin(self, cache: Observed) -> None:
        self.caches.append(cache)

    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        self.calls.append((call, [*events]))

    def noted(self, note: Note) -> None:
        self.notes.append(note)

    def moved(self, move: Move) -> None:
        self.moves.append(move)

    def count(self, kind: str) -> int:
        """Blocks in events of this kind."""
        return sum(len(event.blocks) for _, events in self.calls for event in events if event.kind == kind)


def by_section(given: Mapping[str, Any], **sections: type[Options]) -> dict[str, Any]:
    """`given`, in which settings of `sections` and of a Trial are no keywords of their own but fields of theirs."""
    rest = dict(given)
    for name, section in {"faults": FaultOptions, "trial": Trial, **sections}.items():
        own = {name: rest.pop(name) for name in section.model_fields if name in rest}
        if own:
            rest[name] = rest[name].changed(**own) if name in rest else section(**own)
    return rest


def make_engine(allocator: Allocator, executor: Executor, **given: Any) -> Engine:
    """An engine whose settings are each in the section that has one of its name."""
    return Engine(allocator, executor, **by_section(given, limits=ModelLimits, options=EngineOptions))


def make_llm(model: Any = "tiny", **given: Any) -> LLM:
    """An LLM whose settings are each in the section that has one of its name; its model of `dtype`."""
    from framework.llm import LLM
    from framework.model.loading import load_model

    if "dtype" in given:
        model = load_model(model, dtype=given.pop("dtype"), device=given["device"])
    return LLM(model, **by_section({"num_blocks": None, **given}, cache=CacheOptions, engine=EngineOptions))


def warm(llm: LLM) -> None:
    """What an LLM on a GPU does before its first request."""
    from framework.engine.warm_up import warm_up

    warm_up(llm.executor, llm.engine.state.rows, llm.sizes, llm.engine._options)


def fake_engine(
    allocator: Component = "prefix_cow",
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    eviction: Component = "lru",
    hash: Component = "xxh64",
    model: FakeModel | None = None,
    max_model_len: int = 64,
    **options: Any,
) -> Engine:
    """An engine whose tokens follow from the prefix alone."""
    model = model or FakeModel()
    built = build_allocator(
        allocator, eviction, hash, num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len
    )
    options.setdefault("max_batch_requests", 8)
    options.setdefault("vocab_size", model.vocab_size)
    executor = FakeExecutor(num_blocks, block_size, model)
    return make_engine(built, executor, max_model_len=max_model_len, **options)


def prompts(count: int, *, shared: int = 9, unique: int = 6, vocab_size: int = 32, seed: int = 0) -> list[list[int]]:
    """Prompts of different lengths that begin alike."""
    random = np.random.default_rng(seed)
    head = random.integers(0, vocab_size, shared).tolist()
    return [head + random.integers(0, vocab_size, 1 + i % unique).tolist() for i in range(count)]


def tokens_of(request: Request) -> list[list[int]]:
    """The token ids of each completion."""
    return [completion.tokens for completion in request.completions]


def expected(model: FakeModel, request: Request, stop: Sequence[int] = ()) -> list[list[int]]:
    """What `request`, which is no beam search, must return, from nothing but the model."""
    sampling = request.sampling
    return [
        model.generate(
            request.prompt.tolist(),
            sampling.max_tokens,
            temperature=sampling.temperature,
            seed=request.seed,
            stream=stream,
            stop=(*stop, *sampling.stop_token_ids),
        )
        for stream in range(sampling.n)
    ]


def slow_beams(
    model: FakeModel, prompt: Sequence[int], sampling: Sampling, stop: Sequence[int] = ()
) -> list[list[int]]:
    """Beam search as transformers does it with `early_stopping=False`, on lists, without sharing anything."""
    width, penalty = sampling.beam_width, sampling.length_penalty
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for step in range(1, sampling.max_tokens + 1):
        ways = []
        for parent, (score, tokens) in enumerate(live):
            values = log_softmax(model.logits_of([*prompt, *tokens])).astype(np.float32)
            ways += [(-(score + float(value)), parent, token) for token, value in enumerate(values)]
        ways = sorted(ways)[: 2 * width]
        grown = [(-negative, [*live[parent][1], token]) for negative, parent, token in ways]
        ended += [(score / step**penalty, tokens) for score, tokens in grown[:width] if tokens[-1] in stop]
        ended = sorted(ended, key=lambda entry: -entry[0])[:width]
        live = [(score, tokens) for score, tokens in grown if tokens[-1] not in stop][:width]
        if step == sampling.max_tokens:
            ended += [(score / step**penalty, tokens) for score, tokens in live]
        if not live or (len(ended) >= width and ended[width - 1][0] >= live[0][0] / step**penalty):
            break
    return [tokens for _, tokens in sorted(ended, key=lambda entry: -entry[0])[:width]]


def assert_right(requests: Sequence[Request], model: FakeModel | None = None, stop: Sequence[int] = ()) -> None:
    """Each has finished with what the model gives for it, or a beam search over the model."""
    model = model or FakeModel()
    for request in requests:
        assert request.status is Status.FINISHED, f"request {request.number}: {request.status} {request.reason}"
        beams = request.group is not None
        prompt, sampling = request.prompt.tolist(), request.sampling
        wanted = slow_beams(model, prompt, sampling, stop) if beams else expected(model, request, stop)
        assert tokens_of(request) == wanted, f"request {request.number}"


def finished(requests: Sequence[Request]) -> list[list[list[int]]]:
    """The token ids of each completion of each request, all of which have finished."""
    failed = [request.reason for request in requests if request.status is not Status.FINISHED]
    assert not failed, failed
    return [tokens_of(request) for request in requests]


def drive(engine: Engine, each_step: Callable[[Engine], Any] | None = None, limit: int = 2000) -> int:
    """Step to the end, checking that every step gets on; returns the steps taken."""
    executor = engine.executor
    assert isinstance(executor, FakeExecutor)
    for step in range(limit):
        if not engine.num_unfinished:
            engine.check()
            return step
        engine.step()
        engine.allocator.check()
        if each_step is not None:
            each_step(engine)
    raise AssertionError(f"{engine.num_unfinished} requests unfinished after {limit} steps: {describe(engine)}")


def noted_steps(engine: Engine) -> list[dict[int, int]]:
    """The tokens of each step from now on, by the number of their request."""
    steps: list[dict[int, int]] = []
    forward = engine.executor.forward

    def noted(step: Step, rows: Rows) -> None:
        numbers = [rows.sequence(int(row)).request.number for row in step.rows]
        steps.append(dict(zip(numbers, step.num_new.tolist(), strict=True)))
        forward(step, rows)

    engine.executor.forward = noted  # type: ignore[method-assign]
    return steps


def describe(engine: Engine) -> str:
    """Where an engine stands, for messages."""
    rows, stats = engine.state.rows, engine.allocator.stats()
    running = [
        (seq.id, seq.request.number, int(rows.computed[r]), int(rows.length[r]))
        for r, seq in enumerate(rows.sequences)
        if seq
    ]
    return (
        f"running (sequence, request, computed, length) {running}, waiting {len(engine.state.waiting)}, "
        f"reserved rows {engine.state.reserved_rows}, {stats}"
    )
