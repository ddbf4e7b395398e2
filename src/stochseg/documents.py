"""JSON and YAML from outside, with bounds on size, depth and the growth of YAML aliases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from stochseg.errors import UserError
from stochseg.limits import check_memory

MAX_DEPTH = 50
"""Levels of nesting: no document of this package has more than 10."""
MAX_YAML_NODES = 100_000
"""Values of a YAML document, those repeated by aliases included."""
MAX_YAML_CHARACTERS = 10**6
MAX_MESSAGE = 500
"""Characters of a parser's message, which may quote the whole document."""
JSON_MEMORY = 24
"""Bytes of Python objects per byte of JSON, in the worst case of short lists."""


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse JSON.

    Args:
        text: The document; bytes are UTF-8.
        where: The file, for the error.

    Raises:
        UserError: The text is not JSON, nested too deeply, or too long for the memory limit.

    >>> parse_json('{"a": [1, 2]}', "a.json")
    {'a': [1, 2]}
    """
    check_memory(JSON_MEMORY * len(text), where)
    try:
        value = json.loads(text)
    except RecursionError:
        raise UserError(_too_deep(where)) from None
    except ValueError as error:  # not JSON, not UTF-8, or an integer of thousands of digits
        raise UserError(f"{where} is not valid JSON ({error}); it is damaged or incomplete") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return value
    raise UserError(_too_deep(where))


def _children(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _too_deep(where: str) -> str:
    return f"{where} is nested in more than {MAX_DEPTH} levels; it is damaged or of another kind"


class _BoundedLoader(yaml.SafeLoader):
    """Safe loader that refuses deep documents and aliases that multiply."""

    def __init__(self, text: str, where: str):
        super().__init__(text)
        self.where = where
        self.depth = 0
        self.nodes = 0
        self.sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        alias = self.check_event(yaml.AliasEvent)
        before = self.nodes
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UserError(_too_deep(self.where))
        node = super().compose_node(parent, index)
        self.depth -= 1
        # An alias counts as all that it repeats. One inside its own anchor, whose size is not known, has no end.
        self.nodes += self.sizes.get(id(node), MAX_YAML_NODES) if alias else 1
        if self.nodes > MAX_YAML_NODES:
            raise UserError(
                f"{self.where} has more than {MAX_YAML_NODES:,} values, aliases included; "
                "write them out or shorten the document"
            )
        self.sizes.setdefault(id(node), self.nodes - before)
        return node


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML; see `parse_json`. Tags that build Python objects are refused.

    >>> parse_yaml("a: [1, 2]", "a.yaml")
    {'a': [1, 2]}
    """
    if len(text) > MAX_YAML_CHARACTERS:
        raise UserError(f"{where} has {len(text):,} characters, expected at most {MAX_YAML_CHARACTERS:,}; shorten it")
    try:
        return _BoundedLoader(text, where).get_single_data()
    except UserError:
        raise
    except Exception as error:  # not YAML, or a value such as the date 2001-99-99
        raise UserError(f"{where} is not valid YAML: {str(error)[:MAX_MESSAGE]}") from None


def parse_keys(text: str, where: str, example: str) -> Mapping[str, Any]:
    """Parse YAML that must be a mapping; `example` names some of its keys, for the error."""
    values = parse_yaml(text, where)
    if not isinstance(values, dict):
        raise UserError(f"{where}: expected keys such as {example}, got {type(values).__name__}")
    return values
