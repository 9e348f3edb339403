"""Find label values that satisfy given matchers, for synthetic series in tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from promql.expr import Matcher

Labels = Mapping[str, str]

_ANYTHING = ("", "a", "0", "200", "ok", "1")
_TRIES = 10_000
# Parts of a regular expression that match several texts.
_PART = re.compile(r"\\(?P<literal>[^\w])|(?P<digit>\\d|\[0-9\])[*+?]?|(?P<any>\.)[*+?]?|[()?*+^$]")


def accepted(matchers: Iterable[Matcher], labels: Labels) -> bool:
    """Whether a series with ``labels`` is selected; a missing label is empty."""
    return all(matcher.accepts(labels.get(matcher.label, "")) for matcher in matchers)


def example(wanted: Sequence[Matcher], unwanted: Sequence[Matcher] = ()) -> Labels | None:
    """Return labels that ``wanted`` selects and ``unwanted`` does not; None if none are found."""
    values: dict[str, list[str]] = {}
    for matcher in (*wanted, *unwanted):
        values.setdefault(matcher.label, []).extend(_candidates(matcher))
    choices = [dict.fromkeys((*found, *_ANYTHING)) for found in values.values()]
    for _, chosen in zip(range(_TRIES), product(*choices), strict=False):
        labels = dict(zip(values, chosen, strict=True))
        if accepted(wanted, labels) and not (unwanted and accepted(unwanted, labels)):
            return {name: value for name, value in labels.items() if value}
    return None


def _candidates(matcher: Matcher) -> Iterator[str]:
    if "~" not in matcher.op:
        yield matcher.value
    else:
        for alternative in matcher.value.split("|"):
            yield _PART.sub(_one, alternative)


def _one(part: re.Match[str]) -> str:
    return part["literal"] or ("0" if part["digit"] or part["any"] else "")
