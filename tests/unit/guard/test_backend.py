"""Every hook of a backend that raises ends the call with its name, and what it answers is checked."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from planted_faults import faulty, raising

from framework import registry
from framework.errors import BackendUnavailable, PluginError
from framework.guard.backend import GuardedBackend
from framework.interfaces.backend import AttentionBackend
from framework.llm import LLM, CacheOptions
from framework.model.loading import LoadedModel, load_model, random_model
from framework.sampling import Sampling

POOL = CacheOptions(num_blocks=32, block_size=4)
TORCH: Any = registry.load("backend", "torch")
OF_AN_INDEX = ("write_index", "select")
IN_A_STEP = ("plan", "attend", "write", "rotate_and_write", "copy_blocks", *OF_AN_INDEX)
BEFORE = ("check", "setup", "require")
ELSEWHERE = {"facts", "screen"}
PROMPTS = [[1, 2, 3, 4, 5, 6], [7, 8, 9]]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("tiny", device="cpu")


def test_the_grid_has_every_method_of_the_interface() -> None:
    methods = {name for name, _ in inspect.getmembers(AttentionBackend, callable) if not name.startswith("_")}
    assert methods == {*IN_A_STEP, *BEFORE, *ELSEWHERE}, methods


@pytest.mark.parametrize("hook", IN_A_STEP)
def test_a_fault_in_a_step_is_raised_by_name_and_the_next_call_begins_anew(hook: str, model: LoadedModel) -> None:
    if hook in OF_AN_INDEX:
        model = random_model(pytest.importorskip("framework_models.latent").LatentModel(
            family="deepseek_v32", vocab_size=263, hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1,
            head_dim=20, intermediate_size=48, rotary_dim=4, query_rank=16, latent_dim=16, nope_dim=8, value_dim=8,
            index_heads=2, index_dim=8, index_count=3,
        ))  # fmt: skip
    cls, calls = faulty(TORCH, hook, raising(lambda: RuntimeError("broken")), lambda call: call == 1)
    if hook == "rotate_and_write":
        cls.capabilities = _with_rope(cls.capabilities)
    llm = LLM(model, backend=cls(), cache=POOL)
    forks = Sampling(max_tokens=4, n=2)
    with pytest.raises(RuntimeError, match=rf"attention backend Faulty\.{hook}: raised RuntimeError\('broken'\)"):
        llm.generate(PROMPTS, forks)
    assert calls[0] == 1, f"{hook} was never called"
    assert llm.engine.interrupted
    later = llm.generate(PROMPTS, forks)
    assert [request.status.value for request in later] == ["finished"] * 2, later
    wanted = LLM(model, backend="torch", cache=POOL).generate(PROMPTS, forks)
    assert [c.tokens for r in later for c in r.completions] == [c.tokens for r in wanted for c in r.completions]
    llm.engine.check()


def _with_rope(capabilities: Any) -> Any:
    return replace(capabilities, features=capabilities.features | {"rope"})


@pytest.mark.parametrize("hook", ["check", "setup"])
def test_a_fault_before_a_run_is_named(hook: str, model: LoadedModel) -> None:
    cls, _ = faulty(TORCH, hook, raising(lambda: SystemExit(0)), lambda call: True)
    with pytest.raises(PluginError, match=rf"attention backend Faulty\.{hook}: raised SystemExit"):
        LLM(model, backend=cls(), cache=POOL)


@pytest.mark.parametrize("answer", [None, "no", [7], float("nan"), 3])
def test_reasons_that_are_none_are_refused(answer: Any, model: LoadedModel) -> None:
    cls, _ = faulty(TORCH, "check", lambda real, *args: answer, lambda call: True)
    with pytest.raises(PluginError, match=r"Faulty\.check: must return a list of reasons"):
        LLM(model, backend=cls(), cache=POOL)
    cls, _ = faulty(TORCH, "check", lambda real, *args: ["too old"], lambda call: True)
    with pytest.raises(BackendUnavailable, match="too old"):
        LLM(model, backend=cls(), cache=POOL)


@pytest.mark.parametrize("answer", [None, "text", {"a": None}, {1: 2}, {"a": float("nan")}])
def test_facts_that_are_none_are_refused(answer: Any) -> None:
    def fault(real: Any, *args: Any) -> Any:
        return answer

    cls, _ = faulty(TORCH, "facts", fault, lambda call: True)
    with pytest.raises(PluginError, match=r"attention backend Faulty\.facts: "):
        GuardedBackend(cls()).facts()
    cls, _ = faulty(TORCH, "screen", fault, lambda call: answer is not None)
    refused = (
        pytest.raises(PluginError, match=r"attention backend Faulty\.screen: ") if answer is not None else nullcontext()
    )
    with refused:
        GuardedBackend(cls()).screen(None, "sm_90")  # type: ignore[arg-type]
