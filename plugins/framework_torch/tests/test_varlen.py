"""torch's varlen_attn as a backend: its arguments, judged by the kit on a stand-in; CUDA alone runs the real one."""

from __future__ import annotations

import inspect
import math
import unittest
from dataclasses import replace
from typing import Any

import pytest
import torch

from framework.interfaces.backend import AttentionSpec
from framework_testing.backend import backend_checks
from framework_torch.varlen import VarlenBackend

varlen = pytest.importorskip("torch.nn.attention.varlen", reason="this torch has no varlen_attn")
if not hasattr(varlen, "varlen_attn_out"):
    pytest.skip("this torch has no varlen_attn_out", allow_module_level=True)

SIGNATURE = inspect.signature(varlen.varlen_attn_out)


class OnCpu(VarlenBackend):
    """With the stand-in in place of torch's function, on a CPU."""

    capabilities = replace(VarlenBackend.capabilities, devices=frozenset({"cpu"}), simulated_devices=frozenset({"cpu"}))


def stand_in(*args: Any, **kwargs: Any) -> None:
    """What the documentation says, row by row; only arguments that the real function has."""
    given = SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    a = given.arguments
    out, q, tables, lengths, starts = a["out"], a["query"], a["block_table"], a["seqused_k"], a["cu_seq_q"]
    assert starts.dtype == a["cu_seq_k"].dtype == tables.dtype == lengths.dtype == torch.int32
    assert a["cu_seq_k"].tolist() == [0, *lengths.cumsum(0).tolist()]
    assert int(lengths.max()) <= a["max_k"]
    assert int(starts.diff().max()) <= a["max_q"]
    assert a["key"].shape[1] % 256 == 0, "page size must be a multiple of 256"
    assert a["enable_gqa"] == (q.shape[1] != a["key"].shape[2])
    left, right = a["window_size"]
    assert right == 0, "not causal"
    for row, length in enumerate(lengths.tolist()):
        span = slice(int(starts[row]), int(starts[row + 1]))
        if length == 0:
            out[span] = 0
            continue
        count, size = span.stop - span.start, a["key"].shape[1]
        pages = tables[row, : -(-length // size)].long()
        k, v = (
            pool[pages].flatten(0, 1)[:length].repeat_interleave(q.shape[1] // pool.shape[2], 1).float()
            for pool in (a["key"], a["value"])
        )
        scores = torch.einsum("qhd,khd->hqk", q[span].float(), k) * a["scale"]
        position, key = torch.arange(length - count, length)[:, None], torch.arange(length)[None]
        hidden = key > position
        if left >= 0:
            hidden |= key < position - left
        scores = scores.masked_fill(hidden, -math.inf)
        out[span] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(q.dtype)


@pytest.mark.parametrize("check", backend_checks, ids=lambda check: check.__name__)
def test_the_call_keeps_the_contract(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if "2_31" in check.__name__:
        pytest.skip("runs in a process of its own, where no stand-in is")
    monkeypatch.setattr(varlen, "varlen_attn_out", stand_in)
    try:
        check(OnCpu, "cpu", "small")
    except unittest.SkipTest as reason:
        pytest.skip(str(reason))


def test_it_says_what_it_cannot_do() -> None:
    spec = AttentionSpec(
        num_heads=2, num_kv_heads=2, head_dim=64, dtype="bfloat16", block_size=16, soft_cap=2.0, sliding_window=4
    )
    reasons = VarlenBackend().check(spec, "cuda")
    assert "block size 16 is not a multiple of 256; nearest: 256" in reasons
    assert "soft_cap is not supported" in reasons
    assert not any("sliding_window" in reason for reason in reasons), reasons
    if not torch.cuda.is_available():
        assert "no CUDA device" in reasons


def test_an_older_torch_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = AttentionSpec(num_heads=2, num_kv_heads=2, head_dim=64, dtype="bfloat16", block_size=256)
    monkeypatch.setattr(torch, "__version__", "2.12.1+cu128")
    assert "torch 2.12.1+cu128 has no paged varlen_attn: pip install 'torch>=2.13'" in VarlenBackend().check(
        spec, "cuda"
    )
