"""Checkpoints of Hugging Face's layout: finding them, and the values of their config.json, one by one.

Every value is of its type, every feature known or refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from framework.errors import ModelError, shown
from framework.model.shape import LARGEST
from framework.sampling import is_integer

T = TypeVar("T", int, float, bool, dict[str, Any])

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja")
_LARGEST_INTEGER = 2**31 - 1


def find_checkpoint(name_or_path: str | Path, files: Sequence[str] = _HUB_FILES) -> Path:
    """The folder of a checkpoint: itself, or the local copy of a hub repository, downloaded if need be.

    Args:
        files: patterns of what is downloaded.

    Raises:
        ModelError: neither a folder nor a hub id, or the hub cannot be reached and holds no local copy.
    """
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ModelError(f"model '{name_or_path}' is a file; give the folder that holds config.json and *.safetensors")
    if not _HUB_ID.fullmatch(str(name_or_path)):
        raise ModelError(f"model '{name_or_path}' is no folder here and no hub id (OWNER/NAME); 'tiny' needs neither")
    return _download(str(name_or_path), files)


def _download(name: str, files: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, allow_patterns=[*files]))
    except (HfHubHTTPError, OSError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"model '{name}' cannot be downloaded ({reason}); check the id, log in with `hf auth login` if it is "
            f"private, or run `hf download {name}` where there is a network"
        ) from error


def token_ids(config: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """A field of token ids, which is null, an integer or a list, as a tuple.

    Raises:
        ModelError: anything else.
    """
    value = config.get(key)
    tokens = () if value is None else tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for token in tokens:
        if not is_integer(token) or not 0 <= token <= _LARGEST_INTEGER:
            raise wrong_value(key, "a token id, a list of them or null", value)
    return tokens


_RULES: dict[Any, str] = {
    int: f"an integer of at least 1 and at most {_LARGEST_INTEGER:,}",
    float: "a number above 0",
    bool: "true or false",
    dict: "an object",
}


def value_of(config: Mapping[str, Any], key: str, kind: type[T], default: T | None = None) -> T:
    """The value of a key by the rule of its kind. Left out or null: `default`, if there is one.

    Raises:
        ModelError: it is missing, or of another type or outside its bounds.
    """
    value: Any = config.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        owner = config.get("model_type") or config.get("rope_type") or config.get("type")
        needs = f", which '{owner}' needs" if isinstance(owner, str) else ""
        raise ModelError(f"config.json has no '{key}'{needs}")
    if kind is int:
        holds = is_integer(value) and 1 <= value <= _LARGEST_INTEGER
    elif kind is float:
        holds = (isinstance(value, float) or is_integer(value)) and 0 < value < 1e300
    else:
        holds = isinstance(value, kind)
    if not holds:
        raise wrong_value(key, _RULES[kind], value)
    checked: T = value if kind is dict else kind(value)
    return checked


def wrong_value(key: str, rule: str, value: Any) -> ModelError:
    """To be raised: a key's value breaks its rule."""
    return ModelError(f"config.json: '{key}' must be {rule}, found {shown(value)}")


def num_layers_of(config: Mapping[str, Any]) -> int:
    """How many layers the decoder has, few enough to be listed.

    Raises:
        ModelError: no such number.
    """
    layers, largest = value_of(config, "num_hidden_layers", int), LARGEST["num_layers"]
    if layers > largest:  # before they are listed
        raise ModelError(f"num_layers must be at most {largest:,}, found {layers:,}; is config.json damaged?")
    return layers
