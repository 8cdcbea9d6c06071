"""Sampling: greedy, filtered, seeded, and what happens to a broken row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from framework.model.sampler import logprobs, sample, uniform


def draw(logits, *, temperature=1.0, top_k=0, top_p=1.0, seeds=0, streams=0, positions=0):
    rows = len(logits)
    arguments = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    arguments |= {"seeds": seeds, "streams": streams, "positions": positions}
    arguments = {name: np.broadcast_to(np.asarray(value), (rows,)) for name, value in arguments.items()}
    return sample(logits, **arguments)


def test_greedy_ties_go_to_the_lowest_id():
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0], [-5.0, -torch.inf, -5.0, -9.0]])
    tokens, bad = draw(logits, temperature=0.0)
    assert tokens.tolist() == [1, 0, 0]
    assert not bad.any()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_broken_row_is_reported_and_harms_no_other(temperature, top_p):
    generator = torch.Generator().manual_seed(0)
    clean = torch.randn(6, 50, generator=generator)
    broken = clean.clone()
    broken[1, 3], broken[2, 7], broken[4] = torch.nan, torch.inf, -torch.inf
    settings = {"temperature": temperature, "top_p": top_p, "seeds": np.arange(6)}
    expected, _ = draw(clean, **settings)
    tokens, bad = draw(broken, **settings)
    assert bad.tolist() == [False, True, True, False, True, False]
    assert tokens[bad].tolist() == [-1, -1, -1]
    assert tokens[~bad].tolist() == expected[~bad].tolist()


def test_the_logits_are_left_as_they_were():
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    draw(logits, temperature=0.5, top_k=[0, 3, 0, 3], top_p=[1.0, 1.0, 0.5, 0.5])
    assert torch.equal(logits, before)


def test_a_row_draws_the_same_in_any_batch_and_any_order():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(24, 300, generator=generator) * 2
    settings = {
        "temperature": np.resize([0.0, 0.5, 1.0, 2.0], 24),
        "top_k": np.resize([0, 5, 0], 24),
        "top_p": np.resize([1.0, 1.0, 0.8, 0.3, 1.0], 24),
        "seeds": np.arange(24) // 3,
        "streams": np.arange(24) % 3,
        "positions": np.arange(24) * 7,
    }
    together, _ = draw(logits, **settings)
    for row in range(24):
        alone, _ = draw(logits[row : row + 1], **{name: values[row] for name, values in settings.items()})
        assert alone.item() == together[row].item(), f"row {row}"
    order = np.random.default_rng(0).permutation(24)
    shuffled, _ = draw(logits[order], **{name: values[order] for name, values in settings.items()})
    assert shuffled.tolist() == together[order].tolist()


def test_the_uniforms_are_pinned_so_that_a_seed_means_the_same_for_ever():
    found = uniform([0, 1, 2**63 - 1], [0, 2, 1], [0, 3, 10**6])
    assert [f"{number:.12f}" for number in found] == PINNED


def test_top_k_keeps_ties_with_the_kth_as_transformers_does():
    logits = torch.tensor([[5.0, 1.0, 5.0, 5.0, 0.0]]).expand(600, 5)
    tokens, _ = draw(logits, top_k=2, positions=np.arange(600))
    assert set(tokens.tolist()) == {0, 2, 3}


def test_top_p_always_keeps_the_likeliest():
    logits = torch.randn(50, 100, generator=torch.Generator().manual_seed(4))
    tokens, _ = draw(logits, top_p=1e-9, temperature=3.0, positions=np.arange(50))
    assert tokens.tolist() == logits.argmax(-1).tolist()


def test_a_vanishing_temperature_is_greedy_and_a_huge_one_uniform():
    logits = torch.randn(400, 20, generator=torch.Generator().manual_seed(5)) * 10
    cold, bad = draw(logits, temperature=1e-300, positions=np.arange(400))
    assert cold.tolist() == logits.argmax(-1).tolist()
    assert not bad.any()
    hot, _ = draw(logits, temperature=1e9, positions=np.arange(400))
    assert len(set(hot.tolist())) == 20


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.97), (0, 0.5), (3000, 1.0), (1500, 0.99), (1024, 1.0), (2, 0.9)])
def test_a_filter_wider_than_the_first_candidates_still_keeps_exactly_its_set(top_k, top_p):
    """Flat rows over a large vocabulary keep more than the 1,024 candidates that are ranked first."""
    row = torch.randn(5000, generator=torch.Generator().manual_seed(6)) * 0.1
    expected = reference_distribution(row.double().numpy(), 1.0, top_k, top_p)
    tokens, _ = draw(row.expand(1000, -1), top_k=top_k, top_p=top_p, positions=np.arange(1000))
    uniforms = uniform(np.zeros(1000, int), np.zeros(1000, int), np.arange(1000))
    order = np.argsort(-row.numpy(), kind="stable")
    reference = order[np.searchsorted(np.cumsum(expected[order]), uniforms, side="right")]
    agreement = (tokens.numpy() == reference).mean()
    assert expected[tokens.numpy()].min() > 0
    assert agreement > 0.999, agreement


def test_log_probabilities_are_those_of_the_raw_logits():
    logits = torch.randn(5, 3000, generator=torch.Generator().manual_seed(7)) * 3
    tokens = torch.tensor([0, 5, 2999, 17, 4])
    chosen, ids, values = logprobs(logits, tokens, 4)
    expected = torch.log_softmax(logits.double(), -1)
    torch.testing.assert_close(chosen.double(), expected.gather(1, tokens[:, None])[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(values.double(), expected.topk(4).values, atol=1e-5, rtol=0)
    assert ids.tolist() == expected.topk(4).indices.tolist()
    assert logprobs(logits, tokens, 0)[1].shape == (5, 0)


def reference_distribution(row, temperature, top_k, top_p):
    """The filtered distribution by the book, one row in float64."""
    probabilities = np.exp((row - row.max()) / temperature)
    order = np.argsort(-probabilities, kind="stable")
    if top_k:
        probabilities[order[top_k:]] = 0
    probabilities /= probabilities.sum()
    mass = 0.0
    for token in order:
        if mass >= top_p:
            probabilities[token] = 0
        mass += probabilities[token]
    return probabilities / probabilities.sum()


PINNED = ["0.138709410146", "0.417558059504", "0.954473122037"]


@pytest.mark.parametrize("vocabulary", [40, 3000])
def test_what_a_device_does_without_waiting_draws_the_tokens_that_the_cpu_draws(monkeypatch, vocabulary):
    """Off the CPU nobody may ask how many candidates there are: all of the vocabulary is ranked."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(40, vocabulary, generator=generator).mul_(3).round_().div_(1.5)  # many ties
    logits[7, 5:] = -torch.inf
    settings = {
        "temperature": np.resize([0.5, 1.0, 3.0], 40),
        "top_k": np.resize([0, 1, 5, 30, vocabulary - 1], 40),
        "top_p": np.resize([1.0, 0.9, 0.2, 0.999], 40),
        "seeds": np.arange(40),
    }
    expected, _ = draw(logits, **settings)
    calls = []

    def ranked(scores, mask):
        calls.append(mask)
        return scores.sort(dim=-1, descending=True, stable=True)

    monkeypatch.setattr("framework.model.sampler._gather_ranked", ranked)
    found, _ = draw(logits, **settings)
    assert calls
    assert found.tolist() == expected.tolist()


def test_everything_a_draw_needs_goes_up_in_one_copy():
    sent = []

    def upload(*arrays):
        sent.append(len(arrays))
        return [torch.from_numpy(array) for array in arrays]

    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(4))
    rows = {name: np.full(6, value) for name, value in (("seeds", 1), ("streams", 0), ("positions", 9))}
    mixed = {"temperature": np.resize([0.0, 1.0], 6), "top_k": np.resize([0, 0, 0, 4], 6), "top_p": np.ones(6)}
    found, _ = sample(logits, **mixed, **rows, upload=upload)
    assert sent == [4]
    assert found.tolist() == sample(logits, **mixed, **rows)[0].tolist()
    sample(logits, **{**mixed, "temperature": np.zeros(6)}, **rows, upload=upload)
    assert sent == [4], "greedy rows need nothing"
