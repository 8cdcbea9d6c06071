"""What an engine without tiers pays for their hooks, against the same engine with the hooks taken out of its source.

pytest tests/bench/test_bench_no_tiers.py -s                     # counts
pytest tests/bench/test_bench_no_tiers.py --benchmark-only -s    # time

Counts are exact: calls of Python and C functions, and instructions of the interpreter. Rounds of the times are
interleaved and in CPU seconds, so that what else runs on the machine disturbs both alike.
"""

import ast
import gc
import importlib
import inspect
import sys
import time
import types
from collections import Counter
from contextlib import contextmanager
from statistics import median

import numpy as np
import pytest

from framework.engine.engine import Engine
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.registry.components import build_allocator
from framework.sampling import Sampling

MODULES = ("engine", "scheduler", "lifecycle", "promises", "state", "metrics")
ROUNDS, ROWS, SIZE = 9, 8, 16


class WithoutHooks(ast.NodeTransformer):
    """Every "tiers is None" is true, and what it excludes is gone."""

    def visit_Compare(self, node):
        at = node.left
        name = at.id if isinstance(at, ast.Name) else at.attr if isinstance(at, ast.Attribute) else ""
        asks = isinstance(node.ops[0], (ast.Is, ast.IsNot)) and ast.unparse(node.comparators[0]) == "None"
        if name == "tiers" and asks:
            return ast.Constant(isinstance(node.ops[0], ast.Is))
        return self.generic_visit(node)

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        decides = isinstance(node.op, ast.Or)
        known = [value.value for value in node.values if is_known(value)]
        if decides in known:
            return ast.Constant(decides)
        node.values = [value for value in node.values if not is_known(value)]
        return node if len(node.values) > 1 else node.values[0] if node.values else ast.Constant(not decides)

    def visit_If(self, node):
        self.generic_visit(node)
        if is_known(node.test):
            return (node.body if node.test.value else node.orelse) or ast.Pass()
        return node

    def visit_IfExp(self, node):
        self.generic_visit(node)
        if isinstance(node.test, ast.Attribute) and node.test.attr == "tiers":
            return node.orelse
        return (node.body if node.test.value else node.orelse) if is_known(node.test) else node

    def visit_Assign(self, node):
        self.generic_visit(node)
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = zip(node.targets[0].elts, node.value.elts, strict=True)
            kept = [pair for pair in pairs if ast.unparse(pair[0]) != "tiers"]
            node.targets[0].elts, node.value.elts = [list(part) for part in zip(*kept, strict=True)]
        return node


