"""Convert SLO files of other tools.

Each module reads one format and yields drafts, which :mod:`slos.load` reads and checks like a file
of tokenslo.  A note reports each part that is not converted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

from slos.document import Document, Keys, field_name
from slos.errors import Problem, quoted
from slos.imports.drafts import Notes
from slos.schema import Place


@dataclass(frozen=True, slots=True)
class _FileFormat:
    """A format, recognized by the value of ``key``; ``kinds`` are its Kubernetes kinds."""

    tool: str
    module: str
    key: str
    prefix: str
    versions: tuple[str, ...]
    kinds: tuple[str, ...] = ()


_FORMATS = (
    _FileFormat("Sloth", "sloth", "version", "prometheus/", ("prometheus/v1",)),
    _FileFormat(
        "Sloth",
        "sloth",
        "apiVersion",
        "sloth.slok.dev/",
        ("sloth.slok.dev/v1",),
        ("PrometheusServiceLevel", "AlertWindows"),
    ),
    _FileFormat("OpenSLO", "openslo", "apiVersion", "openslo/", ("openslo/v1", "openslo/v1alpha")),
    _FileFormat(
        "OpenSLO",
        "openslo",
        "apiVersion",
        "openslo.com/",
        ("openslo.com/v1", "openslo.com/v2alpha"),
    ),
    _FileFormat(
        "Pyrra",
        "pyrra",
        "apiVersion",
        "pyrra.dev/",
        ("pyrra.dev/v1alpha1",),
        ("ServiceLevelObjective",),
    ),
)


def convert_documents(
    documents: Iterable[Document], problems: list[Problem], notes: Notes
) -> Iterator[Document]:
    """Yield the documents of a file, those of other tools as drafts; flatten lists.

    Other objects get a note if the file also has SLOs, else they are refused.
    """
    foreign: dict[str, list[Document]] = {}
    others: list[Document] = []
    for document in (each for whole in documents for each in _flatten(whole)):
        found = _format(document)
        if found is None:
            others.append(document)
        elif _check_version(found, Place(document, problems)):
            foreign.setdefault(found.module, []).append(document)
    for document in others:
        kind = _other_kind(document)
        place = Place(document, problems)
        if not kind:
            yield document
        elif len(others) > 1 or foreign:
            notes.left_out(place, f"{quoted(kind)} is not an SLO", "move it out")
        else:
            _refuse_version(place)
    for module, group in foreign.items():
        for draft in import_module(f"{__name__}.{module}").drafts(group, problems, notes):
            yield draft.document()


def _format(document: Document) -> _FileFormat | None:
    value = document.value
    if not isinstance(value, dict):
        return None
    for each in _FORMATS:
        if each.key == "version" and "apiVersion" in value:
            continue
        if str(value.get(each.key, "")).startswith(each.prefix):
            return each
    return None


def _check_version(found: _FileFormat, place: Place) -> bool:
    """Refuse unsupported versions and kinds of a tool."""
    value = place.document.value
    assert isinstance(value, dict)  # noqa: S101  (checked by _format)
    known = {found.key: found.versions} | ({"kind": found.kinds} if found.kinds else {})
    before = len(place.problems)
    for key, supported in known.items():
        if value.get(key) not in supported:
            given = quoted(str(value.get(key)))
            message = f"{given} of {found.tool} is not supported"
            place.at(key).refuse(message, f"give {' or '.join(supported)}")
    return len(place.problems) == before


def _refuse_version(place: Place) -> None:
    """Refuse an object because of its version."""
    value = place.document.value
    assert isinstance(value, dict)  # noqa: S101  (checked by _other_kind)
    known = [version for each in _FORMATS for version in each.versions]
    place.at("apiVersion").refuse(
        f"{quoted(str(value['apiVersion']))} is not a version that tokenslo supports",
        f"write tokenslo/v1, or give a file with {', '.join(known)}",
    )


def _other_kind(document: Document) -> str:
    """Return the kind of a Kubernetes object that has no SLO, empty if it may have one."""
    value = document.value
    if not isinstance(value, dict) or "tokenslo" in str(value.get("apiVersion")):
        return ""
    kind = value.get("kind")
    return kind if isinstance(kind, str) and "apiVersion" in value else ""


def _flatten(document: Document) -> Iterator[Document]:
    """Yield the objects of a list or of a Kubernetes ``List``, or the value itself."""
    value = document.value
    path: Keys = ()
    if isinstance(value, dict) and value.get("kind") == "List":
        path, value = ("items",), value.get("items")
    objects = value if isinstance(value, list) else []
    if not any(isinstance(each, dict) and "apiVersion" in each for each in objects):
        yield document
        return
    depth = len(path)
    lines: list[dict[Keys, int]] = [{} for _ in objects]
    for keys, line in document.lines.items():
        if len(keys) > depth and keys[:depth] == path and isinstance(index := keys[depth], int):
            lines[index][keys[depth + 1 :]] = line
    for index, each in enumerate(objects):
        yield _embedded(document, each, (*path, index), lines[index])


def _embedded(
    document: Document, value: object, prefix: Keys, lines: Mapping[Keys, int]
) -> Document:
    """Return an object of a list as a document with the lines of the file."""
    names = {path: field_name((*prefix, *path)) for path in _paths(value)}
    return Document(document.file, value, lines, names)  # type: ignore[arg-type]


def _paths(value: object, path: Keys = ()) -> Iterator[Keys]:
    yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _paths(part, (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _paths(part, (*path, index))
