"""Configs: frozen, typed, and strict about their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from stochseg.errors import UserError

C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """Base of all configs. Build one from outside data with `parse`, whose errors are for a person."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
