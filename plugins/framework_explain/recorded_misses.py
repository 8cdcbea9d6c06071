"""The misses of an engine that ran elsewhere, from its recorded KV events and the log of its requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from framework.errors import WorkloadError
from framework.interfaces.workload import WorkloadRequest
from framework.replay.items import trace_items
from framework.types import Namespace, TokenArray
from framework_explain.account import OUTCOMES, Account
from framework_explain.ledger import Ledger, chain
from framework_kv_events.file import header_of, read_batches
from framework_kv_events.index import BlockIndex
from framework_kv_events.schema import GPU, AllBlocksCleared, BlockRemoved, BlockStored, Event, Hash
from framework_workloads.trace.format import FieldError

_MOST_PASSED = 8
"""How many requests may be admitted after one that the log has later."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A request of the log, and how far the stream shows it.

    Attributes:
        names: of the full blocks of its prompt, and of its answer where the log has it.
        prompt_blocks: those of the prompt. rest: its tokens after them. total: blocks it fills, its answer's included;
            None: unknown.
        done: leading blocks that it found or stored; -1: not seen yet.
    """

    number: int
    request: WorkloadRequest
    names: list[bytes]
    prompt_blocks: int
    rest: bytes
    total: int | None
    done: int = -1


def explain_stream(
    path: Path, requests: Sequence[WorkloadRequest], *, most_contents: int
) -> tuple[Account, Ledger, int, int]:
    """One cause for each prompt token of these requests, their ledger, how many of them the stream does not show, and
    of how many, that ran beside others, it allows another reading.

    The stream begins with the engine, and says tokens; requests come in order of arrival. A request is admitted at its
    first store, and hit what lies above; what is removed in the same step before it made room for it. A request that
    stores nothing of its prompt found all of its full blocks, before the next of the log was admitted.

    NOTE. Not seen are: what was declined (counted as evicted), why a block was not loaded from below the pool, and what
    is computed once more after a preemption (`preempted_tokens` is 0). Where several requests run at once, a block
    that a running one's answer had evicted may be said to have been evicted for the next that was admitted.

    Raises:
        WorkloadError: batches are missing, or a store has no tokens, or others than its blocks hold.
    """
    reader = _Reader(path, requests, most_contents)
    reader.read()
    ledger, rows, prompts = reader.ledger, [], []
    for one in reader.admitted:
        rows.append([0, *ledger.row(one.number).values()])
        prompts.append(one.request.input_tokens)
    tokens = np.array(rows, dtype=np.int64).reshape(-1, len(OUTCOMES))
    tokens[:, 0] = prompts - tokens.sum(axis=1)
    account = ledger.account()
    blocks = np.zeros_like(tokens)
    blocks[:1] = account.blocks
    account = replace(account, tokens=tokens, blocks=blocks, requests=[one.number for one in reader.admitted])
    return account, ledger, len(requests) - len(reader.admitted), len(reader.unsure)


class _Reader:
    """Reads a stream in names that it has in common with the log, finds whose blocks are stored, and tells a ledger."""

    def __init__(self, path: Path, requests: Sequence[WorkloadRequest], most_contents: int) -> None:
        self._path, header = path, header_of(path)
        self._index = BlockIndex(report_hits=header.report_hits)
        stored = (event for _, batch in read_batches(path) for event in batch.events if isinstance(event, BlockStored))
        self._size = header.block_size or next((event.block_size for event in stored), 0)
        if not self._size:
            raise WorkloadError(f"{path}: no block was stored")
        self.ledger = Ledger(self._size, policy="the engine", most_contents=most_contents)
        self.admitted: list[_Asked] = []
        self._asked = deque(self._named(number, request) for number, request in enumerate(trace_items(requests)))
        self._late: list[_Asked] = []
        self._gone: list[list[bytes]] = []  # in this step, and the ledger does not know yet
        self._shared = False  # requests run at once
        self._unsure: set[int] = set()  # where that decides
        self._lately: deque[set[bytes]] = deque([set()], maxlen=3)  # what each of the last steps removed
        self._names: dict[Hash, bytes] = {}
        self._waiting: dict[bytes, deque[_Asked]] = {}
        self._latest: dict[bytes, _Asked] = {}
        self._tails: dict[bytes | None, list[_Asked]] = {}
        for one in self._asked:
            for name in one.names:
                self._waiting.setdefault(name, deque()).append(one)

    def _named(self, number: int, request: WorkloadRequest) -> _Asked:
        size, tokens, answer, output = self._size, _tokens(request), request.output_tokens, request.output
        computed = tokens if output is None else np.append(tokens, output[:-1]).astype(np.int32)
        space = replace(request.namespace, model="")  # which events do not say
        names = self.ledger.names(computed, space)
        total = None if answer is None else (len(tokens) + max(1, answer) - 1) // size
        full, request = len(tokens) // size, replace(request, input_tokens=len(tokens), namespace=space)
        return _Asked(number, request, names, full, tokens[full * size :].tobytes(), total)

    @property
    def unsure(self) -> set[int]:
        """Admitted requests of which the stream allows another reading; none where it shows one request at a time."""
        return self._unsure if self._shared else set()

    def read(self) -> None:
        """All of it."""
        expected = 0
        for number, batch in read_batches(self._path):
            if number > expected:
                raise WorkloadError(
                    f"{self._path}: batches {expected} to {number - 1} are missing; what they removed or stored would "
                    "have other causes. Record from the engine's start, with --replay, which asks for lost ones again"
                )
            if number == expected:
                expected += 1
                try:
                    for event in batch.events:
                        self._event(event)
                except FieldError as error:
                    raise WorkloadError(f"{self._path}: batch {number}: {error}") from error
                self.ledger.serve(-1)
                self._remove()
                self._lately.append(set())
        self._admit_silent(None)

    def _event(self, event: Event) -> None:
        """What happened on the GPU."""
        if isinstance(event, AllBlocksCleared):
            self._remove()
            self.ledger.reset()
        elif event.medium in (None, GPU) and event.group_idx in (None, 0) and event.block_hashes:
            if isinstance(event, BlockRemoved):
                self._gone.append([self._name(key) for key in event.block_hashes])
                self._lately[-1].update(self._gone[-1])
            elif not self._index.is_report(event):
                self._store(event)
        self._index.apply((event,))

    def _name(self, key: Hash) -> bytes:
        return self._names.setdefault(key, repr(key).encode())

    def _remove(self, count: int | None = None) -> None:
        for names in self._gone[:count]:
            self.ledger.given_up(names)
        del self._gone[:count]

    def _store(self, event: BlockStored) -> None:
        size = self._size
        if event.block_size != size or len(event.token_ids) != size * len(event.block_hashes):
            raise FieldError(
                "token_ids", f"expected {size} for each of {len(event.block_hashes)} blocks, found "
                f"{len(event.token_ids)}; blocks are matched by tokens, which "
                "`python -m framework record_events --tokens` keeps"
            )  # fmt: skip
        try:
            data = np.array(event.token_ids, dtype=np.int32).tobytes()
        except (TypeError, ValueError, OverflowError) as error:
            raise FieldError("token_ids", str(error)) from error
        parent = None if event.parent_block_hash is None else self._name(event.parent_block_hash)
        names = chain(_root(event) if parent is None else parent, data, 4 * size, _contents(event))
        self._names.update(zip(event.block_hashes, names, strict=True))
        ending = self._tails.get(parent, [])
        one = self._whose(ending, names, data)
        if one is not None:
            goes_on = one in ending
            above = one.done if goes_on else one.names.index(names[0])
            if goes_on:
                ending.remove(one)
            self._shared |= one.done >= 0 and one is not self.admitted[-1]
            if one.done < 0:
                self._admit_silent(one)
                self._admit(one, min(above, one.prompt_blocks))
            else:
                self.ledger.serve(one.number)
        self._remove()
        self.ledger.published(names)
        if one is not None:
            self._reached(one, above + len(names), names[-1])

    def _whose(self, ending: list[_Asked], names: list[bytes], data: bytes) -> _Asked | None:
        """A running one of those `ending` above that goes on; one that has yet to end and computes again what it lost
        when it was preempted; one that is seen for the first time, in the log's order. An answer that the log has not
        comes a block at a time.
        """
        able = [one for one in ending if one.names[one.done : one.done + len(names)] == names]
        going = able[0] if able else None
        answers = (one for one in ending if one.done >= len(one.names))
        answer = next((one for one in answers if one.done > one.prompt_blocks or data.startswith(one.rest)), None)
        if going is None and len(names) == 1:
            going = answer
        again = self._latest.get(names[-1])
        runs_still = again is not None and again.total is not None and again.done < again.total
        waiting = self._waiting.get(names[-1], deque())
        while waiting and waiting[0].done >= 0:
            waiting.popleft()
        fresh = waiting[0] if waiting and self._may_be_next(waiting[0]) else None
        if going is not None or runs_still:
            readings = able if going is not None else [one for one in (again, fresh) if one is not None]
            if len(readings) > 1:
                self._unsure.update(one.number for one in readings)
            return going or again
        return fresh or again or answer

    def _may_be_next(self, one: _Asked) -> bool:
        """Whether few requests before this one would have been passed over: had they been admitted, they had stored."""
        passed = 0
        for other in self._asked:
            if other is one or passed > _MOST_PASSED:
                break
            names = other.names[: other.prompt_blocks]
            passed += other.done < 0 and self.ledger.num_leading(names) < len(names)
        return passed <= _MOST_PASSED

    def _reached(self, one: _Asked, done: int, last: bytes | None) -> None:
        """`one` found or stored its `done` leading blocks, of which this is the last. What it computes behind a hole,
        and the pool has still, is stored no second time.
        """
        held = self.ledger.num_leading(one.names[done:])
        if held:
            done, last = done + held, one.names[done + held - 1]
        one.done = done
        if one.total is None or done < one.total:
            self._tails.setdefault(last, []).append(one)
        if done >= one.prompt_blocks:
            self.ledger.leave(one.number)  # all that its prompt computes can be found

    def _admit_silent(self, until: _Asked | None) -> None:
        """Admit the requests before this one, of which nothing was stored, that can find all of their full blocks."""
        while self._asked and (until is None or self._asked[0].number < until.number):
            self._late.append(self._asked.popleft())
        self._late = [one for one in self._late if one.done < 0 and one is not until]
        for one in self._late:
            names = one.names[: one.prompt_blocks]
            if self.ledger.num_leading(names) == len(names):
                storers = (self._latest.get(name) for name in names)
                if any(other is not None and (other.total is None or other.done < other.total) for other in storers):
                    self._unsure.add(one.number)  # it may have computed them beside one that runs still
                self._admit(one, len(names))
                self._reached(one, len(names), names[-1] if names else None)

    def _admit(self, one: _Asked, num_found: int) -> None:
        """`one` is admitted, and stores nothing of the `num_found` leading blocks of its prompt."""
        ledger, size, request, tokens = self.ledger, self._size, one.request, _tokens(one.request)
        names = one.names[: one.prompt_blocks]
        missed = names[num_found : num_found + 1]
        before = [count for count, keys in enumerate(self._gone, 1) if missed and missed[0] in keys]
        self._remove(before[-1] if before else 0)  # had it been there, it would have been found
        if not all(removed.isdisjoint(names) for removed in self._lately):
            self._unsure.add(one.number)  # nothing says whether before it was admitted, or for whom of those that run
        hit = size * min(num_found, ledger.num_leading(names), (len(tokens) - 1) // size)
        others = ledger.others(tokens, request.namespace) if len(tokens) >= size else ()

        def elsewhere() -> int:
            return max((size * ledger.num_leading(ledger.names(tokens, other)) for other in others), default=0)

        ledger.ask(one.number, one.number, names, len(tokens), hit, elsewhere)
        if missed:
            self._remove()
        facts: dict[str, Any] = {"turn": request.turn, "tenant": request.tenant, "category": request.category}
        ledger.admit(one.number, one.number, hit, **facts)
        self.admitted.append(one)
        self._latest.update(dict.fromkeys(one.names, one))


def _tokens(request: WorkloadRequest) -> TokenArray:
    assert request.tokens is not None
    return request.tokens


def _root(event: BlockStored) -> bytes:
    """The namespace of a store at the root, as far as an event says it."""
    adapter, keys = event.lora_name or "", [*((event.extra_keys or [None])[0] or ())]
    salts = [key for key in keys if isinstance(key, str) and key != adapter]
    return Namespace(adapter=adapter, salt=event.cache_salt or (salts[-1] if salts else "")).encode()


def _contents(event: BlockStored) -> list[tuple[Any, ...]]:
    """Of each block the contents that touch it, see `chain`."""
    blocks = event.extra_keys if isinstance(event.extra_keys, (list, tuple)) else ()
    if blocks and len(blocks) != len(event.block_hashes):
        raise FieldError("extra_keys", f"expected {len(event.block_hashes)}, one for each block, found {len(blocks)}")
    return [tuple(tuple(key) for key in keys or () if isinstance(key, (list, tuple))) for keys in blocks]
