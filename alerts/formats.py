"""The same rule groups as files for Prometheus, its operator, and Mimir or Cortex.

VictoriaMetrics's vmalert and Thanos's ruler read Prometheus's format: no rule uses a label that
either of them gives a meaning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from alerts import cause_rules, rules
from alerts.layout import document
from slos.errors import Problem
from slos.plan import Plan
from slos.yaml_text import Commented, Inline

Format = Literal["prometheus", "operator", "mimir"]
FORMATS: tuple[Format, ...] = ("prometheus", "operator", "mimir")
Release = Literal["2.42", "2.53", "3"]
RELEASES: tuple[Release, ...] = ("2.42", "2.53", "3")


@dataclass(frozen=True, slots=True)
class Options:
    """How rules are to be written.

    ``min_prometheus`` is the oldest release that shall read them: from 3 on labels that all rules
    of a group have are written once.  ``namespace`` and ``labels`` are those of the resource that
    the operator reads, whose ``ruleSelector`` wants some.
    """

    formats: tuple[Format, ...] = ("prometheus",)
    min_prometheus: Release = "2.42"
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


MOST_BYTES = 262_144
"""How large a resource may be: kubectl keeps its JSON in an annotation, which takes no more.

The operator's own limit is twice that, and etcd's six times."""


def files(
    form: Format, plan: Plan, options: Options, *, source: str, version: str
) -> Iterator[tuple[str, str]]:
    """Yield path and text of a service's rule files in a format: one, unless it is too large."""
    service = plan.service.service
    causes = cause_rules.groups(plan) if plan.alerts_on_causes else []
    for kind, groups in (("", rules.groups(plan)), (_CAUSES, causes)):
        if options.min_prometheus == "3":
            groups = [_lifted(group) for group in groups]
        bodies = _BODIES[form](plan, kind, groups, options) if groups else ()
        for part, (about, body) in enumerate(bodies, 1):
            path = f"alerts/{service}{kind}.{_NAMES[form]}{f'-{part}' * (part > 1)}.yaml"
            yield path, document(about, body, source=source, version=version)


def unsupported(plan: Plan, options: Options) -> Iterator[Problem]:
    """Yield what objectives ask of Prometheus that its oldest release does not have."""
    if options.min_prometheus != "2.42":
        return
    for index, planned in enumerate(plan.objectives):
        is_histogram = "histogram" in planned.objective.queries
        if is_histogram and plan.service.native(planned.objective):
            yield Problem(
                plan.service.file,
                planned.objective.line,
                f"objectives[{index}].histograms",
                "rules on native histograms cannot be relied on in Prometheus 2.42, whose promtool "
                "cannot test them either",
                "add --min-prometheus 2.53, or 3 for classic ones that Prometheus converts",
            )


def further(service: str) -> str:
    """Return what the files of a large service match that there are beside the first."""
    return f"alerts/{service}.{_NAMES['operator']}-*.yaml"


_MOST_RULES = 20
"""How many rules of a group Mimir takes unless it is configured otherwise."""
_CAUSES = ".causes"
_ABOUT = {"": "the SLOs of", _CAUSES: "causes of burning SLOs of"}
_Bodies = Iterator[tuple[str, Mapping[str, object]]]
_NAMES: Mapping[Format, str] = {
    "prometheus": "rules",
    "operator": "prometheusrule",
    "mimir": "mimir",
}


def _prometheus(plan: Plan, kind: str, groups: list[rules.Rule], _: Options) -> _Bodies:
    yield f"Prometheus rules for {_ABOUT[kind]} {plan.service.service}.", {"groups": groups}


def _operator(plan: Plan, kind: str, groups: list[rules.Rule], options: Options) -> _Bodies:
    service = plan.service.service
    about = f"PrometheusRule for {_ABOUT[kind]} {service}: kubectl apply -f this file."
    for part, members in enumerate(_parts(groups), 1):
        metadata = {
            # No service has a dot in its name, so no other has this one.
            "name": f"tokenslo-{service}{kind}{f'.{part}' * (part > 1)}",
            "namespace": options.namespace,
            "labels": dict(options.labels),
        }
        yield (
            about,
            {
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": "PrometheusRule",
                "metadata": {name: value for name, value in metadata.items() if value},
                "spec": {"groups": members},
            },
        )


def _parts(groups: Iterable[rules.Rule]) -> Iterator[list[rules.Rule]]:
    """Yield as many groups as fit into a resource, in order."""
    used, members = 0, list[rules.Rule]()
    for group in groups:
        size = _bytes(group)
        if members and used + size > MOST_BYTES - _ROOM:
            yield members
            used, members = 0, []
        members.append(group)
        used += size
    yield members


_ROOM = 8_192
"""What names, labels and brackets of a resource take at most, with some to spare."""


def _bytes(group: rules.Rule) -> int:
    """Return how long it is as JSON, in which Kubernetes escapes what means something in HTML."""
    text = json.dumps(group, ensure_ascii=False)
    return len(text.encode()) + 5 * sum(map(text.count, "<>&"))


def _mimir(plan: Plan, kind: str, groups: list[rules.Rule], _: Options) -> _Bodies:
    service = plan.service.service
    about = f"Rules for {_ABOUT[kind]} {service}: mimirtool rules load, or cortextool rules load."
    yield about, {"namespace": service, "groups": [*chain.from_iterable(map(_split, groups))]}


def _split(group: rules.Rule) -> Iterator[rules.Rule]:
    """Yield groups of as many rules as Mimir takes, in order: alerts read the group before."""
    members: list[dict[str, object]] = group["rules"]  # type: ignore[assignment]
    for part, first in enumerate(range(0, len(members), _MOST_RULES), 1):
        name = f"{group['name']}{f'/{part}' * (part > 1)}"
        comment = getattr(group, "comment", "")
        chosen = members[first : first + _MOST_RULES]
        yield Commented(comment, {**group, "name": name, "rules": chosen})


_BODIES: Mapping[Format, Callable[[Plan, str, list[rules.Rule], Options], _Bodies]] = {
    "prometheus": _prometheus,
    "operator": _operator,
    "mimir": _mimir,
}


def _lifted(group: rules.Rule) -> rules.Rule:
    """Write labels that all rules of a group have on the group."""
    members: list[dict[str, object]] = group["rules"]  # type: ignore[assignment]
    labels: list[dict[str, str]] = [rule.get("labels", {}) for rule in members]  # type: ignore[misc]
    first, *others = labels
    common = {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in others)
    }
    kept = [{name: value for name, value in each.items() if name not in common} for each in labels]
    return Commented(
        getattr(group, "comment", ""),
        {
            "name": group["name"],
            "interval": group["interval"],
            "labels": Inline(common),
            "rules": [_relabelled(rule, its) for rule, its in zip(members, kept, strict=True)],
        },
    )


def _relabelled(rule: Mapping[str, object], labels: Mapping[str, str]) -> dict[str, object]:
    relabelled = {**rule, "labels": Inline(labels)}
    return relabelled if labels else {k: v for k, v in relabelled.items() if k != "labels"}
