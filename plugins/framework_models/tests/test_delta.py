"""Linear attention in chunks and step by step, the gated delta rule against the recurrence written out in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from framework_models.modules.delta import GatedDelta
from framework_models.modules.kimi import KimiDelta
from framework_models.modules.nemotron import Mamba2
from framework_models.recurrent import RecurrentConfig

CONFIG = RecurrentConfig(
    layers=(True, False), num_key_heads=2, num_value_heads=6, key_dim=5, value_dim=3, kernel=4
)  # fmt: skip


def made(kind: Any, config: RecurrentConfig = CONFIG) -> Any:
    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator), requires_grad=False)

    return kind(config, 8, 1e-6, weight)


@pytest.fixture
def delta() -> GatedDelta:
    found: GatedDelta = made(GatedDelta)
    return found


def drawn(count: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, CONFIG.num_channels, dtype=torch.float64, generator=generator)
    decay, strength = torch.rand(2, count, 6, dtype=torch.float64, generator=generator)
    return x, -2 * decay.unsqueeze(-1), strength


def recurrence(delta: GatedDelta, x: Tensor, decay: Tensor, strength: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Outputs (T, N, V), and the memory (N, K, V) after each token."""
    memory, outputs, memories = torch.zeros(6, 5, 3, dtype=torch.float64), [], []
    for at in range(len(x)):
        window = torch.stack([x[past] if past >= 0 else torch.zeros_like(x[0]) for past in range(at - 3, at + 1)], 1)
        convolved = torch.nn.functional.silu((window * delta.convolution[:, 0]).sum(1))
        q, k = (part.view(2, 5) for part in (convolved[:10], convolved[10:20]))
        v, rows = convolved[20:].view(6, 3), []
        for head in range(6):
            key, query = (a[head // 3] / (a[head // 3].square().sum() + 1e-6).sqrt() for a in (k, q))
            kept = memory[head] * decay[at, head].exp()
            memory[head] = kept + torch.outer(key, strength[at, head] * (v[head] - key @ kept))
            rows.append(query @ memory[head] / 5**0.5)
        outputs.append(torch.stack(rows))
        memories.append(memory.clone())
    return torch.stack(outputs), memories


@pytest.mark.parametrize("block", [1, 4, 7, 64, 130])
@pytest.mark.parametrize("calls", [[150], [1, 2, 147], [5, 59, 64, 22], [70, 1, 79]], ids=str)
def test_calls_of_any_length_give_the_recurrence_and_its_states(delta: Any, block: int, calls: list[int]) -> None:
    x, decay, strength = drawn(150)
    wanted, memories = recurrence(delta, x, decay, strength)
    state, start, outputs, saved = delta.zero_state(x.device), 0, [], {}
    for count in calls:
        part = [a[start : start + count] for a in (x, decay, strength)]

        def save(after: int, found: Any) -> None:
            saved[after] = tuple(a.clone() for a in found)

        outputs.append(delta.sequence(*part, state=state, start=start, block=block, save=save))
        start += count
        state = saved[start]
    torch.testing.assert_close(torch.cat(outputs), wanted, rtol=1e-9, atol=1e-9)
    ends = set(range(block, 151, block))
    assert ends <= saved.keys()
    for after, (before, memory) in saved.items():
        torch.testing.assert_close(memory, memories[after - 1], rtol=1e-9, atol=1e-9)
        inputs = torch.cat((torch.zeros(3, x.shape[1], dtype=x.dtype), x))[after : after + 3]
        assert torch.equal(before, inputs.T)


def test_rows_step_each_from_its_own_state(delta: Any) -> None:
    lengths, found = (3, 40, 1), []
    inputs = [drawn(length + 1) for length in lengths]
    states = []
    for (x, decay, strength), length in zip(inputs, lengths, strict=True):
        saved: dict[int, Any] = {}
        before = [a[:length] for a in (x, decay, strength)]
        delta.sequence(*before, state=delta.zero_state(x.device), start=0, block=64, save=saved.__setitem__)
        states.append(saved[length])
    rows = [torch.stack([a[-1] for a in column]) for column in zip(*inputs, strict=True)]
    out, (kept, memory) = delta.step(*rows, state=tuple(torch.stack(part) for part in zip(*states, strict=True)))
    for row, one in enumerate(inputs):
        wanted, memories = recurrence(delta, *one)
        torch.testing.assert_close(out[row], wanted[-1], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(memory[row], memories[-1], rtol=1e-9, atol=1e-9)
        found.append(kept[row])
    assert torch.equal(found[1], inputs[1][0][-3:].T)


@pytest.mark.parametrize(("kind", "rates"), [(Mamba2, 1), (KimiDelta, 5)])
def test_other_rules_give_in_chunks_what_they_give_step_by_step(kind: Any, rates: int) -> None:
    """Of sequences that are begun in the middle of a chunk, with decays down to e**-60 a chunk."""
    layer = made(kind, replace(CONFIG, value_dim=5))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, layer.config.num_channels, dtype=torch.float64, generator=generator)
    decay, strength = (torch.rand(50, 6, n, dtype=torch.float64, generator=generator) for n in (rates, 1))
    inputs, saved = (x, -4 * decay, strength.squeeze(-1)), dict[int, Any]()
    state, wanted = layer.zero_state(x.device), []
    for at in range(50):
        out, after = layer.step(*(a[at : at + 1] for a in inputs), state=tuple(part[None] for part in state))
        state = tuple(part[0] for part in after)
        wanted.append((out[0], state))
    found, start = layer.zero_state(x.device), 0
    for count in (5, 1, 44):
        part = [a[start : start + count] for a in inputs]
        outputs = layer.sequence(*part, state=found, start=start, block=8, save=saved.__setitem__)
        torch.testing.assert_close(outputs, torch.stack([out for out, _ in wanted[start : start + count]]))
        start += count
        found = saved[start]
        torch.testing.assert_close(found, wanted[start - 1][1])
