"""Problems in input files: each one names file, line, field and fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field as field_

from documents.files import quoted as quoted


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input file.

    ``line`` is 1-based and 0 where the file as a whole is meant (or for Jsonnet, whose output has
    no lines); ``field`` is a path such as ``objectives[1].target``, empty for the whole file.
    ``twin`` is the line and the field of what an alias stands for, if it is about an alias.
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
    """Sort by line; what is wrong with a value is not told again of each alias of it."""
    found = dict.fromkeys(problems)
    told = {(each.line, each.field, each.message) for each in found}
    once = [each for each in found if each.twin is None or (*each.twin, each.message) not in told]
    return sorted(once, key=lambda problem: problem.line)


class BadValue(ValueError):  # noqa: N818  (likewise)
    """One value was refused: what is wrong and how to mend it; the caller knows where it stands."""

    def __init__(self, message: str, fix: str) -> None:
        self.message, self.fix = message, fix
        super().__init__(f"{message}; {fix}")
