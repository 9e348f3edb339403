"""Problems in input files: each one names file, line, field and fix."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input file.

    ``line`` is 1-based and 0 where the file as a whole is meant (or for Jsonnet, whose output has
    no lines); ``field`` is a path such as ``objectives[1].target``, empty for the whole file.
    """

    file: str
    line: int
    field: str
    message: str
    fix: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        subject = f"{self.field}: " if self.field else ""
        return f"{place}: {subject}{self.message}. Fix: {self.fix}."


class InvalidFile(ValueError):  # noqa: N818  (reads as a statement at the raise)
    """An input file was refused; ``problems`` holds every reason, in file order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class BadValue(ValueError):  # noqa: N818  (likewise)
    """One value was refused: what is wrong and how to mend it; the caller knows where it stands."""

    def __init__(self, message: str, fix: str) -> None:
        self.message, self.fix = message, fix
        super().__init__(f"{message}; {fix}")


def quoted(text: str, limit: int = 60) -> str:
    """Quote a piece of a file for a message: one line, printable, at most ``limit`` characters."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    return "".join(
        c if c.isprintable() else f"\\u{ord(c):04x}" for c in json.dumps(cut, ensure_ascii=False)
    )
