"""Problems in input files, with file, line, field and fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field as field_

from documents.files import quoted as quoted


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of an input file.

    ``line`` is 1-based, and 0 for the file as a whole or for Jsonnet, whose output has no lines;
    ``field`` is a path such as ``objectives[1].target``, empty for the whole file.  ``twin`` is the
    line and the field of the anchor, if the problem is about an alias.
    """

    file: str
    line: int
    field: str
    message: str
    fix: str
    twin: tuple[int, str] | None = field_(default=None, compare=False)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        subject = f"{self.field}: " if self.field else ""
        return f"{place}: {subject}{self.message}. Fix: {self.fix}."


class InvalidFile(ValueError):  # noqa: N818  (reads as a statement at the raise)
    """An input file was refused; ``problems`` holds every reason, in file order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Sort problems by line; report one of a value once, not for each of its aliases."""
    found = dict.fromkeys(problems)
    reported = {(each.line, each.field, each.message) for each in found}
    once = [
        each for each in found if each.twin is None or (*each.twin, each.message) not in reported
    ]
    return sorted(once, key=lambda problem: problem.line)


class BadValue(ValueError):  # noqa: N818  (likewise)
    """A value was refused: message and fix; the caller adds the place."""

    def __init__(self, message: str, fix: str) -> None:
        self.message, self.fix = message, fix
        super().__init__(f"{message}; {fix}")
