"""The calls into FlashInfer judged by the backend kit, on a stand-in; and the reasons, with nothing installed."""

from __future__ import annotations

import importlib.util
import unittest
from dataclasses import replace

import pytest
import torch
from flashinfer_stand_in import install
from framework.errors import InvalidArgument, Unsupported
from framework.interfaces.backend import AttentionSpec
from framework_testing.attention_cases import Case, build_problem
from framework_testing.attention_runs import judge, run_attention
from framework_testing.backend import backend_checks

from framework_flashinfer.backend import FlashInferBackend

SPEC = AttentionSpec(num_heads=8, num_kv_heads=2, head_dim=64, dtype="float16", block_size=16)


class OnCpu(FlashInferBackend):
    """With the stand-in in place of the package, on a CPU."""

    capabilities = replace(
        FlashInferBackend.capabilities, devices=frozenset({"cpu"}), simulated_devices=frozenset({"cpu"})
    )

    def __init__(self) -> None:
        super().__init__(workspace_bytes=16)

    def check(self, spec, device):
        return self.capabilities.reasons_against(spec, device)


@pytest.fixture
def stand_in(monkeypatch):
    install(monkeypatch)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("check", backend_checks, ids=lambda check: check.__name__)
def test_the_calls_keep_the_contract(check):
    if "2_31" in check.__name__:
        pytest.skip("runs in a process of its own, where no stand-in is")
    try:
        check(OnCpu, "cpu", "small")
    except unittest.SkipTest as reason:
        pytest.skip(str(reason))


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("change", [{"sliding_window": 1}, {"sliding_window": 40}, {"soft_cap": 2.0}, {"scale": 0.3}])
def test_windows_caps_scales_and_layouts_reach_the_kernel(change, layout):
    spec = replace(SPEC, layout=layout, **change)
    problem = build_problem(Case(spec, (100, 1, 0, 90, 0), (1, 1, 1, 40, 2)))
    backend = OnCpu()
    backend.setup(spec, "cpu")
    out, lse = run_attention(backend, problem, lse=True)
    verdict = judge(out, problem)
    assert verdict.ok, str(verdict)
    assert bool((lse[2] == -torch.inf).all()), "an empty row's log-sum-exp is -inf"


@pytest.mark.usefixtures("stand_in")
def test_a_step_is_planned_once_for_all_layers():
    problem = build_problem(Case(SPEC, (30, 20, 50), (1, 1, 7)))
    backend = OnCpu()
    backend.setup(SPEC, "cpu")
    backend.plan(problem.batch)
    for _ in range(5):
        backend.attend(problem.q, problem.pool, problem.batch, torch.empty_like(problem.q))
    assert [wrapper.plans for wrapper in backend._wrappers] == [1, 1]


def test_without_the_package_it_says_what_to_install():
    if importlib.util.find_spec("flashinfer") is not None:
        pytest.skip("flashinfer is installed")
    reasons = FlashInferBackend().check(replace(SPEC, head_dim=80), "cuda")
    assert "flashinfer is not installed: pip install flashinfer-python" in reasons
    assert "head dim 80 is not supported; supported: 128, 256, 64" in reasons
    if not torch.cuda.is_available():
        assert "no CUDA device" in reasons


def test_misuse_is_refused():
    with pytest.raises(InvalidArgument, match="workspace_bytes"):
        FlashInferBackend(workspace_bytes=0)
    with pytest.raises(Unsupported, match="not set up"):
        FlashInferBackend().plan(build_problem(Case(SPEC, (3,), (1,))).batch)
    with pytest.raises(Unsupported, match="device cpu is not supported"):
        FlashInferBackend().setup(SPEC, "cpu")
