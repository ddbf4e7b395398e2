"""Configs: frozen, typed, and strict about keys."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from stochseg.errors import UserError

C = TypeVar("C", bound="Config")

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 200
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 20


class Config(BaseModel):
    """Base class of all configs. Build one from a user's values with `parse`, which explains mistakes.

    >>> class Size(Config):
    ...     height: int
    ...     width: int = 1
    >>> Size.parse({"height": 3})
    Size(height=3, width=1)
    >>> Size.parse({"height": 3, "depth": 2}, where="size.yaml")
    Traceback (most recent call last):
    stochseg.errors.UserError: size.yaml: unknown key 'depth'; known keys: height, width
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    renamed_keys: ClassVar[Mapping[str, str]] = {}
    """Current names of old keys, which are still read. The keys of base classes are included."""
    values_before: ClassVar[Mapping[str, Any]] = {}
    """Values that keys stand for in saved models that are older than the key, where the default is another."""

    @model_validator(mode="before")
    @classmethod
    def _read_renamed_keys(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        names: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            names |= vars(base).get("renamed_keys", {})
        twice = [old for old, new in names.items() if old in values and new in values]
        if twice:
            raise ValueError(f"{twice[0]!r} is the old name of {names[twice[0]]!r}, and both are given; remove one")
        return {names.get(key, key): value for key, value in values.items()}

    @classmethod
    def parse(cls: type[C], values: Mapping[str, Any], *, where: str = "config") -> C:
        """Validate values that came from outside.

        Args:
            values: the keys and their values, with nested mappings for nested configs.
            where: the source of the values, such as a file, for the error.

        Raises:
            UserError: one line per mistake, with the key, the value, and the known keys.
        """
        if not isinstance(values, Mapping):
            raise UserError(
                f"{where}: expected keys such as {', '.join(_known_keys(cls, []))}; got {_SHORT.repr(values)}"
            )
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise UserError(_explain(cls, error, where)) from None


def _explain(cls: type[Config], error: ValidationError, where: str) -> str:
    lines = []
    for problem in error.errors():
        path = [str(part) for part in problem["loc"]]
        key, text = ".".join(path), problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown key {key!r}; known keys: {', '.join(_known_keys(cls, path))}")
        elif not path:
            lines.append(f"{where}: {text}")
        else:
            lines.append(f"{where}: key {key!r}: {text}; got {_SHORT.repr(problem['input'])}")
    return "\n".join(lines)


def _known_keys(cls: type[Config], path: list[str]) -> list[str]:
    """The keys of the (nested) config in which the last part of `path` was looked up."""
    fields = cls.model_fields
    for part in path[:-1]:
        annotation = fields[part].annotation if part in fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, Config)):
            break
        fields = annotation.model_fields
    return sorted(fields)
