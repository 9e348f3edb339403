"""Lenient readers of values in files of other tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal

from promql.expr import decimal_text
from slos.errors import BadValue
from slos.imports.drafts import Notes, PlacedValue
from slos.schema import Place, Reader, expect, nearest, read_value


def read_known_keys(
    value: object, place: Place, readers: Mapping[str, Reader], notes: Notes
) -> dict[str, PlacedValue]:
    """Read the known keys of a mapping; note unknown ones, which the original tools ignore.

    A key without a value is ignored.
    """
    found: dict[str, PlacedValue] = {}
    for key, given in expect(dict, f"a mapping with the keys {', '.join(readers)}", value).items():
        here = place.at(key)
        if key not in readers:
            near = nearest(key, readers)
            fix = f"write {near}" if near else f"known keys are {', '.join(readers)}"
            notes.left_out(here, "is not a key of this format", fix)
        elif given is not None and (read := read_value(readers[key], given, here)) is not None:
            found[key] = PlacedValue(read, here)
    return found


def read_optional_mapping(
    value: object, place: Place, readers: Mapping[str, Reader], notes: Notes
) -> dict[str, PlacedValue]:
    """Read known keys as :func:`read_known_keys`; return nothing for any other value."""
    return read_value(lambda v, p: read_known_keys(v, p, readers, notes), value, place) or {}


def check_required_keys(
    found: Mapping[str, PlacedValue], value: object, place: Place, **wanted: str
) -> bool:
    """Refuse missing keys of a mapping; return whether all were read.

    ``value`` is the mapping that ``found`` was read from; ``wanted`` are keys with the text to add,
    such as ``": 99.9"``.
    """
    if isinstance(value, dict):  # other values are reported already
        for key, rest in wanted.items():
            if value.get(key) is None:
                place.refuse("is missing", f"add {key}{rest}", key)
    return found.keys() >= wanted.keys()


def items(value: object, place: Place) -> Iterator[tuple[object, Place]]:
    """Yield the entries of a list with their places."""
    found: list[object] = read_value(lambda v, _: expect(list, "a list", v), value, place) or []
    for index, item in enumerate(found):
        yield item, place.at(index)


def anything(value: object, _: Place) -> object:
    """Accept any value."""
    return value


def text(value: object, _: Place) -> str:
    """Read text; write a number or a boolean as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return decimal_text(Decimal(repr(value))) if abs(value) < 1e15 else repr(value)
    found: str = expect(str, "text", value)
    return found


def boolean(value: object, _: Place) -> bool:
    """Read ``true`` or ``false``."""
    if not isinstance(value, bool):
        raise BadValue("is neither true nor false", "write true or false")
    return value


def text_mapping(value: object, place: Place) -> dict[str, PlacedValue]:
    """Read a mapping of names to text."""
    given: dict[str, object] = expect(dict, "a mapping of names to text", value)
    read = {key: read_value(text, each, place.at(key)) for key, each in given.items()}
    return {key: PlacedValue(each, place.at(key)) for key, each in read.items() if each is not None}


def percent(value: object, place: Place) -> str:
    """Read a percentage without its sign: 99.9 or ``"99.9"``."""
    return f"{decimal_text(_number(value, '99.9'))}%"


def share(value: object, place: Place) -> str:
    """Read a ratio such as 0.999 as a percentage."""
    return f"{decimal_text(_number(value, '0.999') * 100)}%"


def number(value: object, place: Place) -> str:
    """Read a number as text."""
    return decimal_text(_number(value, "0.95"))


def _number(value: object, example: str) -> Decimal:
    written = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,8}(?:\.[0-9]{1,9})?", written):
        raise BadValue("is not a number", f"write a number such as {example}")
    return Decimal(written)


METADATA: dict[str, Reader] = {
    **dict.fromkeys(("name", "namespace"), text),
    **dict.fromkeys(("labels", "annotations"), text_mapping),
    **dict.fromkeys(
        ("uid", "generation", "resourceVersion", "creationTimestamp", "managedFields"), anything
    ),
}
"""Readers of the metadata of a Kubernetes object."""


def note_object_metadata(
    found: Mapping[str, PlacedValue], notes: Notes, kept: str = "", *, annotate: str
) -> None:
    """Note the :data:`METADATA` that describes only the Kubernetes object.

    Labels and annotations that begin with ``kept`` are not noted; ``annotate`` is the fix for
    annotations.
    """
    if "namespace" in found:
        notes.left_out(
            found["namespace"].place,
            "is left out: it is the namespace of the rules, not of the service",
            "add labels: {namespace: …} if alerts need it",
        )
    reasons = {
        "labels": (
            "is left out: it only selects the Prometheus that loads the rules",
            "add it to the PrometheusRule with the generated rules",
        ),
        "annotations": ("is left out: it is not for alerts", annotate),
    }
    for field, (why, fix) in reasons.items():
        for key, value in (found[field].value if field in found else {}).items():
            if not (kept and key.startswith(kept)):
                notes.left_out(value.place, why, fix)
