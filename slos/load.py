"""Load an SLO file and check it completely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slos.document import scan_documents
from slos.errors import InvalidFile, Problem, in_order, quoted
from slos.imports import convert_documents
from slos.imports.drafts import Note, Notes
from slos.language import read_services
from slos.model import Service
from slos.prompt_classes import class_conflicts
from slos.schema import Place, read_value


@dataclass(frozen=True, slots=True)
class Loaded:
    """The services of a file, and notes about parts that were not converted."""

    services: tuple[Service, ...]
    notes: tuple[Note, ...] = ()


def load_file(path: str | Path, libraries: Sequence[Path] = (), *, partly: bool = False) -> Loaded:
    """Read all services of a file of tokenslo or of another tool.

    ``libraries`` are further folders for Jsonnet imports.  Raises
    :class:`~slos.errors.InvalidFile` with all problems in file order.  An objective of another tool
    that cannot be converted exactly is a problem, unless ``partly``: then it is a note.
    """
    documents, problems = scan_documents(path, libraries)
    notes = Notes()
    services = []
    named: dict[str, Place] = {}
    for document in convert_documents(documents, problems, notes):
        place = Place(document, problems)
        for read, at in read_value(read_services, document.value, place) or ():
            _is_new(read.get("service"), at, named)
            if not problems:
                services.append(Service(file=document.file, **read))
    problems += class_conflicts(services)
    if not (services or problems or any(note.lost for note in notes.found)):
        fix = "give a file with at least one SLO"
        problems.append(Problem(str(path), 0, "", "has no SLO", fix))
    if not partly:
        problems += [note.problem for note in notes.found if note.lost]
    if problems:
        raise InvalidFile(in_order(problems))
    return Loaded(tuple(services), tuple(sorted(notes.found, key=lambda note: note.problem.line)))


def _is_new(name: str | None, place: Place, named: dict[str, Place]) -> None:
    """Refuse a service with the name of an earlier one of the file."""
    if name is None:
        return
    first = named.setdefault(name, place)
    if first is not place:
        line = first.at("service").line
        where = f"line {line} of this file" if line else first.name
        message = f"{quoted(name)} is also the service of {where}"
        place.at("service").refuse(message, "give every service a name of its own")
