"""Copies by a thread over stores: order, fairness, failures, ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from stepped_worker import Bytes, Stepped, load, stepped, store

from framework.errors import PluginError, StoreFailed
from framework.types import BlockHash
from framework_tiers.stores.host import Host
from framework_tiers.worker import WorkerTransfers


def test_loads_go_ahead_of_stores_but_not_of_their_own() -> None:
    moves, pool = stepped()
    moves.submit([store("a", 1)])
    assert moves.step() == ["a to 1"]
    moves.submit([store("b", 2), store("c", 3)])
    moves.submit([load("a", 10), load("c", 11)])
    assert [moves.step() for _ in range(4)] == [["a to 0"], ["b to 1"], ["c to 1"], ["c to 0"]]
    assert pool.blocks[10].tolist() == pool.blocks[1].tolist()
    assert pool.blocks[11].tolist() == pool.blocks[3].tolist()


def test_an_evicted_block_is_read_when_it_is_released_and_once() -> None:
    moves, pool = stepped()
    copy, content = store("a", 1), Bytes().blocks[1].tolist()
    moves.submit([copy])
    moves.release(copy)
    pool.blocks[1] = 0
    moves.release(copy)
    moves.step()
    moves.submit([load("a", 5)])
    moves.step()
    assert pool.blocks[5].tolist() == content


def test_a_key_that_is_removed_and_stored_again_is_there() -> None:
    moves, pool = stepped()
    moves.submit([store("a", 1)])
    moves.remove(BlockHash(b"a"), 1)
    moves.submit([store("a", 2)])
    moves.submit([load("a", 9)])
    for _ in range(4):
        moves.step()
    assert pool.blocks[9].tolist() == pool.blocks[2].tolist()


class Broken(Host):
    def write(self, key: Any, data: memoryview) -> None:
        raise StoreFailed("the disk is full")

    def read(self, key: Any, into: memoryview) -> Any:
        return 1


class OwnPlaces(Broken):
    """Overrides the places as well, so that they count again."""

    def reserve(self, key: Any) -> memoryview:
        return super().reserve(key)


def test_a_class_that_overrides_write_has_its_write_called_and_not_the_inherited_place() -> None:
    for kind, failed in ((Broken, "tier 1: Broken: the disk is full"), (OwnPlaces, "")):
        moves, _ = stepped(Stepped, [kind(), Host()])
        copy = store("a", 1)
        moves.submit([copy])
        moves.step()
        assert copy.failed.endswith(failed)
        assert bool(copy.failed) == bool(failed)


def test_failures_are_named_by_tier_and_end_the_copy_alone() -> None:
    moves, _ = stepped(Stepped, [Broken(), Host()])
    copies = [store("a", 1), load("b", 3, tier=2)]
    for copy in copies:
        moves.submit([copy])
        moves.step()
    assert copies[0].failed == "tier 1: Broken: the disk is full"
    assert copies[1].failed == "tier 2: a block was not there, or damaged"
    assert moves.failure == copies[0].failed, "a block that is not there is no failure of its store"
    moves.submit([load("a", 2)])
    with pytest.raises(PluginError, match=r"store Broken\.read: must return a bool"):
        moves.step()


def test_the_thread_carries_everything_out_before_it_ends_and_drops_it_where_that_is_asked() -> None:
    for drain in (True, False):
        gate = threading.Event()

        class Gated(Host):
            def write(self, key: Any, data: memoryview, gate: threading.Event = gate) -> None:
                gate.wait(10)
                super().write(key, data)

        moves, _ = stepped(WorkerTransfers, [Gated()])
        copies = [store(str(number), number) for number in range(20)]
        moves.submit(copies)
        closing = threading.Thread(target=moves.close, kwargs={"drain": drain})
        closing.start()
        gate.set()
        closing.join(10)
        assert not closing.is_alive()
        assert (len(moves.finished()) == 20) is drain
        moves.close(drain=drain)


def test_predictions_are_unknown_until_a_block_was_read() -> None:
    moves, _ = stepped()
    assert moves.load_times([1]) is None
    assert moves.load_times([0]) == (0.0,)
    moves.submit([store("a", 1)])
    moves.step()
    moves.submit([load("a", 2)])
    moves.step()
    found = moves.load_times([1, 1])
    assert found is not None
    assert 0 < found[0] < found[1]
    moves.submit([load("a", 3), load("a", 4)])
    behind = moves.load_times([1])
    assert behind is not None
    assert behind[0] == pytest.approx(3 * found[0]), "two loads wait ahead of it"


def test_what_was_staged_is_counted_until_it_is_stored() -> None:
    moves, _ = stepped()
    copies = [store("a", 1), store("b", 2), store("c", 3)]
    moves.submit(copies)
    moves.release(copies[0])
    moves.release(copies[1])
    counts = [moves._num_staged]
    for _ in copies:
        moves.step()
        counts.append(moves._num_staged)
    assert counts == [2, 1, 0, 0], "the third is read as it is stored"
    moves.submit([load("a", 9)])
    moves.step()
    assert not moves._num_staged, "a load stages nothing"


class Recorded(Host):
    """Notes what it is asked for; raises in one method, once that is done. Host has places, used ahead of `write`."""

    method, error = "", StoreFailed("broken")
    calls: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.calls = []

    def __getattribute__(self, name: str) -> Any:
        if name not in ("reserve", "view", "remove", "close", "write", "read"):
            return super().__getattribute__(name)
        found = super().__getattribute__(name)

        def called(*given: Any) -> Any:
            self.calls.append(name)
            answer = found(*given)  # what it does is done when it raises
            if name == type(self).method:
                raise type(self).error
            return answer

        return called


def test_copies_go_straight_to_and_from_a_store_s_memory_unless_the_pool_gave_the_block_up() -> None:
    memory = Recorded()
    moves, pool = stepped(Stepped, [memory])
    moves.submit([store("a", 1)])
    moves.step()
    moves.submit([load("a", 7)])
    moves.step()
    assert pool.blocks[7].tolist() == pool.blocks[1].tolist()
    assert {*memory.calls} == {"reserve", "view"}, "no buffer between"
    evicted = store("b", 2)
    moves.submit([evicted])
    moves.release(evicted)
    moves.step()
    assert "write" in memory.calls, "read before its place was known"


def test_a_place_whose_copy_failed_is_removed() -> None:
    moves, pool = stepped()

    def lost() -> Any:
        raise StoreFailed("the device was lost")

    pool.read = lambda block, into=None: lost  # type: ignore[method-assign]
    copies = [store("a", 1), load("a", 7)]
    for copy in copies:
        moves.submit([copy])
        moves.step()
    assert copies[0].failed == "tier 1: Host: the device was lost"
    assert copies[1].failed == "tier 1: a block was not there, or damaged"


@pytest.mark.parametrize("method", ["reserve", "view", "remove", "close"])
def test_a_store_that_fails_is_said_and_ends_no_thread(method: str) -> None:
    broken = type("Broken", (Recorded,), {"method": method})()
    moves, _ = stepped(WorkerTransfers, [broken])
    try:
        moves.submit([store("a", 1)])
        moves.wait(None)
        moves.submit([load("a", 2)])
        moves.remove(BlockHash(b"a"), 1)
        moves.submit([store("b", 3)])
        while moves.num_pending:
            moves.wait(None)
            moves.finished()
    finally:
        moves.close(drain=True)
    assert moves.failure == "tier 1: Broken: broken"
    assert broken.calls[-1] == "close"
    if method == "reserve":
        assert broken.calls[:2] == ["reserve", "remove"], "what it took stays taken"


@pytest.mark.parametrize("error", [ArithmeticError("broken"), SystemExit(0)])
@pytest.mark.parametrize("method", ["reserve", "view", "remove", "close"])
def test_what_else_a_store_raises_is_raised_again_in_the_thread_that_steps(method: str, error: BaseException) -> None:
    broken = type("Broken", (Recorded,), {"method": method, "error": error})()
    moves, _ = stepped(WorkerTransfers, [broken])
    with pytest.raises(type(error)):  # noqa: PT012
        moves.submit([store("a", 1)])
        while moves.num_pending:
            moves.wait(None)
            moves.finished()
        moves.submit([load("a", 2)])
        moves.remove(BlockHash(b"a"), 1)
        moves.close(drain=True)
    if method != "close":
        moves.close(drain=False)
    assert broken.calls[-1] == "close"
