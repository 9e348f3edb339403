"""Check plain values against tables of fields, and report all problems at once.

A *reader* takes a value and its place, and returns the parsed value.  It refuses a value by raising
:class:`~slos.errors.BadValue`; a reader of a composed value continues with the other parts, so that
one problem hides no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any
from unicodedata import category

from slos.document import Document, Keys
from slos.durations import DURATION_PATTERN, SHARE_PATTERN
from slos.errors import BadValue, Problem

MAX_TEXT = 1_000
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_LONGEST_WORD = 100  # difflib's time grows with the square of a word


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a value, and the list of problems so far."""

    document: Document
    problems: list[Problem]
    path: Keys = ()

    @property
    def line(self) -> int:
        """The 1-based line; 0 if the file has no lines."""
        return self.document.line(self.path)

    @property
    def name(self) -> str:
        """The name for messages, such as ``objectives[1].target``."""
        return self.document.name(self.path)

    def at(self, key: str | int) -> Place:
        """Return the place of a part."""
        return Place(self.document, self.problems, (*self.path, key))

    def refuse(self, message: str, fix: str, key: str | None = None) -> None:
        """Report a problem here, or with a missing ``key``."""
        path = self.path if key is None else (*self.path, key)
        of, line, twin = self.document, self.line, None
        if found := of.alias(self.path):
            alias, stands = found
            line = of.line(alias)
            twin = of.line(stands), of.name((*stands, *path[len(self.path) :]))
        self.problems.append(Problem(of.file, line, of.name(path), message, fix, twin))


Reader = Callable[[object, Place], Any]
Shape = Mapping[str, object]
"""A JSON Schema that accepts all valid values."""


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a mapping; ``required`` is an example value, empty if the key is optional.

    ``about`` and ``shape`` are for editors and the reference.
    """

    name: str
    read: Reader
    required: str = ""
    _: KW_ONLY
    about: str
    shape: Shape


DURATION: Shape = {"type": "string", "pattern": DURATION_PATTERN}
SHARE: Shape = {"type": "string", "pattern": SHARE_PATTERN}
LINE: Shape = {"type": "string", "pattern": r"\S"}


def mapping_of(fields: Iterable[Field]) -> Shape:
    """Return the JSON Schema shape for :func:`read_mapping` with the same fields."""
    table = list(fields)
    required = [field.name for field in table if field.required]
    return {
        "type": "object",
        "properties": {field.name: {"description": field.about, **field.shape} for field in table},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def list_of(items: Shape, least: int = 0, most: int | None = None) -> Shape:
    """Return the shape of a list of ``least`` to ``most`` items."""
    bounds = {"minItems": least or None, "maxItems": most}
    given_bounds = {key: bound for key, bound in bounds.items() if bound is not None}
    return {"type": "array", "items": items, **given_bounds}


def names_to_text(reserved: Iterable[str]) -> Shape:
    """Return the JSON Schema shape for :func:`label_map` and :func:`text_map`."""
    free = {"pattern": rf"^(?!__){LABEL_NAME.pattern}$"}
    taken = sorted(reserved)
    return {
        "type": "object",
        "propertyNames": {**free, "not": {"enum": taken}} if taken else free,
        "additionalProperties": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT},
    }


def read_value(reader: Reader, value: object, place: Place) -> Any:
    """Return the value that ``reader`` reads, or None after reporting the problem."""
    try:
        return reader(value, place)
    except BadValue as why:
        place.refuse(why.message, why.fix)
        return None


def read_mapping(fields: Iterable[Field], value: object, place: Place) -> dict[str, Any]:
    """Read a mapping with these keys only; a key with a refused value is None."""
    table = {field.name: field for field in fields}
    found: dict[str, Any] = {}
    for key, part in expect(dict, f"a mapping with the keys {', '.join(table)}", value).items():
        if key not in table:
            fix = f"use one of {', '.join(table)}"
            if near := nearest(key, table):
                fix = f"write {near}"
                found.setdefault(near)  # a misspelt key is not missing
            place.at(key).refuse("is not a known key", fix)
        else:
            found[key] = read_value(table[key].read, part, place.at(key))
    for field in table.values():
        if field.required and field.name not in found:
            place.refuse("is missing", f"add {field.name}: {field.required}", field.name)
    return found


def expect(type_: type | tuple[type, ...], wanted: str, value: object) -> Any:
    """Return ``value`` if it is of ``type_``; ``wanted`` completes "write …"."""
    if value is None:
        raise BadValue("is empty", f"write {wanted}")
    if not isinstance(value, type_) or isinstance(value, bool):
        raise BadValue(f"is {_kind(value)}", f"write {wanted}")
    return value


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar."""
    from difflib import get_close_matches  # only for misspelled words, not in the sidecar

    near = get_close_matches(word[:_LONGEST_WORD].lower(), known, n=1)
    return near[0] if near else None


