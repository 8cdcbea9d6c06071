"""Prompts with images share the blocks that they share by the names that vLLM itself gives them."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from paged_helpers import prompt_with_contents, shared
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from framework.paged.index import BlockHasher
from framework.registry.components import build_component
from framework.types import Namespace, as_tokens

SIZE = 4


def names_of_vllm(number: int, tokens: list[int], space: Namespace) -> list[bytes]:
    features = [
        MultiModalFeatureSpec(None, "image", name, PlaceholderRange(first, end - first))
        for first, end, name in space.contents
    ]
    lora = LoRARequest(lora_name=space.adapter, lora_int_id=1, lora_path="nowhere") if space.adapter else None
    request = Request(
        str(number), tokens, SamplingParams(max_tokens=1), None, mm_features=features, lora_request=lora,
        cache_salt=space.salt or None, block_hasher=get_request_block_hasher(SIZE, sha256),
    )  # fmt: skip
    return list(request.block_hashes)


@pytest.mark.parametrize("scheme", ["sha256", "polynomial"])
def test_prompts_share_the_blocks_that_they_share_in_vllm(scheme: str) -> None:
    init_none_hash(sha256)
    draw, hasher = random.Random(5), BlockHasher(build_component("hash", scheme, {}), SIZE)
    prompts = [prompt_with_contents(draw) for _ in range(60)]
    ours = [[*hasher.of(as_tokens(tokens), space, None)[1]] for tokens, space in prompts]
    theirs = [names_of_vllm(number, *prompt) for number, prompt in enumerate(prompts)]
    counts = [(shared(ours[a], ours[b]), shared(theirs[a], theirs[b])) for a, b in combinations(range(60), 2)]
    assert [pair for pair in counts if pair[0] != pair[1]] == []
    assert {count for count, _ in counts} >= {0, 1, 2}, "some share something"
