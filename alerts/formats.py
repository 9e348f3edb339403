"""Write rule groups as files for Prometheus, its operator, and Mimir or Cortex.

VictoriaMetrics's vmalert and Thanos's ruler read Prometheus's format: no rule uses a label that
either of them gives a meaning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from alerts import cause_rules, rules, sloth_rules
from slos.errors import Problem
from slos.generated_yaml import document
from slos.plan import Plan
from slos.yaml_text import Commented, Inline

Format = Literal["prometheus", "operator", "mimir"]
FORMATS: tuple[Format, ...] = ("prometheus", "operator", "mimir")
Release = Literal["2.42", "2.53", "3"]
RELEASES: tuple[Release, ...] = ("2.42", "2.53", "3")


@dataclass(frozen=True, slots=True)
class Options:
    """Formats and options of the rule files.

    ``min_prometheus`` is the oldest release to support: from 3 on, labels common to all rules of a
    group are written once.  ``namespace`` and ``labels`` are those of the operator's resource,
    which its ``ruleSelector`` may require.
    """

    formats: tuple[Format, ...] = ("prometheus",)
    min_prometheus: Release = "2.42"
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


_CAUSES, _SLOTH = ".causes", ".sloth"
ROLLOUT, AUTOSCALING = ".rollout", ".autoscaling"

MOST_BYTES = 262_144
"""The maximum size of a resource: kubectl keeps its JSON in an annotation with this limit.

The operator's own limit is twice that, and etcd's six times."""


def files(
    form: Format, plan: Plan, options: Options, *, source: str, version: str
) -> Iterator[tuple[str, str]]:
    """Yield path and text of a service's rule files in a format: one, unless it is too large."""
    causes = cause_rules.groups(plan) if plan.alerts_on_causes else []
    sloth = sloth_rules.groups(plan, version=version) if "sloth" in plan.compat else []
    for kind, groups in (("", rules.groups(plan)), (_CAUSES, causes), (_SLOTH, sloth)):
        yield from group_files(form, plan, kind, groups, options, source=source, version=version)


def group_files(
    form: Format,
    plan: Plan,
    kind: str,
    groups: Iterable[rules.Rule],
    options: Options,
    *,
    source: str,
    version: str,
) -> Iterator[tuple[str, str]]:
    """Yield path and text of the files of some rule groups; ``kind`` is a part of the names."""
    chosen = list(groups)
    if options.min_prometheus == "3":
        chosen = [_lifted(group) for group in chosen]
    bodies = _BODIES[form](plan, kind, chosen, options) if chosen else ()
    for part, (about, body) in enumerate(bodies, 1):
        name = f"{plan.service.service}{kind}.{_NAMES[form]}{f'-{part}' * (part > 1)}"
        yield f"alerts/{name}.yaml", document(about, body, source=source, version=version)


def unsupported(plan: Plan, options: Options) -> Iterator[Problem]:
    """Yield a problem for each objective that the oldest supported release cannot evaluate."""
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


def optional(service: str, formats: Iterable[Format], kind: str = _SLOTH) -> Iterator[str]:
    """Yield glob patterns of the files in these formats that not every service has."""
    for form in formats:
        yield f"alerts/{service}{kind}.{_NAMES[form]}*.yaml"
        if form == "operator":  # the further files of a large service
            yield f"alerts/{service}.{_NAMES[form]}-*.yaml"


_MOST_RULES = 20
"""Mimir's default limit of rules per group."""
_ABOUT = {
    "": "the SLOs of",
    _CAUSES: "causes of burning SLOs of",
    _SLOTH: "Sloth's recorded series of",
    ROLLOUT: "the rollout gate of",
    AUTOSCALING: "the autoscaling of",
}
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
            # Unique, as names of services have no dot.
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
    """Yield lists of groups that fit into one resource each, in order."""
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
"""Space for names, labels and brackets of a resource, with a margin."""


def _bytes(group: rules.Rule) -> int:
    """Return the size as JSON, in which Kubernetes escapes ``<``, ``>`` and ``&``."""
    text = json.dumps(group, ensure_ascii=False)
    return len(text.encode()) + 5 * sum(map(text.count, "<>&"))


def _mimir(plan: Plan, kind: str, groups: list[rules.Rule], _: Options) -> _Bodies:
    service = plan.service.service
    about = f"Rules for {_ABOUT[kind]} {service}: mimirtool rules load, or cortextool rules load."
    yield about, {"namespace": service, "groups": [*chain.from_iterable(map(_split, groups))]}


def _split(group: rules.Rule) -> Iterator[rules.Rule]:
    """Yield groups within Mimir's limit, in order: alerts read the group before."""
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
    """Move labels that all rules of a group share to the group."""
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
