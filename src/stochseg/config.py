"""Configs: frozen, typed, and strict about their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from stochseg.errors import UserError

C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """Base of all configs. Build one from outside data with `parse`, whose errors are for a person."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    renamed_keys: ClassVar[Mapping[str, str]] = {}
    """Keys in files that users already have, and their names today; those of base classes count too."""

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
            raise ValueError(f"{twice[0]!r} is now called {names[twice[0]]!r}, and both are given; remove one")
        return {names.get(key, key): value for key, value in values.items()}

    @classmethod
    def parse(cls: type[C], values: Mapping[str, Any], *, where: str = "config") -> C:
        """Validate `values`; a `UserError` names each bad key, what came, and what is known."""
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: expected keys such as {', '.join(_known_keys(cls, []))}; got {values!r}")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise UserError(_explain(cls, error, where)) from None


def _explain(cls: type[Config], error: ValidationError, where: str) -> str:
    lines = []
    for problem in error.errors():
        path = [str(part) for part in problem["loc"]]
        key = ".".join(path)
        if problem["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown key {key!r}; known keys: {', '.join(_known_keys(cls, path))}")
        elif not path:
            lines.append(f"{where}: {problem['msg']}")
        else:
            lines.append(f"{where}: key {key!r}: {problem['msg']}; got {problem['input']!r}")
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
