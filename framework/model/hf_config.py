"""Checkpoints of Hugging Face's layout: finding them, config.json as a ModelConfig, and its values one by one.

Every value is of its type, every feature known or refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from framework.errors import ModelError, listing, shown
from framework.files.jsonl import read_object
from framework.registry.points import points
from framework.sampling import is_integer

if TYPE_CHECKING:
    from framework.model.config import ModelConfig

T = TypeVar("T", int, float, bool, dict[str, Any])

MAX_LAYERS = 2**12
_GROUP = "framework.family"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja"]
_LARGEST_INTEGER = 2**31 - 1


def find_checkpoint(name_or_path: str | Path) -> Path:
    """The folder of a checkpoint: itself, or the local copy of a hub repository, downloaded if need be.

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
    return _download(str(name_or_path))


def read_config(folder: Path) -> ModelConfig:
    """The config of a checkpoint; generation_config.json, where there is one, says which tokens end a generation.

    Raises:
        ModelError: no config.json, or an unsupported family or feature.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"'{folder}' has no config.json: not a Hugging Face checkpoint")
    config = read_hf_config(read_object(folder / "config.json", ModelError))
    if (folder / "generation_config.json").is_file():
        ends = token_ids(read_object(folder / "generation_config.json", ModelError), "eos_token_id")
        config = replace(config, eos_token_ids=ends or config.eos_token_ids)
    return config


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, OSError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"model '{name}' cannot be downloaded ({reason}); check the id, log in with `hf auth login` if it is "
            f"private, or run `hf download {name}` where there is a network"
        ) from error


def read_hf_config(config: Mapping[str, Any]) -> ModelConfig:
    """Read a config.json, of transformers 4 (`rope_scaling`) or 5 (`rope_parameters`).

    Raises:
        ModelError: a family that is not installed or a feature it does not support, a key that is missing, or a value
            of another type; each by name.
    """
    name = config.get("model_type")
    family = installed_family(name)
    if family is None:
        installed = listing(point.name for point, *_ in points(_GROUP))
        raise ModelError(f"model family {shown(name)} is not supported; installed: {installed}")
    if text := value_of(config, "text_config", dict, {}):  # of a model that also sees, whose text alone is read
        config = {"tie_word_embeddings": config.get("tie_word_embeddings"), **text}
    return family(**family.read(with_defaults(config)))


def installed_family(name: object) -> type[ModelConfig] | None:
    """The class that reads configs of this `model_type`: an entry point of the group `framework.family`.

    Raises:
        ModelError: it cannot be imported, or is no ModelConfig.
    """
    from framework.model.config import ModelConfig

    found = next((found for found in points(_GROUP) if found[0].name == name), None)
    if found is None:
        return None
    point, distribution, version = found
    family: Any = None
    try:
        family = point.load()
        wrong = "" if isinstance(family, type) and issubclass(family, ModelConfig) else "it is no ModelConfig"
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        raise ModelError(f"model family {name!r} of {distribution} {version} cannot be used: {wrong}")
    return family  # type: ignore[no-any-return]


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's part of a config.json, and what transformers assumes where its family leaves a key out.

    Raises:
        ModelError: `text_config` is no object.
    """
    config = value_of(config, "text_config", dict, {}) or config
    family = installed_family(config.get("model_type"))
    nulls, defaults = ((), {}) if family is None else (family.NULL_IS_NONE, family.DEFAULTS)
    return {**defaults, **{key: value for key, value in config.items() if value is not None or key in nulls}}


def layer_names_of(config: Mapping[str, Any]) -> list[str] | None:
    """What each layer is by a config `with_defaults`, in the words of `layer_types`; None: its family is not installed.

    Raises:
        ModelError: a value of another type.
    """
    family = installed_family(config.get("model_type"))
    return None if family is None else family.layer_names(config)


def token_ids(config: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """A field of token ids, which is null, an integer or a list, as a tuple.

    Raises:
        ModelError: anything else.
    """
    value = config.get(key)
    found = () if value is None else tuple(value) if isinstance(value, (list, tuple)) else (value,)
    for token in found:
        if not is_integer(token) or not 0 <= token <= _LARGEST_INTEGER:
            raise wrong_value(key, "a token id, a list of them or null", value)
    return found


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
    found: T = value if kind is dict else kind(value)
    return found


def wrong_value(key: str, rule: str, value: Any) -> ModelError:
    """To be raised: a key's value breaks its rule."""
    return ModelError(f"config.json: '{key}' must be {rule}, found {shown(value)}")


def num_layers_of(config: Mapping[str, Any]) -> int:
    """How many layers the decoder has, few enough to be listed.

    Raises:
        ModelError: no such number.
    """
    layers = value_of(config, "num_hidden_layers", int)
    if layers > MAX_LAYERS:  # before they are listed
        raise ModelError(f"num_layers must be at most {MAX_LAYERS:,}, found {layers:,}; is config.json damaged?")
    return layers
