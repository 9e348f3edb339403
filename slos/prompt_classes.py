"""Prompt classes: ranges of the number of input tokens, as values of the label ``prompt_class``.

An SLO file enables them by their upper bounds, ``prompt_classes: [512, 4k, 32k]``, and ``k`` is
1,024.  The classes of this example are ``0-512``, ``513-4096``, ``4097-32768`` and ``over-32768``;
``unknown`` is a request whose length is not known.  Their order is that of their first number.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from slos.errors import BadValue, InvalidFile, Problem, quoted

if TYPE_CHECKING:
    from slos.model import Service

UNKNOWN = "unknown"
MAX_BOUNDS = 6
"""The limit of upper bounds: each adds series to every model."""
MAX_CLASSES = MAX_BOUNDS + 2
"""Classes of the most upper bounds, with those above the last one and unknown ones."""
MAX_TOKENS = 10_000_000
K = 1_024
BOUND_PATTERN = r"^[1-9][0-9]{0,7}k?$"
EXAMPLE = "[512, 4k, 32k]"
_BOUND = re.compile(BOUND_PATTERN)


def parse_tokens(text: str) -> int:
    """Read a number of tokens such as ``512`` or ``4k``; raises BadValue."""
    if not _BOUND.fullmatch(text):
        raise BadValue(f"{quoted(text)} is not a number of tokens", "write one, such as 512 or 4k")
    tokens = int(text.removesuffix("k")) * (K if text.endswith("k") else 1)
    if tokens > MAX_TOKENS:
        raise BadValue(f"{text} is above {MAX_TOKENS:,}", f"write at most {MAX_TOKENS:,}")
    return tokens


def tokens_text(tokens: int) -> str:
    """Write a number of tokens: ``512``, ``4k``."""
    return str(tokens) if tokens % K else f"{tokens // K}k"


def check_ascending(bounds: Iterable[int]) -> None:
    """Refuse upper bounds that are not in ascending order; raises BadValue."""
    for before, after in pairwise(bounds):
        if after <= before:
            raise BadValue(f"{after} follows {before}", "write the bounds in ascending order")


@dataclass(frozen=True, slots=True)
class PromptClasses:
    """The classes of ascending upper ``bounds``; without any there are no classes."""

    bounds: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    """The label values: by length, then ``unknown``."""

    @classmethod
    def of(cls, bounds: Iterable[int]) -> PromptClasses:
        """Return the classes of ``bounds``."""
        tops = tuple(bounds)
        if not tops:
            return NO_CLASSES
        lows = (0, *(top + 1 for top in tops))
        ranges = (f"{low}-{top}" for low, top in zip(lows, tops, strict=False))
        return cls(tops, (*ranges, f"over-{tops[-1]}", UNKNOWN))

    def label(self, tokens: float | None) -> str:
        """Return the class of a prompt with a number of tokens, None if it is not known."""
        if not self.labels:
            return ""
        return UNKNOWN if tokens is None else self.labels[bisect_left(self.bounds, tokens)]


NO_CLASSES = PromptClasses()


def shared_classes(services: Iterable[Service]) -> PromptClasses:
    """Return the classes of all services that one sidecar measures.

    Raises InvalidFile if two services have different ones: the label has one set of values.
    """
    every = [*services]
    if problems := class_conflicts(every):
        raise InvalidFile(problems)
    return PromptClasses.of(
        next((each.prompt_classes for each in every if each.prompt_classes), ())
    )


def class_conflicts(services: Iterable[Service]) -> list[Problem]:
    """Return a problem for each service whose classes differ from those of the first one."""
    classed = [service for service in services if service.prompt_classes]
    if not classed:
        return []
    first = classed[0]
    theirs = ", ".join(map(tokens_text, first.prompt_classes))
    return [
        Problem(
            other.file,
            other.line,
            "prompt_classes",
            f"differs from [{theirs}] of the service {quoted(first.service)} in {first.file}",
            "give all services of a sidecar the same prompt classes",
        )
        for other in classed
        if other.prompt_classes != first.prompt_classes
    ]
