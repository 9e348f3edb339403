"""One value of a configuration file, with its file, line and path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from documents.nodes import Node

TEMPLATE = re.compile(r"\$\{[^}]*\}")
"""A value of NVIDIA's templates that was not filled in."""
_NULL = frozenset({"", "~", "null"})


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it is; ``line`` is 0 for what a server returned."""

    file: str
    line: int
    path: str
    node: Node

    def get(self, *keys: str) -> Setting | None:
        """Return the value below ``keys``; of a repeated field the last one."""
        found = self
        for key in keys:
            below = found.each(key)
            if not below:
                return None
            found = below[-1]
        return found

    def each(self, key: str) -> list[Setting]:
        """Return all values of a field: the elements of a list, or the one value."""
        if self.node.entries is None or key not in self.node.entries:
            return []
        line, child = self.node.entries[key]
        path = f"{self.path}.{key}" if self.path else key
        if child.items is None:
            return [Setting(self.file, line, path, child)]
        return [
            Setting(self.file, line, f"{path}[{index}]", item)
            for index, (line, item) in enumerate(child.items)
        ]

    def walk(self) -> Iterator[Setting]:
        """Yield this value and all below it."""
        yield self
        for key in self.node.entries or ():
            for child in self.each(key):
                yield from child.walk()
        for index, (line, item) in enumerate(self.node.items or ()):
            yield from Setting(self.file, line, f"{self.path}[{index}]", item).walk()

    @property
    def text(self) -> str:
        """The scalar as text, empty for null, a mapping or a list."""
        if self.node.entries is not None or self.node.items is not None:
            return ""
        value = self.node.value
        if isinstance(value, bool):
            return str(value).lower()
        return "" if value is None or str(value).lower() in _NULL else str(value)

    @property
    def number(self) -> float | None:
        """The scalar as a finite number, None if it is none."""
        try:
            value = float(self.text)
        except ValueError:
            return None
        return value if abs(value) < float("inf") else None

    @property
    def true(self) -> bool:
        """Whether the scalar is true, as protobuf text and Triton's backends read it."""
        return self.text.lower() in ("true", "t", "1", "yes", "on")

    @property
    def templates(self) -> list[str]:
        """The unfilled ``${…}`` of the scalar."""
        return TEMPLATE.findall(self.text)
