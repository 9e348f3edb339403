"""The evidence model as data: priors of hypotheses, and likelihoods of check results.

``runbooks/evidence.yaml`` holds the figures and their reasons; :func:`load_evidence` checks all of
it against the playbooks and the checks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

import runbooks
from runbooks.checks import CHECKS
from runbooks.playbooks import PLAYBOOKS
from slos.document import read_document
from slos.errors import BadValue, InvalidFile, in_order, quoted
from slos.schema import Field, Place, expect, read_mapping, read_value

EVIDENCE_FILE = Path(runbooks.__file__).parent / "evidence.yaml"
HEALTHY = "healthy"
UNKNOWN = "unknown"
ALERTS, ABSENT_ALERTS = "alerts", "absent_alerts"
"""Checks of firing alerts, which no runbook page has."""

Objectives = Literal["any", "signals", "queries"]
"""Which objectives a hypothesis can explain: any, or by the kind of their indicator."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A possible cause: the key of a playbook, ``healthy`` or ``unknown``.

    ``prior`` is its weight before any check; those of a diagnosis are scaled to a sum of 1.
    """

    key: str
    prior: float
    objectives: Objectives = "any"


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The probability of a sick result: ``usual``, or that of a hypothesis in ``sick``.

    Checks of one ``group`` measure nearly the same thing; an empty group is the check's own.
    """

    check: str
    usual: float
    sick: Mapping[str, float]
    group: str = ""

    def of(self, hypothesis: str, *, sick: bool) -> float:
        """Return the probability of a result, if the hypothesis is true."""
        probability = self.sick.get(hypothesis, self.usual)
        return probability if sick else 1 - probability


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence model.

    A cause is named if its probability is at least ``likely`` and at least ``odds`` times that of
    the next hypothesis.  ``unweighed`` are checks that pages show and the model leaves out, and
    ``not_causes`` playbooks that are no hypotheses.
    """

    likely: float
    odds: float
    hypotheses: Mapping[str, Hypothesis]
    likelihoods: Mapping[str, Likelihood]
    unweighed: frozenset[str] = frozenset()
    not_causes: frozenset[str] = frozenset()


@lru_cache
def default_evidence() -> Evidence:
    """Return the packaged evidence model."""
    return load_evidence(EVIDENCE_FILE)


def load_evidence(path: str | Path) -> Evidence:
    """Read an evidence model; raises :class:`~slos.errors.InvalidFile` with all problems."""
    document = read_document(path)
    place = Place(document, [])
    read = read_value(partial(read_mapping, _FILE), document.value, place)
    if place.problems:
        raise InvalidFile(in_order(place.problems))
    evidence = Evidence(
        read["decision"]["likely"],
        read["decision"]["odds"],
        {key: Hypothesis(key, **fields) for key, fields in read["hypotheses"].items()},
        {key: Likelihood(key, **fields) for key, fields in read["checks"].items()},
        frozenset(read["unweighed"]),
        frozenset(read["not_causes"]),
    )
    _check_references(evidence, read["groups"], place)
    if place.problems:
        raise InvalidFile(in_order(place.problems))
    return evidence


def _check_references(evidence: Evidence, groups: Collection[str], place: Place) -> None:
    """Refuse unknown hypotheses and groups, and a missing ``healthy`` or ``unknown``."""
    for key in {HEALTHY, UNKNOWN} - {*evidence.hypotheses}:
        place.at("hypotheses").refuse("is missing", f"add {key}", key)
    for check, likelihood in evidence.likelihoods.items():
        at = place.at("checks").at(check)
        if likelihood.group and likelihood.group not in groups:
            at.at("group").refuse(f"{quoted(likelihood.group)} is no group", "add it to groups")
        for key in likelihood.sick:
            if key == UNKNOWN:
                fix = "delete it: `usual` is the probability of an unknown cause"
                at.at("sick").at(key).refuse("is not allowed", fix)
            elif key not in evidence.hypotheses:
                at.at("sick").at(key).refuse("is no hypothesis", "add it to hypotheses")
    for check in evidence.unweighed & {*evidence.likelihoods}:
        place.at("unweighed").at(check).refuse("is in checks too", "delete one of them")
    for key in evidence.not_causes & {*evidence.hypotheses}:
        place.at("not_causes").at(key).refuse("is in hypotheses too", "delete one of them")
    used = {likelihood.group for likelihood in evidence.likelihoods.values()}
    for group in {*groups} - used:
        place.at("groups").at(group).refuse("has no check", "delete it")


def _probability(value: object, _: Place) -> float:
    number = float(expect((int, float), "a probability, such as 0.2", value))
    if not 0 < number < 1:
        raise BadValue(f"{number:g} is not between 0 and 1", "write a probability, such as 0.2")
    return number


def _odds(value: object, _: Place) -> float:
    number = float(expect((int, float), "a ratio of at least 1, such as 3", value))
    if not 1 <= number <= 1_000:
        raise BadValue(f"{number:g} is out of bounds", "write a ratio from 1 to 1,000")
    return number


def _text(value: object, _: Place) -> str:
    text: str = expect(str, "text", value)
    if not text.strip():
        raise BadValue("is empty", "write a reason")
    return text


def _choice(value: object, _: Place) -> str:
    choices = get_args(Objectives)
    if value not in choices:
        raise BadValue("is not known", f"write one of {', '.join(choices)}")
    return str(value)


def _fields(fields: tuple[Field, ...], value: object, place: Place) -> dict[str, Any]:
    """Read a mapping and leave out its reasons, which are for readers of the file."""
    read = read_mapping(fields, value, place)
    read.pop("reason", None)
    return read


def _table(known: Collection[str], kind: str, value: object, place: Place) -> dict[str, Any]:
    """Read a mapping from known keys; ``kind`` names them in messages."""
    read = {}
    for key, part in expect(dict, f"a mapping by {kind}", value).items():
        if known and key not in known:
            place.at(key).refuse(f"is no {kind}", f"write the key of a {kind}")
            continue
        reader = _READERS[kind]
        read[key] = read_value(reader, part, place.at(key))
    return read


def _field(name: str, reader: Any, required: str = "") -> Field:
    return Field(name, reader, required, about="", shape={})


_READERS: Mapping[str, Any] = {
    "playbook": partial(
        _fields,
        (
            _field("prior", _probability, "0.05"),
            _field("objectives", _choice),
            _field("reason", _text, "why"),
        ),
    ),
    "check": partial(
        _fields,
        (
            _field("group", _text),
            _field("usual", _probability, "0.05"),
            _field("sick", partial(_table, (), "hypothesis"), "{kv_pressure: 0.9}"),
            _field("reason", _text, "why"),
        ),
    ),
    "hypothesis": _probability,
    "group": _text,
    "unweighed check": _text,
    "state": _text,
}

_FILE = (
    _field(
        "decision",
        partial(
            _fields,
            (
                _field("likely", _probability, "0.8"),
                _field("odds", _odds, "3"),
                _field("reason", _text, "why"),
            ),
        ),
        "{likely: 0.8, odds: 3}",
    ),
    _field(
        "hypotheses",
        partial(_table, {*PLAYBOOKS, HEALTHY, UNKNOWN}, "playbook"),
        "{healthy: {prior: 0.3}}",
    ),
    _field("groups", partial(_table, (), "group"), "{}"),
    _field("checks", partial(_table, {*CHECKS, ALERTS, ABSENT_ALERTS}, "check"), "{}"),
    _field("unweighed", partial(_table, {*CHECKS}, "unweighed check"), "{}"),
    _field("not_causes", partial(_table, {*PLAYBOOKS}, "state"), "{}"),
)
