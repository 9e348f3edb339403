"""Nodes of a composed text, and the options of :mod:`documents.composer`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar as written: ``style`` is its quote, ``|`` or ``>``, and empty for a plain one."""

    text: str
    line: int
    style: str


class RefusedScalar(ValueError):  # noqa: N818  (reads as a statement at the raise)
    """An invalid scalar: the message and the fix."""

    def __init__(self, message: str, fix: str) -> None:
        self.message, self.fix = message, fix
        super().__init__(message)


@dataclass(slots=True)
class Node:
    """A composed value: a scalar, or children by index or key, each with its line."""

    value: object = None
    items: list[tuple[int, Node]] | None = None
    entries: dict[str, tuple[int, Node]] | None = None
    size: int = 1
    height: int = 1

    def plain(self) -> Any:
        """Return the value without lines."""
        if self.items is not None:
            return [child.plain() for _, child in self.items]
        if self.entries is not None:
            return {key: child.plain() for key, (_, child) in self.entries.items()}
        return self.value


@dataclass(frozen=True, slots=True)
class ComposeOptions:
    """How to read a text.

    ``scalar`` makes a value of a scalar; it refuses one with :class:`RefusedScalar`.
    ``strict`` refuses tags, duplicate keys, keys that are not text, merge keys and unprintable
    characters; otherwise tags are ignored, the last of two equal keys wins, and ``<<`` is a key.
    ``syntax_fix`` replaces the fixes of syntax errors.
    """

    scalar: Callable[[Scalar], object]
    max_nodes: int
    max_depth: int
    strict: bool = True
    syntax_fix: str = ""


def too_deep(max_depth: int) -> tuple[str, str]:
    """Return message and fix for a value with too many levels."""
    return f"is nested deeper than {max_depth} levels", "flatten it"


def too_many(max_nodes: int) -> tuple[str, str]:
    """Return message and fix for a document with too many values."""
    return f"holds more than {max_nodes:,} values, aliases counted", "split it into several files"
