"""The calls into flash-attn judged by the backend kit, on stand-ins; and the reasons, with nothing installed."""

from __future__ import annotations

import unittest
from dataclasses import replace
from functools import partial

import pytest
import torch
from framework.errors import Unsupported
from framework.interfaces.backend import AttentionSpec
from framework_testing.attention_cases import Case, build_problem
from framework_testing.attention_runs import judge, run_attention
from framework_testing.backend import backend_checks
from stand_ins import install

from framework_flash_attn import versions
from framework_flash_attn.backend import FlashAttnBackend

SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=64, dtype="bfloat16", block_size=16)


def on_cpu(version, **limits):
    """A version with the stand-ins in place of its package, on a CPU; `limits` are of the pages the kit asks for."""
    can = replace(
        FlashAttnBackend.capabilities, devices=frozenset({"cpu"}), simulated_devices=frozenset({"cpu"}), **limits
    )
    return partial(type("OnCpu", (FlashAttnBackend,), {"capabilities": can}), version)


MAKES = {
    "2": on_cpu("2", block_size_multiple_of=256),
    "3": on_cpu("3"),
    "3 in large pages": on_cpu("3", block_size_multiple_of=128),  # which hold whole key tiles
    "4": on_cpu("4", max_block_size=32),
}


@pytest.fixture
def stand_ins(monkeypatch):
    install(monkeypatch)
    monkeypatch.setattr(versions, "is_installed", lambda version: True)


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("version", MAKES)
@pytest.mark.parametrize("check", backend_checks, ids=lambda check: check.__name__)
def test_the_calls_keep_the_contract(check, version):
    if "2_31" in check.__name__:
        pytest.skip("runs in a process of its own, where no stand-in is")
    try:
        check(MAKES[version], "cpu", "small")
    except unittest.SkipTest as reason:
        pytest.skip(str(reason))


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("version", MAKES)
@pytest.mark.parametrize("change", [{"sliding_window": 1}, {"sliding_window": 70}, {"soft_cap": 2.0}, {"scale": 0.3}])
def test_windows_caps_and_scales_reach_the_kernel(version, change):
    size = {"2": 256, "3 in large pages": 128}.get(version, 16)
    spec = replace(SPEC, block_size=size, **change)
    problem = build_problem(Case(spec, (300, 1, 0, 90), (1, 1, 1, 40)))
    backend = MAKES[version]()
    backend.setup(spec, "cpu")
    out, lse = run_attention(backend, problem, lse=True)
    verdict = judge(out, problem)
    assert verdict.ok, str(verdict)
    assert bool((lse[2] == -torch.inf).all()), "an empty row's log-sum-exp is -inf"


def test_without_the_packages_every_version_says_what_to_install():
    reasons = FlashAttnBackend().check(replace(SPEC, block_size=16), "cuda")
    text = "\n".join(reasons)
    assert "flash_attn is not installed: pip install flash-attn --no-build-isolation" in text
    assert "version 2: page 16 is not a multiple of 256; nearest: 256" in text
    assert "flash_attn_interface is not installed" in text
    assert "flash_attn.cute is not installed" in text
    if not torch.cuda.is_available():
        assert "no CUDA device" in reasons


def test_a_pinned_version_gives_its_own_reasons_only():
    reasons = FlashAttnBackend("2").check(replace(SPEC, block_size=700), "cpu")
    assert any("nearest: 768" in reason for reason in reasons), reasons
    assert not any("version 3" in reason for reason in reasons), reasons
    with pytest.raises(Unsupported, match="device cpu is not supported"):
        FlashAttnBackend("2").setup(SPEC, "cpu")


@pytest.mark.parametrize(
    ("capability", "size", "wanted"),
    [((9, 0), 16, "3"), ((9, 0), 512, "3"), ((10, 0), 16, "4"), ((10, 0), 256, "2"), ((8, 6), 256, "2")],
)
def test_the_version_follows_the_chip_and_the_page(monkeypatch, stand_ins, capability, size, wanted):
    spec = replace(SPEC, block_size=size)
    fit = [v for v in versions.ORDER if not versions.reasons_against(v, spec, capability)]
    assert fit[0] == wanted, fit


def test_nothing_fits_an_old_chip_with_small_pages(stand_ins):
    spec = replace(SPEC, block_size=16)
    reasons = [versions.reasons_against(version, spec, (8, 0)) for version in versions.ORDER]
    assert all(reasons), reasons
