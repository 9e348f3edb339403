"""Label matchers and selectors as text, with the quotes that their names need."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from promql.literals import quote

MatchOp = Literal["=", "!=", "=~", "!~"]

_REGEX_META = re.compile(r"([\\.+*?()|\[\]{}^$])")
NEVER_METRICS = frozenset({"atan2", "bool", "group_left", "group_right", "ignoring", "on"})
"""Keywords that need quotes where they name a metric."""

PATTERN_ERRORS = (re.error, RecursionError, OverflowError)
"""Exceptions of Python for patterns that it cannot compile, such as deep or long ones."""

_PLAIN_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_PLAIN_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_NUMBER_WORDS = frozenset({"inf", "nan"})


class Template(str):
    """PromQL source with a Grafana variable in place of a name, a number or a value."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Matcher:
    """One label matcher of a selector."""

    label: str
    op: MatchOp
    value: str

    def __str__(self) -> str:
        return label_text(self.label) + self.op + string_text(self.value)

    @property
    def known_value(self) -> str | None:
        """The value, None if a Grafana variable hides it."""
        return None if isinstance(self.value, Template) else self.value

    def accepts(self, value: str) -> bool:
        """Whether the matcher selects this label value; regular expressions are Python's here."""
        if "~" not in self.op:
            return (value == self.value) is (self.op == "=")
        try:
            found = re.fullmatch(self.value, value) is not None
        except PATTERN_ERRORS:  # RE2's syntax is larger
            return False
        return found is (self.op == "=~")


def selector_text(metric: str, matchers: Iterable[Matcher], templates: Iterable[str] = ()) -> str:
    """Render an instant vector selector."""
    parts = [*map(str, matchers), *templates]
    if metric and not isinstance(metric, Template) and not _is_plain_metric(metric):
        parts.insert(0, quote(metric))
        metric = ""
    if not parts:
        return metric
    return f"{metric}{{{','.join(parts)}}}"


@lru_cache(maxsize=1 << 12)
def _is_plain_metric(metric: str) -> bool:
    plain = _PLAIN_METRIC.fullmatch(metric) is not None
    return plain and metric.lower() not in NEVER_METRICS | _NUMBER_WORDS


@lru_cache(maxsize=1 << 12)
def _is_plain_label(label: str) -> bool:
    return _PLAIN_LABEL.fullmatch(label) is not None and label.lower() not in _NUMBER_WORDS


def label_text(label: str) -> str:
    """Render the name of a label, in quotes if it needs them."""
    return label if isinstance(label, Template) or _is_plain_label(label) else quote(label)


def labels_text(labels: Iterable[str]) -> str:
    """Render a list of label names."""
    return f"({', '.join(map(label_text, labels))})"


def string_text(value: str) -> str:
    """Render a string literal."""
    return value if isinstance(value, Template) else quote(value)


def known_labels(labels: Iterable[str]) -> frozenset[str]:
    """Return the labels that no Grafana variable hides."""
    return frozenset(label for label in labels if not isinstance(label, Template))


def one_of(label: str, values: Iterable[str]) -> Matcher:
    """Match any of ``values`` literally; regular-expression characters in them are escaped."""
    return Matcher(label, "=~", "|".join(_REGEX_META.sub(r"\\\1", value) for value in values))
