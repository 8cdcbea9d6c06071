"""The packed copy of the weights multiplies to the same logits."""

import pytest
import torch

from framework.model import layers
from framework.model.loading import load_model


@pytest.mark.parametrize("rows_a_part", [1, 5, 1000])
@pytest.mark.parametrize("rows", [1, 5, 32])
def test_packed_weights_give_the_same_logits_in_parts_of_any_size(rows, rows_a_part, monkeypatch):
    plain, packed = load_model("tiny").decoder, load_model("tiny").decoder
    assert packed.prepack()
    row_bytes = 4 * len(packed.layers[0].mlp.gate_up)
    monkeypatch.setattr(layers, "_CACHED_BYTES", rows_a_part * row_bytes)
    assert [len(part) for part in packed.layers[0].mlp.parts(torch.zeros(7, 3))] == {1: [1] * 7, 5: [5, 2]}.get(
        rows_a_part, [7]
    )
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


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chosen", [[2, 3, 8], [8], []], ids=str)
def test_asked_for_some_tokens_only_the_last_layer_computes_them_alone(chosen, packed):
    decoder = load_model("tiny").decoder
    assert not packed or decoder.prepack()
    tokens, positions, rows = torch.arange(9) * 7 % 256, torch.arange(9), torch.tensor(chosen, dtype=torch.int64)
    seen = []

    def attention(layer, q, k, v):
        seen.append(len(q))
        return torch.cumsum(q, 0)  # each token depends on those before it

    multiplied = []
    last = decoder.layers[-1]
    for part in (last.attention, last.mlp):
        project = part.project
        part.project = lambda x, *rest, project=project: multiplied.append(len(x)) or project(x, *rest)
    found = decoder(tokens, positions, attention, rows=rows)
    assert seen == [9] * len(decoder.layers), f"attention needs every token's keys, it was given {seen}"
    assert multiplied == [len(chosen)] * 2, f"the last layer's output and down were of {multiplied} rows"
    wanted = decoder(tokens, positions, attention)[rows]
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5), (found - wanted).abs().max()


def test_the_engine_asks_only_for_what_it_samples(monkeypatch):
    from framework.llm import LLM, CacheOptions
    from framework.sampling import Sampling

    llm = LLM("tiny", cache=CacheOptions(num_blocks=32))
    shapes, logits = [], llm.model.decoder.logits
    monkeypatch.setattr(llm.model.decoder, "logits", lambda hidden: shapes.append(len(hidden)) or logits(hidden))
    last = llm.model.decoder.layers[-1].attention
    of_last, project = [], last.project
    last.project = lambda x, *rest: of_last.append(len(x)) or project(x, *rest)
    llm.generate([list(range(1, 40)), list(range(1, 20))], Sampling(max_tokens=3))
    assert of_last == shapes, f"the last layer computed {of_last} rows, logits of {shapes} were wanted"
    assert max(shapes) <= 2, shapes
