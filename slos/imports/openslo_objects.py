"""OpenSLO's objects, taken apart, with those that others refer to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slos.document import Document
from slos.errors import BadValue, Problem, quoted
from slos.imports.foreign import At, Notes, anything, has_all, taken, text
from slos.schema import Place, Reader

ALERTS = ("AlertPolicy", "AlertCondition", "AlertNotificationTarget")
_KINDS = ("SLO", "SLI", "Service", "DataSource", *ALERTS)
_REFERRED_TO = ("SLI", "Service", "DataSource")


@dataclass(frozen=True, slots=True)
class Object:
    """One object of a file, taken apart."""

    kind: str
    metadata: Mapping[str, At]
    spec: At

    @property
    def name(self) -> str:
        """What others call it."""
        return str(self.metadata["name"].value)


@dataclass(frozen=True, slots=True)
class File:
    """All objects of a file in its order, and where notes go."""

    objects: list[Object]
    notes: Notes
    _named: Mapping[tuple[str, str], Object]
    _used: set[tuple[str, str]] = field(default_factory=set)

    def named(self, kind: str, name: str) -> Object | None:
        """Return the object that is referred to by its name."""
        self._used.add((kind, name))
        return self._named.get((kind, name))

    def unused(self, kind: str) -> Iterator[Object]:
        """Yield what nobody has referred to."""
        for each in self.objects:
            if each.kind == kind and (kind, each.name) not in self._used:
                yield each


def read_objects(documents: list[Document], problems: list[Problem], notes: Notes) -> File:
    """Take the objects of a file apart; no two that can be referred to have the same name."""
    objects = [
        found
        for document in documents
        if (found := _object(document.value, Place(document, problems), notes))
    ]
    named: dict[tuple[str, str], Object] = {}
    for each in objects:
        first = named.setdefault((each.kind, each.name), each)
        if first is not each and each.kind in _REFERRED_TO:
            place = each.metadata["name"].place
            line = first.metadata["name"].place.line
            where = f"on line {line} already" if line else "in this file twice"
            message = f"the {each.kind} {quoted(each.name)} stands {where}"
            place.refuse(message, "give it a name of its own")
    return File(objects, notes, named)


def _object(value: object, place: Place, notes: Notes) -> Object | None:
    readers: dict[str, Reader] = {"apiVersion": text, "kind": _kind}
    found = taken(value, place, {**readers, "metadata": anything, "spec": anything}, notes)
    if not has_all(found, value, place, kind="", metadata=""):
        return None
    about = found["metadata"]
    more = {"name": text, "displayName": text, "labels": _labels, "annotations": anything}
    metadata = taken(about.value, about.place, more, notes)
    if not has_all(metadata, about.value, about.place, name=""):
        return None
    return Object(str(found["kind"].value), metadata, found.get("spec") or At({}, place))


def _kind(value: object, place: Place) -> str:
    kind = text(value, place)
    if kind not in _KINDS:
        message = f"{quoted(kind)} is not a kind of OpenSLO"
        raise BadValue(message, f"write one of {', '.join(_KINDS)}")
    return kind


def _labels(value: object, place: Place) -> dict[str, At]:
    """Read labels, of which v1 allows several values each."""
    if not isinstance(value, dict):
        raise BadValue("is no mapping", "write names with their values")
    return {
        key: At(", ".join(map(str, part)) if isinstance(part, list) else str(part), place.at(key))
        for key, part in value.items()
    }
