"""The packed copy of the weights multiplies to the same logits."""

import pytest
import torch

from framework.model.loading import load_model


@pytest.mark.parametrize("rows", [1, 5, 32])
def test_packed_weights_give_the_same_logits(rows):
    plain, packed = load_model("tiny").decoder, load_model("tiny").decoder
    assert packed.prepack()
    tokens, positions = torch.arange(rows) * 7 % 256, torch.arange(rows)

    def attention(layer, q, k, v):
        return q.contiguous()

    wanted = plain.logits(plain(tokens, positions, attention))
    found = packed.logits(packed(tokens, positions, attention))
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert not torch.equal(wanted, torch.zeros_like(wanted))


def test_a_dtype_that_cannot_be_packed_is_left_as_it_is():
    decoder = load_model("tiny", dtype="float64").decoder
    assert not decoder.prepack()
    assert not any(hasattr(weight, "packed") for weight in decoder.parameters())
