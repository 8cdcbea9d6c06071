"""Values that pydantic checks: settings, options of plugins and arguments; and its refusals as sentences of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)
from pydantic_core import PydanticCustomError

from framework.errors import ConfigError, FrameworkError, did_you_mean, listing, shown

INT64 = 2**63 - 1
Natural = Annotated[int, Field(ge=0, le=INT64)]
Positive = Annotated[int, Field(ge=1, le=INT64)]

_RULES = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "dict_type": "a mapping",
    "sequence_str": "a list",
}
"""Kind of error -> what the value must be, in place of pydantic's longer words."""
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


class Options(BaseModel):
    """A group of settings, frozen. Making one checks every value: types are converted, bounds enforced.

    Raises:
        ConfigError: an unknown key, none where there is no default, another type, out of bounds; names the key as the
            command line writes it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    section: ClassVar[str] = ""
    """Its name on the command line; empty for the top level."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise refusal(error, self.section, values, type(self).model_fields) from None

    @field_validator("*", mode="wrap")
    @classmethod
    def _keeps_truth(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        return keep_truth(value, check)

    def changed(self, **values: Any) -> Self:
        """A copy with other values, checked as these were."""
        return type(self)(**{**dict(self), **values})

    def plain(self) -> dict[str, Any]:
        """Key -> value, as YAML and JSON hold them."""
        values: dict[str, Any] = plain(dict(self))
        return values


def keep_truth(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """What `check` makes of a value. Pydantic takes true for 1 and 1 for true: both are refused here."""
    checked = check(value)
    pairs = [(value, checked)]
    if isinstance(value, (list, tuple)) and isinstance(checked, (list, tuple)):
        pairs = list(zip(value, checked, strict=True))
    for given, taken in pairs:
        if isinstance(given, bool) and isinstance(taken, (int, float)) and not isinstance(taken, bool):
            raise PydanticCustomError("number", "Input should be a number")
        if isinstance(taken, bool) and not isinstance(given, (bool, str)):
            raise PydanticCustomError("truth", "Input should be true or false")
    return checked


def check(value: Any, annotation: Any, where: str) -> Any:
    """`value` as the annotation wants it: 1 becomes 1.0 for a float, 1e3 1000 for an int, a list a tuple, and text that
    says a number or a truth value, as an environment variable's does, what it says. What pydantic makes no schema of,
    such as a name that only type checkers know, goes unchecked.

    Raises:
        ConfigError: it does not fit; names `where`, the type wanted and the value found.
    """
    try:
        adapter = _adapter(annotation)
    except TypeError:  # metadata that cannot be hashed
        adapter = _adapter.__wrapped__(annotation)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise refusal(error, where, value) from None
    except PydanticUserError:  # of a name in it that is not known
        return value


@lru_cache(maxsize=1024)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    for config in (ConfigDict(arbitrary_types_allowed=True), None):  # a model has its own
        try:
            return TypeAdapter(Annotated[annotation, WrapValidator(keep_truth)], config=config)
        except Exception:  # whatever an annotation raises
            continue
    return TypeAdapter(Any)


def refusal(error: ValidationError, where: str, given: Any, names: Iterable[str] = ()) -> FrameworkError:
    """What pydantic refused, as one sentence on the first of its errors.

    Args:
        where: the key of `given`, the value that was refused; empty for the whole of a configuration.
        names: the keys that there are.
    """
    errors = error.errors(include_url=False)
    for one in errors:
        if isinstance(inner := one.get("ctx", {}).get("error"), FrameworkError):
            return inner
    first = min(errors, key=lambda one: one["type"] not in _UNKNOWN)
    key, names = _key(where, given, first), list(names)
    if first["type"] in _UNKNOWN:
        near = did_you_mean(str(first["loc"][-1]), names)
        return ConfigError(f"unknown key {key!r}; keys: {listing(names)}{near}")
    if first["type"] == "missing":
        return ConfigError(f"{key} has no value; set {key}=...")
    found = shown(first["input"])
    if first["type"] == "model_type":
        return ConfigError(f"{key} must be a mapping, found {found}; set its keys, as in {key}.KEY=VALUE")
    rules = dict.fromkeys(_rule(one) for one in errors if _key(where, given, one) == key)
    choices = re.findall("'([^']*)'", str(first.get("ctx", {}).get("expected", "")))
    near = did_you_mean(found, choices)
    # Sorted, since Literal["auto"] | bool and bool | Literal["auto"] are one annotation to a cache.
    return ConfigError(f"{key} must be {' or '.join(sorted(rules))}, found {found}{near}")


def _rule(error: Mapping[str, Any]) -> str:
    """What a value must be, as in "a valid integer"."""
    if error["type"] in _RULES:
        bounds = {name: _whole(bound) for name, bound in error.get("ctx", {}).items()}
        return _RULES[error["type"]].format(**bounds)
    rule = re.sub(r"^Input should be |, (unable|got) .*", "", error["msg"])
    return re.sub("a valid (list|tuple)|an instance of Sequence", "a list", rule)


def _whole(bound: Any) -> Any:
    """A float's bound without ".0"."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _key(where: str, given: Any, error: Mapping[str, Any]) -> str:
    """The key of an error as the command line writes it; a member of a union, which pydantic names too, is no part."""
    for part in error["loc"]:
        keys = given if isinstance(given, Mapping) else range(len(given)) if isinstance(given, (list, tuple)) else ()
        if part in keys:
            given = given[part]
        elif error["type"] != "missing":
            continue
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
    return where


def plain(value: Any) -> Any:
    """A value as YAML and JSON hold it: a tuple or a set is a list, a path is text, a member of an Enum its value."""
    if isinstance(value, Options):
        return value.plain()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, (tuple, set, frozenset)) else value
