"""Prompts become token ids, or one sentence says why not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from framework.errors import InvalidArgument, InvalidTokens, ModelError
from framework.llm import LLM, CacheOptions
from framework.model.families import read_config
from framework.model.tokenizer import ByteTokenizer, CheckpointTokenizer, encode, load_tokenizer
from framework.sampling import Sampling


def test_a_checkpoint_without_a_tokenizer_serves_token_ids_and_answers_with_ids(small_checkpoint):
    llm = LLM(str(small_checkpoint), cache=CacheOptions(num_blocks=16))
    (request,) = llm.generate([[3, 4, 5]], Sampling(max_tokens=4, ignore_eos=True))
    assert request.status == "finished", request.reason
    assert len(request.completions[0].tokens) == 4
    assert request.completions[0].text is None


def test_a_text_for_a_model_without_a_tokenizer_is_refused_before_anything_is_queued(small_checkpoint):
    llm = LLM(str(small_checkpoint), cache=CacheOptions(num_blocks=16))
    for prompt in ("text", [{"role": "user", "content": "text"}]):
        with pytest.raises(ModelError, match=r"has no tokenizer\.json: give prompts as token ids"):
            llm.generate([[3], prompt] if isinstance(prompt, str) else [prompt])
    assert llm.engine.num_unfinished == 0


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ("a\ud800b", InvalidArgument, r"the prompt holds a lone surrogate, U\+D800 at character 1"),
        ([{"role": "user", "content": "\udfff"}], InvalidArgument, r"message 0: content holds a lone surrogate"),
        ([{"role": "user", "content": None}], InvalidArgument, "message 0: content must be text, found None"),
        ([{"role": "user", "content": "a"}, "b"], InvalidArgument, "message 1 must be a mapping"),
        ([1, 2.5], InvalidTokens, "must be integers"),
        ([1, 2**31], InvalidTokens, "found 2147483648"),
        ([True], InvalidTokens, "found a bool"),
    ],
)
def test_what_is_no_prompt_is_refused(prompt, error, message):
    with pytest.raises(error, match=message):
        encode(ByteTokenizer(), prompt)


def test_a_prompt_is_made_an_array_once():
    ids = np.array([1, 2, 3], dtype=np.int32)
    assert encode(ByteTokenizer(), ids) is ids or np.shares_memory(encode(ByteTokenizer(), ids), ids)


@pytest.mark.parametrize(
    "source",
    ["{{ 1 / 0 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ ''.__class__.__mro__ }}", "{% x %}"],
)
def test_a_chat_template_without_sense_is_one_sentence(source):
    tokenizer = object.__new__(CheckpointTokenizer)
    tokenizer._template, tokenizer._special = source, {}
    with pytest.raises(ModelError, match="the chat template refuses these messages"):
        tokenizer.render_chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("template", [5, ["text"], [{"name": "default", "template": [1]}]])
def test_a_chat_template_that_is_no_text_is_refused(small_checkpoint, tmp_path, template):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(ModelError, match="chat_template must be text"):
        load_tokenizer(tmp_path, read_config(small_checkpoint))
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"chat_template\.jinja' cannot be read"):
        load_tokenizer(tmp_path, read_config(small_checkpoint))
