"""Registries that other installed packages can extend through entry points."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from stochseg.errors import UserError, lookup

V = TypeVar("V")


class Registry(MutableMapping[str, V]):
    """Named objects: those registered in this process, and those that installed packages declare as entry points.

    An entry point is imported when its name is looked up, not before; iterating yields names and imports nothing. A
    name registered in this process takes precedence over an entry point of the same name.

    Args:
        kind: Noun for error messages, such as "data set".
        group: Entry-point group, such as "stochseg.datasets".

    Example:
        >>> shapes = Registry("shape", "stochseg.shapes")
        >>> shapes["circle"] = "round"
        >>> shapes.find("circle"), list(shapes)
        ('round', ['circle'])
        >>> shapes.find("square")
        Traceback (most recent call last):
        stochseg.errors.UserError: unknown shape 'square'; known: circle

    A package adds "hexagon" with these lines in its pyproject.toml:

        [project.entry-points."stochseg.shapes"]
        hexagon = "its_module:its_object"
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind, self.group = kind, group
        self._entries: dict[str, V] = {}

    def find(self, name: str) -> V:
        """Look up an entry; an unknown name is a `UserError` that lists the known ones."""
        return lookup(self.kind, self, name)

    def __getitem__(self, name: str) -> V:
        if name not in self._entries:
            self._load(name)
        return self._entries[name]

    def __setitem__(self, name: str, entry: V) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or (isinstance(name, str) and bool(self._plugins(name)))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._entries, *entry_points(group=self.group).names]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _plugins(self, name: str) -> list[EntryPoint]:
        return list(entry_points(group=self.group, name=name))

    def _load(self, name: str) -> None:
        """Import the entry point `name`, if there is one. Its module may also register the name itself."""
        plugins = self._plugins(name)
        packages = " and ".join(sorted(plugin.dist.name if plugin.dist else plugin.value for plugin in plugins))
        if len(plugins) > 1:
            raise UserError(f"{self.kind} {name!r} is declared by {packages}; uninstall all but one of them")
        for plugin in plugins:
            try:
                entry = plugin.load()
            except Exception as error:
                raise UserError(
                    f"{self.kind} {name!r}: {plugin.value} of the package {packages} cannot be imported "
                    f"({type(error).__name__}: {error}); update or uninstall that package"
                ) from error
            if name not in self._entries:
                self[name] = entry
