"""Weights of a checkpoint of Hugging Face's layout, read into a decoder that they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from framework.errors import ModelError
from framework.files.jsonl import read_object
from framework.model.config import ModelConfig
from framework.model.decoder import Decoder
from framework.model.layers import DecoderLayer, Target, Targets

_INDEX = "model.safetensors.index.json"
_SHOWN = 4


def load_weights(decoder: Decoder, folder: Path) -> None:
    """Fill `decoder` from the safetensors files of `folder`; a part reads one whole layer after another and cuts it.

    Raises:
        ModelError: a tensor missing, unexpected, of another shape or no number; a file missing or damaged. The
            decoder's weights are then undefined.
    """
    config, stored = decoder.config, _stored(folder, decoder.config)
    whole = decoder if decoder.shard.size == 1 else Decoder(config, dtype=decoder.dtype, device="meta")
    wanted = weight_targets(whole).keys()
    if missing := sorted(wanted - stored.keys()):
        raise ModelError(f"'{folder}' lacks {len(missing)} weights: {_some(missing)}")
    if unexpected := [name for name in sorted(stored.keys() - wanted) if not config.is_unused(name)]:
        raise ModelError(
            f"'{folder}' has {len(unexpected)} weights that a {config.family} model of this "
            f"config has no use for: {_some(unexpected)}"
        )
    parameters = dict(decoder.named_parameters())
    for prefix, module in (("", whole), *((f"layers.{index}.", layer) for index, layer in enumerate(whole.layers))):
        if whole is decoder:
            _fill(_targets_of(module, prefix, config), stored)
            continue
        module.to_empty(device="cpu", recurse=bool(prefix))
        _fill(_targets_of(module, prefix, config), stored)
        for name, weight in module.named_parameters(recurse=bool(prefix)):
            if prefix + name in parameters:  # a tied head is the embedding
                parameters[prefix + name].copy_(decoder.shard.cut(weight, whole.division(prefix + name)))
        module.to("meta")


def weight_targets(decoder: Decoder) -> dict[str, Target]:
    """Hugging Face name -> where in a whole decoder its tensor goes."""
    targets = _targets_of(decoder, "", decoder.config)
    for index, layer in enumerate(decoder.layers):
        targets |= _targets_of(layer, f"layers.{index}.", decoder.config)
    return targets


def _targets_of(module: nn.Module, prefix: str, config: ModelConfig) -> dict[str, Target]:
    """The targets of one layer; or of the decoder's own weights, those of its layers left out."""
    targets: Targets
    if isinstance(module, DecoderLayer):
        targets = {f"model.{prefix}{name}": target for name, target in module.targets().items()}
    else:
        assert isinstance(module, Decoder)
        head = {} if config.tie_word_embeddings else {"lm_head.weight": module.lm_head}
        targets = {"model.embed_tokens.weight": module.embedding, "model.norm.weight": module.norm, **head}
    return {name: (one, tuple(one.shape)) if isinstance(one, Tensor) else one for name, one in targets.items()}


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of a checkpoint: `file` is open, and calls it `name`."""

    path: Path
    file: Any
    name: str


def _fill(targets: Mapping[str, Target], stored: Mapping[str, _Stored]) -> None:
    from safetensors import SafetensorError

    for name, (view, shape) in targets.items():
        found = stored[name]
        try:
            tensor = found.file.get_tensor(found.name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"'{found.path}' is damaged: {name} cannot be read: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ModelError(f"'{found.path}': {name} has shape {tuple(tensor.shape)}, the config asks for {shape}")
        if not tensor.is_floating_point():
            raise ModelError(f"'{found.path}': {name} is {tensor.dtype}; quantised weights are not supported")
        view.copy_(tensor)


def _stored(folder: Path, config: ModelConfig) -> dict[str, _Stored]:
    """Every tensor of the folder's weight files, by the name it has here."""
    from safetensors import SafetensorError, safe_open

    weights = {}
    for path in _weight_files(folder):
        try:
            file: Any = safe_open(path, framework="pt", device="cpu")
            for stored in file.keys():  # noqa: SIM118
                weights[config.name_of(stored)] = _Stored(path, file, stored)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"'{path}' is damaged or no safetensors file: {error}") from error
    return weights


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        weight_map = read_object(folder / _INDEX, ModelError).get("weight_map")
        if (
            not weight_map
            or not isinstance(weight_map, dict)
            or not all(isinstance(name, str) for name in weight_map.values())
        ):
            raise ModelError(f"'{folder / _INDEX}': weight_map must be an object of file names")
        named = sorted(set(weight_map.values()))
        if odd := [name for name in named if Path(name).name != name]:
            raise ModelError(f"'{folder / _INDEX}' names no files of its own folder: {_some(odd)}")
        if absent := [name for name in named if not (folder / name).is_file()]:
            raise ModelError(f"'{folder}' lacks {len(absent)} of {len(named)} weight files: {_some(absent)}")
        return [folder / name for name in named]
    files = [folder / "model.safetensors"] if (folder / "model.safetensors").is_file() else []
    files = files or sorted(file for file in folder.glob("*.safetensors") if file.is_file())
    if not files:
        raise ModelError(f"'{folder}' holds no *.safetensors; convert other formats with transformers' save_pretrained")
    return files


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(str(name) for name in names[:_SHOWN]) + more
