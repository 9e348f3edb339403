"""Generate one Alertmanager configuration for the alerts of all services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from alerts.formats import Options
from promql.expr import Matcher
from slos import names
from slos.generated_yaml import document
from slos.model import Alerting

_SOURCE = "SLO files"
_PAGE, _TICKET = "tokenslo-page", "tokenslo-ticket"
_NONE = "tokenslo-none"
"""Receives other alerts: an AlertmanagerConfig requires a receiver at its root."""
_ABOUT = """Alertmanager configuration for the SLOs of all services: merge it into alertmanager.yml.
# It routes by the default severities; services with others need their own files instead.
# Add the labels of group_by, and of clusters that share an Alertmanager, to each `equal`."""
_ABOUT_RESOURCE = """AlertmanagerConfig for the SLOs of all services: kubectl apply -f this file.
# Set alertmanagerConfigMatcherStrategy: {type: None} on the Alertmanager, or it only matches alerts
# with this namespace as label."""

_IS_SLO, _IS_CAUSE = Matcher("slo", "!=", ""), Matcher(names.CAUSE_LABEL, "!=", "")
_WAITS: Mapping[str, Mapping[str, str]] = {
    _PAGE: {"group_wait": "10s", "repeat_interval": "4h"},
    _TICKET: {"group_wait": "5m", "repeat_interval": "1d"},
}


def files(options: Options, *, version: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of the files, the same for every service."""
    about = {"source": _SOURCE, "version": version}
    yield "alerts/alertmanager.yaml", document(_ABOUT, _configuration(), **about)
    if "operator" in options.formats:
        text = document(_ABOUT_RESOURCE, _resource(options), **about)
        yield "alerts/alertmanagerconfig.yaml", text


def _severity(tier: str) -> Matcher:
    return Matcher("severity", "=", getattr(Alerting(), tier).labels["severity"])


def _routes() -> Iterator[tuple[str, tuple[Matcher, ...], list[str]]]:
    """Yield receiver, matchers and grouping."""
    for kind, grouping in ((_IS_SLO, ["service", "slo"]), (_IS_CAUSE, [names.CAUSE_LABEL])):
        yield _PAGE, (kind, _severity("page")), grouping
        yield _TICKET, (kind,), grouping


def _inhibitions() -> Iterator[tuple[tuple[Matcher, ...], tuple[Matcher, ...]]]:
    burn, low = _named(names.BURN), _named(names.LOW_TRAFFIC)
    page, ticket = _severity("page"), _severity("ticket")
    rest = _named(names.BURN, names.EXHAUSTED, names.POLICY, names.LOW_TRAFFIC)
    yield (burn, page), (rest, ticket)
    yield (burn, ticket), (low,)
    whole = Matcher(names.STEP_LABEL, "=", "100%")
    yield (_named(names.POLICY), whole), (_named(names.EXHAUSTED),)


def _named(*kinds: str) -> Matcher:
    return Matcher("alertname", "=~", f".+({'|'.join(kinds)})")


def _configuration() -> Mapping[str, object]:
    return {
        "routes": [
            {
                "receiver": receiver,
                "matchers": [*map(str, matchers)],
                "group_by": grouping,
                **_WAITS[receiver],
            }
            for receiver, matchers, grouping in _routes()
        ],
        "receivers": [{"name": receiver} for receiver in _WAITS],
        "inhibit_rules": [
            {
                "source_matchers": [*map(str, source)],
                "target_matchers": [*map(str, target)],
                "equal": ["service", "slo"],
            }
            for source, target in _inhibitions()
        ],
    }


def _resource(options: Options) -> Mapping[str, object]:
    metadata = {
        "name": "tokenslo",
        "namespace": options.namespace,
        "labels": dict(options.labels),
    }
    return {
        "apiVersion": "monitoring.coreos.com/v1alpha1",
        "kind": "AlertmanagerConfig",
        "metadata": {name: value for name, value in metadata.items() if value},
        "spec": {
            "route": {
                "receiver": _NONE,
                "routes": [
                    {
                        "receiver": receiver,
                        "matchers": _fields(matchers),
                        "groupBy": grouping,
                        "groupWait": _WAITS[receiver]["group_wait"],
                        "repeatInterval": _WAITS[receiver]["repeat_interval"],
                    }
                    for receiver, matchers, grouping in _routes()
                ],
            },
            "receivers": [{"name": receiver} for receiver in (_NONE, *_WAITS)],
            "inhibitRules": [
                {
                    "sourceMatch": _fields(source),
                    "targetMatch": _fields(target),
                    "equal": ["service", "slo"],
                }
                for source, target in _inhibitions()
            ],
        },
    }


def _fields(matchers: tuple[Matcher, ...]) -> list[Mapping[str, str]]:
    return [{"name": one.label, "value": one.value, "matchType": one.op} for one in matchers]
