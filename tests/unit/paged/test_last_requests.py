"""What a policy may read of the requests behind its blocks, in every mode that drives one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_engines import FakeExecutor, make_engine
from paged_helpers import Watching, serve, tokens

from framework import registry
from framework.errors import InvalidArgument
from framework.interfaces.eviction import Block, BlockView
from framework.paged.pool import PromptEnds
from framework.sampling import Sampling
from framework.types import UNKNOWN_REQUEST, Hint, RequestFacts
from framework_builtin.allocator.prefix_cow import PrefixCowAllocator
from framework_builtin.hash.sha256 import Sha256

PREFIXES = ("prefix", "prefix_cow", "radix", "native", "native_cow")
KINDS = [registry.load("allocator", name) for name in registry.names("allocator") if name in PREFIXES]


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_sees_the_request_that_last_used_a_block(kind):
    policy = Watching()
    allocator = kind(num_blocks=8, block_size=2, hash=Sha256(), eviction=policy)
    hint = Hint(continues=0.5, returns_s=9.0)
    serve(allocator, 1, tokens(1, 1, 2, 2, 3), session="a", category="chat", tenant="t", hint=hint, arrival=1.0)
    serve(allocator, 2, tokens(1, 1, 2, 2, 4, 4), session="a", arrival=2.0)
    first = RequestFacts(turn=0, prompt_tokens=5, new_blocks=3, arrival=1.0, session="a", category="chat", tenant="t",
                         hint=hint)  # fmt: skip
    second = RequestFacts(turn=1, prompt_tokens=6, new_blocks=1, arrival=2.0, session="a")
    ended = [replace(facts, output_tokens=0) for facts in (first, second)]
    assert [call for call, _ in policy.seen] == ["admit", "release", "hit", "admit", "release"]
    assert [facts for _, _, facts in policy.seen[1][1]] == [ended[0]] * 2
    assert [facts for _, _, facts in policy.seen[2][1]] == [ended[0]] * 2, "a hit still shows the request before"
    assert [facts for _, _, facts in policy.seen[3][1]] == [second]
    assert [facts for _, _, facts in policy.seen[4][1]] == [ended[1]] * 3
    blocks = [(depth, parent) for depth, parent, _ in policy.seen[4][1]]
    assert [depth for depth, _ in blocks] == [2, 1, 0]
    assert blocks[2][1] == 0
    assert policy.blocks.depth[blocks[0][1]] == 1, "the deepest block hangs below the next"
    assert policy.blocks.partial[1] is False


@pytest.mark.parametrize("kind", KINDS)
def test_a_given_turn_is_believed_and_a_preempted_request_keeps_its_prompt(kind):
    policy = Watching()
    allocator = kind(num_blocks=8, block_size=2, hash=Sha256(), eviction=policy)
    serve(allocator, 1, tokens(1, 1, 2, 2), turn=7)
    serve(allocator, 2, tokens(1, 1, 2, 2, 3, 3, 3, 3), prompt_tokens=5)
    (_, released) = policy.seen[-1]
    assert policy.turns("release") == [7, 0], "a prompt of equal full blocks is the same prompt, not one extended"
    assert released[0][2].prompt_tokens == 5
    assert released[0][2].new_blocks == 1
    assert released[0][2].output_tokens == 3


def test_a_view_of_the_first_contract_knows_nothing_of_requests():
    names = "depth num_tokens admitted last_access hits priority tenant children next_use key"
    old = {name: [0, 0, 0] for name in names.split()}
    block = Block(BlockView(**old))
    assert (block.parent, block.partial, block.last_request) == (None, None, UNKNOWN_REQUEST)


def test_the_engine_passes_on_what_the_client_says():
    policy = Watching()
    allocator = PrefixCowAllocator(num_blocks=32, block_size=2, hash=Sha256(), eviction=policy)
    engine = make_engine(allocator, FakeExecutor(allocator.num_blocks, 2), max_model_len=32)
    sampling = Sampling(max_tokens=3, ignore_eos=True)
    hint = Hint(continues=1.0)
    engine.submit([1, 1, 2, 2, 3], sampling, session="s", category="tool", hint=hint, tenant="t", arrival_s=0.0)
    engine.run()
    facts = policy.seen[-1][1][0][2]
    assert facts == RequestFacts(turn=0, prompt_tokens=5, new_blocks=3, output_tokens=2, arrival=0.0, session="s",
                                 category="tool", tenant="t", hint=hint)  # fmt: skip


def test_prompts_beyond_the_memory_are_forgotten_oldest_first():
    ends = PromptEnds(most=2)
    for name in ("a", "b", "c"):
        ends.turn_of([name])
    assert ends.turn_of(["c", "x"]) == 1
    assert ends.turn_of(["a", "x"]) == 0


@pytest.mark.parametrize(
    "value",
    [-0.1, 1.1, float("nan"), True, "yes", {"continues": 2}, {"maybe": 0.5}, {"returns_s": -1}, {"returns_s": 1e999}],
)
def test_a_hint_out_of_bounds_is_refused(value):
    with pytest.raises(InvalidArgument, match=r"hint"):
        Hint.of(value)
