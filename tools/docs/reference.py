"""Generate the tables of ``docs/reference/`` from the code.

Each table has a short function, so all of them are in one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path

import click

from config_checks.table import CHECKS as CONFIG_CHECKS
from dashboards import GeneratedDashboard, build
from exporter.outcome_rules import CODES, RULES, OutcomeRule
from exporter.settings import OPTIONS, SOURCES
from gates.criteria import FALSE_PROMOTION, LOOKS
from gates.statistics import Count, least_canary, z_of
from promql.expr import decimal_text
from promql.lint.findings import CHECKS
from slos.burn import pairs
from slos.causes import CAUSE_ALERTS
from slos.fields.alerting import ALERTING, TIER
from slos.fields.autoscaling import AUTOSCALING
from slos.fields.budget_policy import STEP
from slos.fields.error_budget import ERROR_BUDGET
from slos.fields.objective import CLAUSE, OBJECTIVE
from slos.fields.quotas import QUOTA
from slos.fields.rollout import ROLLOUT
from slos.fields.time_slices import TIME_SLICES
from slos.indicators import INDICATORS
from slos.language import FILE, SERVICE
from slos.load import load_file
from slos.model import Rollout
from slos.outcomes import MEANINGS, SPENDING
from slos.plan import plan
from slos.schema import Field
from tokenslo.cli import COMMANDS, cli
from tools.docs import capacity, diagnosis_example, gate_outcomes, input_limits, kubernetes

_DAY = 86_400
_EXAMPLE = Path(__file__).parents[2] / "examples/chat/slo.yaml"
_NO_OPTIONS = "No options.\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "".join(f"| {' | '.join(_cell(cell) for cell in cells)} |\n" for cells in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# The command line


def _commands() -> str:
    """Describe every command: usage, help, and a table of its options."""
    context = click.Context(cli, info_name="tokenslo")
    parts = []
    for name in COMMANDS:
        command = cli.get_command(context, name)
        if command is None:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        usage = " ".join(command.collect_usage_pieces(inner))
        text = "\n\n".join(_paragraphs(command.help or ""))
        parts.append(f"## {name}\n\n```text\ntokenslo {name} {usage}\n```\n\n{text}\n")
        if name == "exporter":
            parts.append("[configuration.md](configuration.md) lists its options.\n")
        else:
            rows = [_option(param) for param in command.params if isinstance(param, click.Option)]
            parts.append(_table(("option", "meaning", "default"), rows) if rows else _NO_OPTIONS)
    return "\n" + "\n".join(parts) + "\n"


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n")]


def _option(option: click.Option) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts) if name)
    kind = ""
    if isinstance(option.type, click.Choice):
        kind = " or ".join(f"`{choice}`" for choice in option.type.choices)
    elif option.metavar:
        kind = f"`{option.metavar}`"
    shown = option.default if isinstance(option.default, str | int | float) else ""
    default = "" if isinstance(shown, bool) or shown == "" else f"`{shown}`"
    required = "required" if option.required else default
    return f"{names} {kind}".strip(), option.help or "", required


# The configuration of the sidecar


def _settings() -> str:
    rows = (
        (
            f"`--{option.name}`",
            "" if option.flag else f"`{option.metavar}`",
            f"`{option.default}`" if option.default else "",
            option.help,
        )
        for option in OPTIONS
    )
    return _table(("option", "value", "default", "meaning"), rows)


def _sources() -> str:
    return ", ".join(f"`--{name}`" for name in SOURCES) + "\n"


# SLO files

_DEFAULTS: Mapping[str, str] = {
    "selector": "all models",
    "window": "`28d`",
    "histograms": "`classic`",
    "rules": "`exact`",
    "objectives.histograms": "the service's",
    "objectives.owner": "the service's",
    "objectives.selector": "the service's",
    "objectives.alerting": "the service's",
    "objectives.error_budget": "the service's",
    **{
        f"error_budget.{field.name}": f"`{str(field.name in SPENDING).lower()}`"
        for field in ERROR_BUDGET
    },
    "alerting.page": "`{labels: {severity: critical}}`",
    "alerting.ticket": "`{labels: {severity: warning}}`",
    "alerting.cause": "`{labels: {severity: info}}`",
    "alerting.min_bad_events": "`10`",
    "alerting.windows": "by period and target",
    "rollout.label": "`version`",
    "rollout.margin": "`25%`",
    "rollout.window": "`15m`",
    "rollout.warm_up": "`2m`",
    "rollout.objectives": "all that count events",
    "rollout.guards": "all",
    "autoscaling.min_replicas": "`1`",
    "autoscaling.waiting": "`8`",
    "autoscaling.kv_cache": "`80%`",
    "autoscaling.goodput": "the first goodput objective",
    "autoscaling.stream_p99": "the longest `e2e` threshold, or 10m",
    "alerting.causes": "see [Causes](rules.md#causes)",
}
"""Defaults of optional keys; a key without one is empty by default."""


def _keys(prefix: str, fields: Iterable[Field]) -> Callable[[], str]:
    def table() -> str:
        rows = (
            (
                f"`{prefix}{field.name}`",
                _type(field.shape),
                "required" if field.required else _DEFAULTS.get(f"{prefix}{field.name}", ""),
                field.about,
            )
            for field in fields
        )
        return _table(("key", "value", "default", "meaning"), rows)

    return table


def _type(shape: Mapping[str, object]) -> str:
    """Name the kind of value that a JSON Schema shape allows."""
    if "enum" in shape or "const" in shape:
        values = shape.get("enum", (shape.get("const"),))
        return " or ".join(f"`{value}`" for value in values)  # type: ignore[attr-defined]
    pattern = str(shape.get("pattern", ""))
    if pattern.endswith("%$"):
        return "share"
    if "ms|" in pattern or "|ms" in pattern:
        return "duration"
    names = {"array": "list", "object": "mapping", "integer": "whole number", "string": "text"}
    names["boolean"] = "`true` or `false`"
    if "oneOf" in shape or "anyOf" in shape:
        return "text or mapping"
    return names.get(str(shape.get("type")), "mapping")


def _gate_samples() -> str:
    """Count the requests that a canary needs to be promoted."""
    head = ("bad requests of the baseline", "target", "margin", "requests of the canary")
    rows = []
    for share, target in ((0.02, "0.95"), (0.02, "0.95"), (0.002, "0.99"), (0.0002, "0.999")):
        budget = 1 - Decimal(target)
        margin = budget * (Rollout().margin if len(rows) != 1 else Decimal("0.5"))
        needed = _least_canary(share, float(budget), float(margin))
        shown = (Decimal(str(share)), Decimal(target), margin)
        rows.append((*(f"{decimal_text(each * 100)}%" for each in shown), f"{needed:,}"))
    return _table(head, rows)


def _least_canary(share: float, budget: float, margin: float) -> int:
    """Return the least canary beside a baseline with ten times as many requests."""
    z = z_of(FALSE_PROMOTION / LOOKS)
    events = 100
    while True:
        baseline = Count(share * 10 * events, 10 * events)
        needed = least_canary(baseline, budget, margin, z)
        if needed is not None and needed <= events:
            return events
        events += max(events // 1000, 1)


def _indicators() -> str:
    thresholds = {"seconds": "duration", "ratio": "share", None: "none"}
    rows = (
        (
            f"`{indicator.key}`",
            indicator.events,
            indicator.good.format(threshold="the threshold"),
            "`clauses`" if indicator.key == "goodput" else thresholds[indicator.threshold],
            ", ".join(f"`{signal}`" for signal in indicator.signals),
        )
        for indicator in INDICATORS.values()
    )
    return _table(("indicator", "events", "an event is good if", "threshold", "signals"), rows)


# Outcomes


def _outcomes() -> str:
    rows = (
        (f"`{outcome}`", one.meaning, ", ".join(f"`{each}`" for each in one.reasons), one.budget)
        for outcome, one in MEANINGS.items()
    )
    return _table(("outcome", "meaning", "reasons", "error budget"), rows)


def _outcome_rules() -> str:
    rows = (
        (
            f"`{rule.outcome}`",
            f"`{rule.reason}`" if rule.reason else "",
            rule.sender or "any",
            "; ".join(dict.fromkeys(map(_code, rule.codes))),
            _sign(rule),
        )
        for rule in RULES
    )
    return _table(("outcome", "reason", "sender", "status or event", "header or text"), rows)


def _code(code: str) -> str:
    kind, _, label = code.partition(":")
    if kind not in CODES:
        return f"`{code}`"
    return f"{CODES[kind]} `{label}`" if label else CODES[kind]


def _sign(rule: OutcomeRule) -> str:
    header = f"`{rule.header}: {rule.value}`" if rule.value else f"`{rule.header}`"
    return "; ".join(filter(None, (rule.header and header, rule.text and f"“{rule.text}”")))


# Rules


def _windows() -> str:
    """Tabulate the pairs of windows of usual targets over 28 days."""
    targets = [Decimal(target) for target in ("0.9", "0.95", "0.99", "0.999", "0.9999")]
    rows = [
        (
            _percent(target),
            pair.tier,
            pair.long,
            pair.short,
            decimal_text(pair.burn_rate),
            _percent(pair.threshold),
        )
        for target in targets
        for pair in pairs(Decimal(28 * _DAY), target)
    ]
    return _table(("target", "tier", "long", "short", "burn rate", "error ratio above"), rows)


def _percent(ratio: Decimal) -> str:
    return f"{decimal_text(ratio * 100)}%"


def _causes() -> str:
    rows = (
        (
            f"`{alert.name}`",
            alert.tier,
            alert.lasting,
            alert.summary,
            ", ".join(f"`{key}`" for key in alert.symptoms),
        )
        for alert in CAUSE_ALERTS
    )
    return _table(("alert", "tier", "for", "summary", "explains objectives on"), rows)


# Lint


def _config_checks() -> str:
    rows = (
        (
            id_,
            check.name,
            check.severity,
            check.finds,
            ", ".join(f"`{indicator}`" for indicator in check.indicators),
            check.costs,
            check.fix,
        )
        for id_, check in CONFIG_CHECKS.items()
    )
    head = ("id", "name", "severity", "finds", "threatens", "costs", "fix")
    return _table(head, rows)


def _checks() -> str:
    rows = ((id_, check.name, check.severity, check.summary) for id_, check in CHECKS.items())
    return _table(("id", "name", "severity", "finds"), rows)


# Dashboards


@cache
def _example_dashboards() -> list[GeneratedDashboard]:
    (service,) = load_file(_EXAMPLE).services
    return build(plan(service), source=_EXAMPLE.name, version="")


def _dashboards() -> str:
    return _table(
        ("dashboard", "file", "answers"),
        (
            (
                each.content["title"].rpartition(": ")[2],
                f"`{each.path.removeprefix('dashboards/').replace('chat', '<service>')}`",
                each.content["description"].partition("?")[0] + "?",
            )
            for each in _example_dashboards()
        ),
    )


def _dashboard_panels() -> str:
    """Describe the panels of every dashboard."""
    parts = []
    for each in _example_dashboards():
        panels = [panel for panel in each.content["panels"] if panel["type"] != "row"]
        rows = dict.fromkeys((panel["title"], panel["description"]) for panel in panels)
        title = each.content["title"].rpartition(": ")[2]
        parts.append(f"### {title}\n\n{_table(('panel', 'how to read it'), rows)}")
    return "\n" + "\n".join(parts) + "\n"


# Capacity


def _sidecar_series() -> str:
    return _table(("of", "series"), capacity.sidecar_rows())


def _added_series() -> str:
    return _table(("in addition, per model", "series", "limit"), capacity.addition_rows())


def _series_limits() -> str:
    return _table(("limit", "value"), capacity.limit_rows())


def _fleet() -> str:
    of = (capacity.PODS, capacity.SERVICES, capacity.OBJECTIVES)
    example = "{:,} pods, {} services of {} objectives".format(*of)
    return _table(("quantity", "formula", example), capacity.fleet_rows())


def _recorded_series() -> str:
    head = ("target of an objective", "recorded series", "with `group_by`")
    return _table(head, capacity.rule_rows())


GENERATED: Mapping[str, Callable[[], str]] = {
    "chart-values": kubernetes.chart_values,
    "commands": _commands,
    "settings": _settings,
    "sources": _sources,
    "input-limits": lambda: _table(("what", "limit", "beyond it"), input_limits.rows()),
    "file-keys": _keys("", [field for field in FILE if field.name == "services"]),
    "service-keys": _keys("", SERVICE),
    "objective-keys": _keys("objectives.", OBJECTIVE),
    "clause-keys": _keys("objectives.clauses.", CLAUSE),
    "slice-keys": _keys("objectives.time_slices.", TIME_SLICES),
    "alerting-keys": _keys("alerting.", ALERTING),
    "tier-keys": _keys("alerting.page.", TIER),
    "step-keys": _keys("budget_policy.", STEP),
    "quota-keys": _keys("quotas.", QUOTA),
    "rollout-keys": _keys("rollout.", ROLLOUT),
    "autoscaling-keys": _keys("autoscaling.", AUTOSCALING),
    "gate-samples": _gate_samples,
    "gate-errors": lambda: _table(gate_outcomes.ERROR_HEAD, gate_outcomes.error_rows()),
    "gate-kinds": lambda: _table(gate_outcomes.HEAD, gate_outcomes.outcome_rows(every=False)),
    "gate-outcomes": lambda: _table(gate_outcomes.HEAD, gate_outcomes.outcome_rows(every=True)),
    "indicators": _indicators,
    "error-budget-keys": _keys("error_budget.", ERROR_BUDGET),
    "outcomes": _outcomes,
    "outcome-rules": _outcome_rules,
    "windows": _windows,
    "causes": _causes,
    "checks": _checks,
    "config-checks": _config_checks,
    "dashboards": _dashboards,
    "dashboard-panels": _dashboard_panels,
    "sidecar-series": _sidecar_series,
    "added-series": _added_series,
    "series-limits": _series_limits,
    "recorded-series": _recorded_series,
    "fleet": _fleet,
    "diagnosis-likelihoods": diagnosis_example.likelihood_table,
    "diagnosis-posterior": diagnosis_example.posterior_table,
    "diagnosis-thresholds": diagnosis_example.decision_table,
    "sample-limits": kubernetes.sample_limits,
    "shutdown": kubernetes.shutdown,
}
"""By name: the text of a generated block."""
