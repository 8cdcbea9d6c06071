"""One served sequence again: the logits that chose its tokens, and what attention lost in each call and layer."""

from __future__ import annotations

from typing import Any

import torch
from fake_engines import make_llm

from framework.engine.served_pass import served_pass
from framework.sampling import Sampling

PROMPT = list(range(40, 73))


def passed(**options: Any) -> tuple[list[int], torch.Tensor, list[tuple[float, float]]]:
    llm = make_llm("tiny", num_blocks=40, block_size=4, **options)
    tokens = llm.generate([PROMPT], Sampling(max_tokens=7, ignore_eos=True))[0].completions[0].tokens
    logits, gaps = served_pass(llm.model.decoder, llm.backends, llm.pool, [*PROMPT, *tokens], len(PROMPT))
    return tokens, logits, gaps


def test_the_logits_are_those_that_chose_the_served_tokens() -> None:
    for options in ({}, {"kv_dtype": "int8"}, {"kv_dtype": "float8_e4m3fn"}):
        tokens, logits, _ = passed(**options)
        assert logits.argmax(-1).tolist() == tokens, options


def test_each_call_and_layer_has_its_gap_and_only_a_narrow_pool_has_a_large_one() -> None:
    (_, _, exact), (_, _, rounded) = passed(), passed(kv_dtype="int8")
    assert len(exact) == len(rounded) == 7 * 2, "a prompt and 6 tokens, 2 layers"
    assert max(gap for gap, _ in exact) < 1e-5
    assert all(1e-4 < gap < largest for gap, largest in rounded), rounded