def one_line(value: object, _: Place) -> str:
    """Read one line of text for titles and annotations."""
    text = _text(value, "a line of text").strip()
    if _controls(text):
        raise BadValue("holds line breaks or control characters", 'write one line; ">" joins lines')
    return _bounded(_without_template(text))


Reserved = Mapping[str, tuple[str, str]]
"""Reason and fix by reserved name."""


def label_map(reserved: Reserved) -> Reader:
    """Read a mapping of label names to values to select."""

    def read(value: object, place: Place) -> dict[str, str]:
        return _names_to_text(value, place, reserved, _label_value)

    return read


def alert_labels(reserved: Reserved) -> Reader:
    """Read a mapping of label names to values of alerts, without templates."""

    def read(value: object, place: Place) -> dict[str, str]:
        return _names_to_text(
            value, place, reserved, lambda text, at: _without_template(_label_value(text, at))
        )

    return read


def text_map(value: object, place: Place) -> dict[str, str]:
    """Read a mapping of annotation names to text, which may have several lines and templates."""
    return _names_to_text(value, place, {}, _annotation)


def integer(least: int, most: int) -> Reader:
    """Read an integer within these bounds."""
    wanted = f"a whole number from {least} to {most:,}"

    def read(value: object, _: Place) -> int:
        number: int = expect(int, wanted, value)
        if not least <= number <= most:
            raise BadValue(f"{number} is out of bounds", f"write {wanted}")
        return number

    return read


def boolean(value: object, _: Place) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise BadValue("is not true or false", "write true or false, without quotes")
    return value


def _kind(value: object) -> str:
    kinds = ((bool, "true or false"), (int | float, "a number"), (str, "text"), (list, "a list"))
    return next((name for type_, name in kinds if isinstance(value, type_)), "a mapping")


def _text(value: object, wanted: str) -> str:
    if isinstance(value, bool | int | float):
        raise BadValue(f"is {_kind(value)}", "put it in quotes")
    text: str = expect(str, wanted, value)
    return text


def _without_template(text: str) -> str:
    """Refuse text that Prometheus would execute in an alert."""
    if "{{" in text:
        raise BadValue('holds "{{", which starts a template in alerts', "write it without braces")
    return text


def _controls(text: str) -> bool:
    """Whether ``text`` holds control characters or line breaks of any kind."""
    return any(category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text)


def _bounded(text: str) -> str:
    if not text:
        raise BadValue("is empty", "write some text")
    if len(text) > MAX_TEXT:
        raise BadValue(f"is longer than {MAX_TEXT:,} characters", "shorten it")
    return text


def _label_value(value: object, _: Place) -> str:
    text = _text(value, "text")
    if _controls(text):
        raise BadValue("holds line breaks or control characters", "write one line")
    return _bounded(text)


def _annotation(value: object, _: Place) -> str:
    text = _text(value, "text")
    if _controls(text.replace("\n", "")):
        raise BadValue("holds control characters", "delete them")
    return _bounded(text)


def _names_to_text(
    value: object, place: Place, reserved: Reserved, reader: Reader
) -> dict[str, str]:
    found = {}
    for name, text in expect(dict, "a mapping of names to text", value).items():
        if not LABEL_NAME.fullmatch(name):
            place.at(name).refuse("is not a valid name", "use letters, digits and _")
        elif name.startswith("__"):
            place.at(name).refuse("is reserved for Prometheus itself", "use another name")
        elif name in reserved:
            place.at(name).refuse(*reserved[name])
        elif (read := read_value(reader, text, place.at(name))) is not None:
            found[name] = read
    return found
