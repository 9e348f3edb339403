"""Convert Sloth's files: ``version: prometheus/v1``, and the Kubernetes resource.

The keys are those of Sloth v0.16 (``pkg/prometheus/api/v1/v1.go`` and
``pkg/kubernetes/api/sloth/v1/types.go``).  Sloth takes the period from its command line, not from
the file; its default of 30 days is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slos.document import Document
from slos.errors import Problem
from slos.imports import idioms
from slos.imports.drafts import (
    SET_BY_TIERS,
    Draft,
    Notes,
    PlacedValue,
    disabled,
    fill_window,
    labels,
    name,
    non_empty,
    note_counts_per_window,
    one_line,
)
from slos.imports.readers import (
    METADATA,
    anything,
    boolean,
    check_required_keys,
    items,
    note_object_metadata,
    percent,
    read_known_keys,
    read_optional_mapping,
    text,
    text_mapping,
)
from slos.schema import Place, Reader

PERIOD = "30d"
WINDOWS = "AlertWindows"

_PLUGINS = "they would change Sloth's rules, which are not used here"


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys whose spelling differs between the two forms."""

    error: str
    total: str
    ratio: str
    page: str
    ticket: str
    plugins: str


_FILE = _Keys(
    "error_query", "total_query", "error_ratio_query", "page_alert", "ticket_alert", "slo_plugins"
)
_RESOURCE = _Keys(
    "errorQuery", "totalQuery", "errorRatioQuery", "pageAlert", "ticketAlert", "sloPlugins"
)


def drafts(documents: list[Document], problems: list[Problem], notes: Notes) -> Iterator[Draft]:
    """Yield a draft for each service of a file."""
    for document in documents:
        place = Place(document, problems)
        value = document.value
        notes.about()
        if isinstance(value, dict) and value.get("kind") == WINDOWS:
            _note_windows(place, notes)
        elif isinstance(value, dict) and "apiVersion" in value:
            yield from _resource(value, place, notes)
        else:
            yield from _service(value, place, _FILE, notes, version=anything)


def _note_windows(place: Place, notes: Notes) -> None:
    notes.left_out(
        place,
        f"{WINDOWS} are left out: the windows of alerts follow from target and period",
        f"set window after converting if sloPeriod is not {PERIOD}",
    )


def _resource(value: object, place: Place, notes: Notes) -> Iterator[Draft]:
    readers = dict.fromkeys(("apiVersion", "kind", "metadata", "spec", "status"), anything)
    found = read_optional_mapping(value, place, readers, notes)
    if "metadata" in found:
        about = read_optional_mapping(
            found["metadata"].value, found["metadata"].place, METADATA, notes
        )
        note_object_metadata(about, notes, annotate="put it into alerting.annotations")
    if check_required_keys(found, value, place, spec=": {service: …, slos: […]}"):
        yield from _service(found["spec"].value, found["spec"].place, _RESOURCE, notes)


def _service(
    value: object, place: Place, keys: _Keys, notes: Notes, **more: Reader
) -> Iterator[Draft]:
    readers = {
        "service": text,
        "labels": text_mapping,
        "slos": anything,
        keys.plugins: anything,
        **more,
    }
    found = read_optional_mapping(value, place, readers, notes)
    if not check_required_keys(found, value, place, service="", slos=""):
        return
    service = name(found["service"], notes)
    notes.about(str(service.value))
    if keys.plugins in found:
        notes.left_out(found[keys.plugins].place, f"is left out: {_PLUGINS}", "delete it")
    objectives = [
        PlacedValue(objective, here)
        for item, here in items(found["slos"].value, found["slos"].place)
        if (objective := _objective(item, here, str(service.value), keys, notes))
    ]
    if not objectives:
        if not found["slos"].value:
            found["slos"].place.refuse("has no SLO", "add one")
        return
    notes.about(str(service.value))
    own = labels(found["labels"].value if "labels" in found else {}, notes, SET_BY_TIERS)
    if own:
        _note_labels(found["labels"].place, notes)
    tree = {
        "apiVersion": "tokenslo/v1",
        "service": service,
        "window": PERIOD,
        **non_empty(labels=own),
        "objectives": PlacedValue(objectives, found["slos"].place),
    }
    yield Draft(tree, place)


def _note_labels(place: Place, notes: Notes) -> None:
    notes.left_out(
        place,
        "are added to slo:info and alerts, but not to every recorded series: a change of "
        "a value would split the long windows",
        "join slo:info by service and slo where a query needs them",
    )


def _objective(
    value: object, place: Place, service: str, keys: _Keys, notes: Notes
) -> dict[str, object] | None:
    readers: dict[str, Reader] = {
        "name": text,
        "description": text,
        "objective": percent,
        "labels": text_mapping,
        "sli": anything,
        "alerting": anything,
        "plugins": anything,
    }
    notes.about(service)
    found = read_optional_mapping(value, place, readers, notes)
    whole = check_required_keys(
        found, value, place, name=": requests", objective=": 99.9", sli=": {events: …}"
    )
    own_name = name(found["name"], notes) if "name" in found else PlacedValue("", place)
    notes.about(service, str(own_name.value))
    if "plugins" in found:
        notes.left_out(found["plugins"].place, f"are left out: {_PLUGINS}", "delete them")
    indicator = _indicator(found["sli"], keys, notes) if "sli" in found else None
    alerting = _alerting(found.get("alerting"), keys, notes)
    own = labels(found["labels"].value if "labels" in found else {}, notes, SET_BY_TIERS)
    if own:
        _note_labels(found["labels"].place, notes)
    if indicator is None or not whole:
        return None
    return {
        "name": own_name,
        **indicator,
        "target": found["objective"],
        **one_line(found.get("description")),
        **non_empty(labels=own),
        **alerting,
    }


