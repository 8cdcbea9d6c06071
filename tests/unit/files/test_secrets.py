"""What looks like a secret is not kept."""

from __future__ import annotations

from typing import Any

import pytest

from framework.files.secrets import masked

KEYS = ("hmac_key", "key", "signing_key", "hash_key", "hashkey", "salt", "passphrase", "hmac", "HMAC_KEY", "api_keys")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"tracker": {"api_key": "abc", "project": "p"}}, {"tracker": {"api_key": "***", "project": "p"}}),
        ({"stores": [{"password": "x", "num_blocks": 3}]}, {"stores": [{"password": "***", "num_blocks": 3}]}),
        (["a", "tracker.api_key=abc", "seed=1"], ["a", "tracker.api_key=***", "seed=1"]),
        (["+tracker={name: wandb, api_key: abc}"], ["+tracker={name: wandb, api_key: ***}"]),
        (["++a.api_key=abc,def", "a.password='a b'"], ["++a.api_key=***", "a.password=***"]),
        (["a.token=${oc.env:MY_KEY,typed}", "a.token=x${oc.env:MY_KEY}"], ["a.token=***", "a.token=***"]),
        ("no service takes api_key='a b' here", "no service takes api_key=*** here"),
        ("redis://me:abc@host:1/0", "redis://***@host:1/0"),
        ("tracker.api_key=${oc.env:MY_KEY}", "tracker.api_key=${oc.env:MY_KEY}"),
        ({"max_tokens": 5, "stop_token_ids": [1], "eviction": "lru", "token": None, "monkey": "m"}, None),
        *(({"hash": {"name": "mine", name: "abc"}}, {"hash": {"name": "mine", name: "***"}}) for name in KEYS),
        *(([f"hash.{name}=abc"], [f"hash.{name}=***"]) for name in KEYS),
        ({"hash": {"hmac_key": 1234567}}, {"hash": {"hmac_key": "***"}}),
        ({"hash": {"key": {"value": "abc", "bits": [1]}}}, {"hash": {"key": {"value": "***", "bits": ["***"]}}}),
    ],
)
def test_secrets_are_masked_and_the_rest_is_kept(value: Any, kept: Any) -> None:
    assert masked(value) == (value if kept is None else kept)
