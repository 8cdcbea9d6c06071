"""Our policies in SGLang's radix cache: a tree as its own, evicted as its own loop evicts; without SGLang.

plugins/framework_engines/tests/engines does it with SGLang's own files.
"""

import heapq

import pytest
from engine_stand_ins import Node

from framework import registry
from framework.errors import InvalidArgument, OutOfBlocks, UnknownPlugin, Unsupported
from framework_engines import as_sglang, one_page_nodes


class Tree:
    """A radix cache with one letter a node, evicted as RadixCache.evict does."""

    def __init__(self, strategy):
        self.strategy, self.now, self.root = strategy, 0.0, Node(None, "", 0.0)

    def use(self, text, priority=0):
        self.now += 1
        node, found = self.root, 0
        for letter in text:
            child = node.children.get(letter)
            if child is None:
                child = node.children[letter] = Node(node, letter, self.now, priority)
            else:
                found += 1
            child.hit_count += 1
            child.last_access_time = self.now
            node = child
        return found

    def nodes(self):
        stack = [self.root]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def lock(self, text, by=1):
        node = self.root
        for letter in text:
            if letter not in node.children:
                return
            node = node.children[letter]
            node.lock_ref += by

    def evict(self, count):
        leaves = [node for node in self.nodes() if not node.children and not node.lock_ref and node.parent]
        heap = [(self.strategy.get_priority(node), node) for node in leaves]
        heapq.heapify(heap)
        gone = []
        while heap and len(gone) < count:
            _, node = heapq.heappop(heap)
            gone.append(path(node))
            del node.parent.children[node.key]
            parent = node.parent
            if parent.parent is not None and not parent.children and not parent.lock_ref:
                heapq.heappush(heap, (self.strategy.get_priority(parent), parent))
        return gone


def path(node):
    return path(node.parent) + node.key if node.parent else ""


class OwnLru:
    """SGLang's LRUStrategy."""

    def get_priority(self, node):
        return node.last_access_time


def story(tree):
    """Two rounds of evictions among uses; all that was evicted, in order."""
    for text in ("abc", "abd", "xy", "pq", "abc"):
        tree.use(text)
    gone = tree.evict(3)
    tree.use("abe")
    tree.use("pqr")
    tree.lock("abc")
    gone += tree.evict(2)
    tree.lock("abc", -1)
    tree.use("xyz")
    return gone + tree.evict(100)


@pytest.mark.parametrize("policy", ["lru", "leaf_lru"])
def test_lru_evicts_as_sglangs_own(policy):
    expected = story(Tree(OwnLru()))
    found = story(Tree(as_sglang(policy, num_blocks=50)))
    assert found == expected, (found, expected)


@pytest.mark.parametrize(
    "policy", [name for name in registry.names("eviction") if not registry.load("eviction", name).needs_future]
)
def test_every_policy_evicts_the_whole_tree_once_and_children_first(policy):
    tree = Tree(as_sglang(policy, num_blocks=50))
    gone = story(tree)
    assert list(tree.root.children) == [], f"{policy} left {[path(n) for n in tree.nodes()]}"
    last_x = len(gone) - 1 - gone[::-1].index("x")
    assert gone.index("xyz") < last_x, gone


def test_a_policy_with_queues_learns_across_rounds():
    tree = Tree(as_sglang({"name": "slru", "num_segments": 2}, num_blocks=4))
    for text in "ab":
        tree.use(text)
    tree.evict(0)
    tree.use("a")
    tree.use("c")
    tree.use("d")
    assert tree.evict(2) == ["b", "c"], "a, used twice, is protected although older than c"


def test_a_node_that_is_locked_has_no_priority_and_a_tree_beyond_the_announced_size_is_refused():
    tree = Tree(as_sglang("lru", num_blocks=2))
    tree.use("ab")
    tree.lock("ab")
    assert tree.evict(2) == []
    with pytest.raises(InvalidArgument, match="1 requests hold it"):
        tree.strategy.get_priority(tree.root.children["a"].children["b"])
    tree.use("c")
    with pytest.raises(OutOfBlocks, match="one more than the 2 blocks"):
        tree.evict(1)


def test_what_cannot_be_exported_is_refused_with_a_reason():
    with pytest.raises(UnknownPlugin):
        as_sglang("lruu", num_blocks=4)
    with pytest.raises(Unsupported, match="reads the future"):
        as_sglang("belady", num_blocks=4)
    with pytest.raises(InvalidArgument, match="found 0 and 1"):
        as_sglang("lru", num_blocks=0)


@pytest.mark.parametrize("policy", ["lfu", "gdsf", "s3fifo", "leaf_lru"])
def test_a_node_that_was_split_above_a_candidate_moves_it_down(policy):
    root = Node(None, [], 0.0)
    upper = Node(root, [1, 2, 3], 1.0)
    root.children[1] = upper
    leaf, other = Node(upper, [4], 2.0), Node(root, [9], 3.0)
    upper.children[4], root.children[9] = leaf, other
    strategy = as_sglang(policy, num_blocks=10)
    assert {strategy.get_priority(leaf), strategy.get_priority(other)} <= {0, 1, 2}
    head = Node(root, [1], 1.0)  # what a prompt that ends inside `upper` leaves
    head.children[2], upper.parent, upper.key, root.children[1] = upper, head, [2, 3], head
    assert sorted([strategy.get_priority(leaf), strategy.get_priority(other)]) >= [0, 1]


def test_a_tree_without_the_methods_of_sglangs_is_refused():
    with pytest.raises(Unsupported, match="object has no _insert_helper, _split_node"):
        one_page_nodes(object())