def is_known(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def codes(code):
    """Every function's code in a module's, by qualified name."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return {one.co_qualname: one for one in inner} | {k: v for one in inner for k, v in codes(one).items()}


def functions(module):
    """Every function that a module defines, methods and properties included."""
    owners = [module, *(value for value in vars(module).values() if inspect.isclass(value))]
    for owner in owners:
        for value in vars(owner).values():
            found = value.fget if isinstance(value, property) else value
            if inspect.isfunction(found) and found.__module__ == module.__name__:
                yield found


@contextmanager
def hooks_absent():
    """The engine's functions without their hooks for tiers; gives the names of those that had some."""
    changed = []
    for name in MODULES:
        module = importlib.import_module(f"framework.engine.{name}")
        source = inspect.getsource(module)
        tree = ast.fix_missing_locations(WithoutHooks().visit(ast.parse(source)))
        before, after = (codes(compile(part, module.__file__, "exec")) for part in (source, tree))
        for function in functions(module):
            key = function.__code__.co_qualname
            if key in before and before[key].co_code != after[key].co_code:
                changed.append((function, function.__code__))
                function.__code__ = after[key]
    try:
        yield [function.__qualname__ for function, _ in changed]
    finally:
        for function, code in changed:
            function.__code__ = code


def conversations(num_requests, new_tokens):
    """An engine that has been asked for requests with shared prefixes, under pressure."""
    built = build_allocator("prefix_cow", "lru", "sha256", num_blocks=400, block_size=SIZE, max_model_len=2048)
    engine = Engine(built, ReplayExecutor(constant_step(1.0)), max_model_len=2048, max_batch_tokens=4096,
                    max_batch_requests=ROWS)  # fmt: skip
    draw = np.random.default_rng(0)
    stems = [draw.integers(0, 1000, 512) for _ in range(8)]
    for _ in range(num_requests):
        prompt = np.append(stems[draw.integers(8)], draw.integers(0, 1000, 200)).astype(np.int32)
        engine.submit(prompt, Sampling(max_tokens=new_tokens, ignore_eos=True))
    return engine


def counted(engine):
    """Calls by name and instructions by function, of all steps of an engine, and how many steps these were."""
    calls, instructions = Counter(), Counter()

    def profile(frame, event, argument):
        if event == "call":
            calls[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            calls[getattr(argument, "__qualname__", str(argument))] += 1

    def trace(frame, event, argument):
        if "/framework/engine/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            instructions[frame.f_code.co_qualname] += 1
        return trace

    gc.collect()  # what others left to be finalised is not counted
    gc.disable()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        engine.run()
    finally:
        sys.settrace(None)
        sys.setprofile(None)
        gc.enable()
    return calls, instructions, engine.state.step_number


def test_no_call_is_made_for_tiers_that_are_not_there_and_few_instructions():
    """0 calls more, and so many instructions a step: each hook is a load and a comparison with None."""
    conversations(60, 20).run()  # what is done once a process is done now
    calls, instructions, steps = counted(conversations(60, 20))
    with hooks_absent() as changed:
        bare_calls, bare, bare_steps = counted(conversations(60, 20))
    assert {"Scheduler.admit", "Scheduler.schedule", "Engine._step", "Lifecycle.commit"} <= set(changed), changed
    assert steps == bare_steps > 100
    assert calls - bare_calls == bare_calls - calls == Counter(), "no hook calls anything"
    paid = sum(instructions.values()) - sum(bare.values())
    share = paid / sum(bare.values())
    print(f"\n{sum(calls.values())} calls in {steps} steps, with hooks and without; {paid / steps:.1f} instructions a "
          f"step more, {share:.2%} of the engine's own: {dict(instructions - bare)}")  # fmt: skip
    assert 0 < paid <= 60 * steps
    assert share < 0.02


def test_hooks_that_are_taken_out_are_back_afterwards_and_a_hook_that_calls_is_noticed(monkeypatch):
    from framework.engine.lifecycle import Lifecycle

    before = Lifecycle.commit.__code__
    with hooks_absent():
        assert Lifecycle.commit.__code__ is not before
    assert Lifecycle.commit.__code__ is before
    calls, _, _ = counted(conversations(4, 4))
    commit = Lifecycle.commit
    monkeypatch.setattr(Lifecycle, "commit", lambda self, *given: (len(given), commit(self, *given))[1])
    more, _, _ = counted(conversations(4, 4))
    assert more - calls


@pytest.mark.benchmark(group="tiers that are not there")
def test_the_hooks_cost_no_time_that_can_be_seen(benchmark):
    """CPU seconds of whole replays, with the hooks over without, round by round."""
    ratios = []

    def spent():
        engine = conversations(150, 48)
        began = time.process_time()
        engine.run()
        return time.process_time() - began

    def rounds():
        for turn in range(ROUNDS):
            if turn % 2:
                with hooks_absent():
                    bare = spent()
                with_hooks = spent()
            else:
                with_hooks = spent()
                with hooks_absent():
                    bare = spent()
            ratios.append(with_hooks / bare)

    benchmark.pedantic(rounds, rounds=1)
    low, high = np.quantile(ratios, (0.25, 0.75))
    benchmark.extra_info["with hooks / without"] = median(ratios)
    print(f"\nwith hooks / without: {median(ratios):.3f} (quartiles {low:.3f} to {high:.3f}, {ROUNDS} rounds)")