def _indicator(sli: PlacedValue, keys: _Keys, notes: Notes) -> Mapping[str, object] | None:
    """Return indicator and ``group_by``, None after reporting the reason."""
    kinds = read_optional_mapping(
        sli.value, sli.place, dict.fromkeys(("events", "raw", "plugin"), anything), notes
    )
    if "plugin" in kinds:
        notes.lost(
            kinds["plugin"].place,
            "is an SLI plugin, whose queries only Sloth can generate",
            "put the queries that Sloth generates for it under events",
        )
        return None
    if "events" in kinds:
        return _events(kinds["events"], keys, notes)
    if "raw" in kinds:
        return _raw(kinds["raw"], keys, notes)
    sli.place.refuse("is missing", f"add events: {{{keys.error}: …, {keys.total}: …}}", "events")
    return None


def _queries(of: PlacedValue, wanted: tuple[str, ...], notes: Notes) -> list[PlacedValue] | None:
    found = read_optional_mapping(of.value, of.place, dict.fromkeys(wanted, text), notes)
    if not check_required_keys(
        found, of.value, of.place, **dict.fromkeys(wanted, " with a PromQL query")
    ):
        return None
    queries = [query for key in wanted if (query := fill_window(found[key], notes))]
    return queries if len(queries) == len(wanted) else None


def _events(of: PlacedValue, keys: _Keys, notes: Notes) -> Mapping[str, object] | None:
    queries = _queries(of, (keys.error, keys.total), notes)
    if queries is None:
        return None
    bad, total = queries
    note_counts_per_window(total, notes)
    found = idioms.events("bad", str(bad.value), str(total.value))
    return idioms.objective_keys(found, "bad", bad, total, notes)


def _raw(raw: PlacedValue, keys: _Keys, notes: Notes) -> Mapping[str, object] | None:
    queries = _queries(raw, (keys.ratio,), notes)
    if queries is None:
        return None
    fix = "give events if there are any, or a weight next to ratio"
    return idioms.quotient_keys(queries[0], notes, fix)


def _alerting(alerting: PlacedValue | None, keys: _Keys, notes: Notes) -> dict[str, object]:
    if alerting is None:
        return {}
    tier = {"labels": text_mapping, "annotations": text_mapping, "disable": boolean}
    readers: dict[str, Reader] = {
        "name": text,
        "labels": text_mapping,
        "annotations": text_mapping,
        keys.page: lambda value, place: read_known_keys(value, place, tier, notes),
        keys.ticket: lambda value, place: read_known_keys(value, place, tier, notes),
    }
    found = read_optional_mapping(alerting.value, alerting.place, readers, notes)
    off = [key for key in (keys.page, keys.ticket) if _is_off(found.get(key))]
    if "name" in found and len(off) < 2:
        notes.left_out(
            found["name"].place,
            "is left out: alerts are named after service and objective, and have their window "
            "and burn_rate in labels instead of sloth_severity",
            "change routes and silences that match the old name",
        )
    tiers = {
        tier_name: PlacedValue(tier_keys, alerting.place)
        for tier_name, key in (("page", keys.page), ("ticket", keys.ticket))
        if key not in off and (tier_keys := _tier(found, key, notes))
    }
    kinds = [kind for key in off for kind in ("page",) * (key == keys.page) or _TICKET_KINDS]
    if len(off) == 2:
        kinds.append("absent")
    return non_empty(alerting={**tiers, **non_empty(disable=disabled(*kinds))})


# Sloth has no alert on an exhausted budget, so disabling tickets disables ours as well.
_TICKET_KINDS = ("ticket", "exhausted")


# Generated alerts of each kind have their own; Sloth only has alerts on burn rates.
_PER_KIND = {"summary", "description"}


def _is_off(tier: PlacedValue | None) -> bool:
    return tier is not None and "disable" in tier.value and tier.value["disable"].value


def _tier(found: Mapping[str, PlacedValue], key: str, notes: Notes) -> dict[str, object]:
    """Return labels and annotations of a tier; its own override the common ones."""
    own = found[key].value if key in found else {}
    both = {
        field: {
            **(found[field].value if field in found else {}),
            **(own[field].value if field in own else {}),
        }
        for field in ("labels", "annotations")
    }
    for key in _PER_KIND & both["annotations"].keys():
        notes.left_out(
            both["annotations"][key].place,
            "is added to all alerts of the tier, also those on missing metrics and exhausted "
            "budgets",
            "write it for all of them, or delete it",
        )
    return non_empty(
        labels=labels(both["labels"], notes), annotations=labels(both["annotations"], notes, ())
    )
