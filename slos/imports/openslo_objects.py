"""Index the objects of an OpenSLO file for references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slos.document import Document
from slos.errors import BadValue, Problem, quoted
from slos.imports.drafts import Notes, PlacedValue
from slos.imports.readers import anything, check_required_keys, read_optional_mapping, text
from slos.schema import Place, Reader

ALERTS = ("AlertPolicy", "AlertCondition", "AlertNotificationTarget")
_KINDS = ("SLO", "SLI", "Service", "DataSource", *ALERTS)
_REFERENCED = ("SLI", "Service", "DataSource")


@dataclass(frozen=True, slots=True)
class Object:
    """One object of a file: kind, metadata and spec."""

    kind: str
    metadata: Mapping[str, PlacedValue]
    spec: PlacedValue

    @property
    def name(self) -> str:
        """The name for references."""
        return str(self.metadata["name"].value)


@dataclass(frozen=True, slots=True)
class File:
    """The objects of a file in order, the notes, and which objects were referred to."""

    objects: list[Object]
    notes: Notes
    _named: Mapping[tuple[str, str], Object]
    _used: set[tuple[str, str]] = field(default_factory=set)

    def named(self, kind: str, name: str) -> Object | None:
        """Return an object by kind and name, and mark it as used."""
        self._used.add((kind, name))
        return self._named.get((kind, name))

    def unused(self, kind: str) -> Iterator[Object]:
        """Yield the objects of a kind to which nothing refers."""
        for each in self.objects:
            if each.kind == kind and (kind, each.name) not in self._used:
                yield each


def read_objects(documents: list[Document], problems: list[Problem], notes: Notes) -> File:
    """Read the objects of a file; referenced objects need distinct names."""
    objects = [
        found
        for document in documents
        if (found := _object(document.value, Place(document, problems), notes))
    ]
    named: dict[tuple[str, str], Object] = {}
    for each in objects:
        first = named.setdefault((each.kind, each.name), each)
        if first is not each and each.kind in _REFERENCED:
            place = each.metadata["name"].place
            line = first.metadata["name"].place.line
            where = f"on line {line} already" if line else "twice in this file"
            message = f"the {each.kind} {quoted(each.name)} is defined {where}"
            place.refuse(message, "give it a unique name")
    return File(objects, notes, named)


def _object(value: object, place: Place, notes: Notes) -> Object | None:
    readers: dict[str, Reader] = {"apiVersion": text, "kind": _kind}
    found = read_optional_mapping(
        value, place, {**readers, "metadata": anything, "spec": anything}, notes
    )
    if not check_required_keys(found, value, place, kind="", metadata=""):
        return None
    about = found["metadata"]
    more = {"name": text, "displayName": text, "labels": _labels, "annotations": anything}
    metadata = read_optional_mapping(about.value, about.place, more, notes)
    if not check_required_keys(metadata, about.value, about.place, name=""):
        return None
    return Object(str(found["kind"].value), metadata, found.get("spec") or PlacedValue({}, place))


def _kind(value: object, place: Place) -> str:
    kind = text(value, place)
    if kind not in _KINDS:
        message = f"{quoted(kind)} is not a kind of OpenSLO"
        raise BadValue(message, f"write one of {', '.join(_KINDS)}")
    return kind


def _labels(value: object, place: Place) -> dict[str, PlacedValue]:
    """Read labels, which may have several values each in v1."""
    if not isinstance(value, dict):
        raise BadValue("is not a mapping", "write names with their values")
    return {
        key: PlacedValue(
            ", ".join(map(str, label)) if isinstance(label, list) else str(label), place.at(key)
        )
        for key, label in value.items()
    }
