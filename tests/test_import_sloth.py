"""Conversion of Sloth files, with warnings for what is lost."""

from __future__ import annotations

from decimal import Decimal
from textwrap import dedent

import pytest
from click.testing import CliRunner
from conversion_folder import Folder

from tokenslo.commands.validate import validate

CHECKOUT = """\
    version: prometheus/v1
    service: Checkout_API
    labels: {owner: shop, tier: 2}
    slos:
      - name: requests
        objective: 99.9
        description: |
          Requests are answered,
          whatever the answer.
        labels: {category: availability}
        sli:
          events:
            error_query: |
              sum(rate(http_requests_total{job="checkout", code=~"5.."}[{{.window}}]))
            total_query: sum(rate(http_requests_total{job="checkout"}[{{ .window }}]))
        alerting:
          name: CheckoutErrors
          labels: {routing: shop}
          annotations: {summary: "{{ $value }} of requests fail"}
          page_alert: {labels: {severity: pager}}
          ticket_alert: {disable: true}
      - name: satisfaction
        objective: 95
        sli:
          raw:
            error_ratio_query: 1 - avg(avg_over_time(satisfaction[{{.window}}]))
        alerting:
          page_alert: {disable: true}
          ticket_alert: {disable: true}
    """

OURS = """\
# Converted by tokenslo 0.1.0 from slo.yaml.
# Line 2, service: "Checkout_API" is written checkout-api. Fix: expect checkout-api in labels, \
alerts and file names.
# Line 3, labels: are added to slo:info and alerts, but not to every recorded series: a change of \
a value would split the long windows. Fix: join slo:info by service and slo where a query \
needs them.
apiVersion: tokenslo/v1
service: checkout-api
window: 30d
labels:
  owner: shop
  tier: '2'
objectives:
  # Line 10, slos[0].labels: are added to slo:info and alerts, but not to every recorded series: \
a change of a value would split the long windows. Fix: join slo:info by service and slo \
where a query needs them.
  # Line 17, slos[0].alerting.name: is left out: alerts are named after service and objective, \
and have their window and burn_rate in labels instead of sloth_severity. Fix: change routes and \
silences that match the old name.
  # Line 19, slos[0].alerting.annotations.summary: is added to all alerts of the tier, also those \
on missing metrics and exhausted budgets. Fix: write it for all of them, or delete it.
  - name: requests
    indicator:
      bad: sum(rate(http_requests_total{job="checkout", code=~"5.."}[{window}]))
      total: sum(rate(http_requests_total{job="checkout"}[{window}]))
    target: '99.9%'
    description: Requests are answered, whatever the answer.
    labels:
      category: availability
    alerting:
      page:
        labels:
          routing: shop
          severity: pager
        annotations:
          summary: '{{ $value }} of requests fail'
      disable:
        - ticket
        - exhausted
  # Line 26, slos[1].sli.raw.error_ratio_query: is not a quotient of two sums, so longer windows \
are averages over time, not over events. Fix: give events if there are any, or a weight next to \
ratio.
  - name: satisfaction
    indicator:
      ratio: '1 - avg(avg_over_time(satisfaction[{window}]))'
    target: '95%'
    alerting:
      disable:
        - page
        - ticket
        - exhausted
        - absent
"""


def test_a_whole_file_is_converted(folder: Folder) -> None:
    done = folder.convert(CHECKOUT)
    assert done.stdout == OURS
    assert done.exit_code == 0


def test_warnings_have_line_and_fix_in_the_order_of_the_file(folder: Folder) -> None:
    lines = folder.warnings(CHECKOUT)
    assert [line.partition(": warning: ")[0] for line in lines] == [
        f"slo.yaml:{number}" for number in (2, 3, 10, 17, 19, 26)
    ]
    assert all(". Fix: " in line for line in lines)
    assert lines[0] == (
        'slo.yaml:2: warning: service: "Checkout_API" is written checkout-api. '
        "Fix: expect checkout-api in labels, alerts and file names."
    )


RESOURCE = """\
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: other}
    ---
    apiVersion: sloth.slok.dev/v1
    kind: PrometheusServiceLevel
    metadata: {name: a, namespace: monitoring}
    spec:
      service: a
      slos:
        - name: requests
          objective: 99.9
          sli:
            events: {errorQuery: 'errors:rate5m{job="a"}', totalQuery: 'sum(all:rate5m)'}
          alerting: {pageAlert: {labels: {severity: pager}}}
    ---
    apiVersion: sloth.slok.dev/v1
    kind: PrometheusServiceLevel
    metadata: {name: b}
    spec:
      service: b
      sloPlugins: {chain: []}
      slos:
        - name: requests
          objective: 99
          sli: {raw: {errorRatioQuery: 'sum(rate(bad[{{.window}}])) / sum(rate(all[{{.window}}]))'}}
    """


def test_several_kubernetes_resources_in_a_file_are_converted(folder: Folder) -> None:
    a, b = folder.services(RESOURCE)
    assert (a.service, b.service) == ("a", "b")
    assert (a.line, a.objectives[0].line) == (9, 11)
    assert a.objectives[0].queries == {
        "bad": 'sum(errors:rate5m{job="a"})',
        "total": "sum(all:rate5m)",
    }
    assert a.objectives[0].alerting.page.labels == {"severity": "pager"}
    assert [line.partition(". Fix")[0] for line in folder.warnings(RESOURCE)] == [
        'slo.yaml:1: warning: "ConfigMap" is not an SLO',
        "slo.yaml:7: warning: metadata.namespace: is left out: it is the namespace of the "
        "rules, not of the service",
        "slo.yaml:22: warning: spec.sloPlugins: is left out: they would change Sloth's rules, "
        "which are not used here",
    ]


@pytest.mark.parametrize(
    ("ratio", "queries"),
    [
        ("sum(rate(b[5m])) / sum(rate(t[5m]))", {"bad": "sum(rate(b[5m]))"}),
        ("( sum(rate(b[5m]))\n/ (sum(rate(t[5m]))) )", {"bad": "sum(rate(b[5m]))"}),
        ("1 - (sum(rate(g[5m])) / sum(rate(t[5m])))", {"good": "sum(rate(g[5m]))"}),
        ("1 - sum(rate(g[5m])) / sum(rate(t[5m]))", {"good": "sum(rate(g[5m]))"}),
        ("sum(b) / on () sum(t)", None),
        ("2 - sum(b) / sum(t)", None),
        ("a:ratio", None),
    ],
)
def test_an_error_ratio_becomes_events_weighted_by_traffic(
    folder: Folder, ratio: str, queries: dict[str, str] | None
) -> None:
    text = CHECKOUT.replace("1 - avg(avg_over_time(satisfaction[{{.window}}]))", repr(ratio)[1:-1])
    text = text.replace(repr(ratio)[1:-1], f'"{repr(ratio)[1:-1]}"')
    objective = folder.services(text)[0].objectives[1]
    if queries is None:
        assert set(objective.queries) == {"ratio"}
    else:
        assert {k: v for k, v in objective.queries.items() if k != "total"} == queries
        assert "t" in objective.queries["total"]


def test_events_counted_in_a_window_are_warned_of(folder: Folder) -> None:
    text = CHECKOUT.replace("sum(rate(", "sum(increase(")
    assert any("instead of per second" in line for line in folder.warnings(text))


PLUGIN = """\
    version: prometheus/v1
    service: a
    slos:
      - name: one
        objective: 99
        sli: {plugin: {id: some_plugin}}
      - name: two
        objective: 99
        sli: {events: {error_query: 'sum(b:rate5m)', total_query: 'sum(a:rate5m)'}}
        alerting: {pageAlert: {labels: {severity: pager}}}
      - name: three
        objective: 99
        sli: {events: {error_query: 'sum(b{job="{{.job}}"})', total_query: 'sum(a:rate5m)'}}
    """
LOST = [
    "slo.yaml:6: slos[0].sli.plugin: is an SLI plugin, whose queries only Sloth can generate. "
    "Fix: put the queries that Sloth generates for it under events.",
    "slo.yaml:13: slos[2].sli.events.error_query: has a template other than {{.window}}. "
    "Fix: fill it in.",
]


def test_an_objective_without_an_equivalent_is_refused_by_generate(folder: Folder) -> None:
    assert folder.refusal(PLUGIN) == LOST


def test_the_other_objectives_are_converted_with_a_mark_and_exit_code_1(folder: Folder) -> None:
    done = folder.convert(PLUGIN)
    assert done.exit_code == 1
    assert folder.relative(done.stderr) == [
        LOST[0].replace(":6:", ":6: warning:"),
        "slo.yaml:10: warning: slos[1].alerting.pageAlert: is not a key of this format. "
        "Fix: write page_alert.",
        LOST[1].replace(":13:", ":13: warning:"),
    ]
    assert "# LOST, line 6, slos[0].sli.plugin: " in done.stdout
    assert "# LOST, line 13, slos[2].sli.events.error_query: " in done.stdout
    assert done.stdout.count("- name:") == 1


WRONG = """\
    version: prometheus/v1
    service: a
    slos:
      - name: one
        objective: 101
        sli: {events: {error_query: 'sum(b', total_query: 'x[5m]'}}
      - name: one
        objective: many
        sli: {events: {error_query: 'sum(b)'}}
      - name: two
        sli: {}
      - name: three
        objective: 99
        labels: {service: b, 3x: c, ok: d}
        sli: {events: {error_query: 'sum(b)', total_query: 'sum(t)'}}
        alerting: [a]
    """


def test_all_problems_are_reported_with_line_and_fix(folder: Folder) -> None:
    done = CliRunner().invoke(validate, [folder.write(WRONG)])
    assert done.exit_code == 2
    message = folder.relative(done.stderr)
    assert [line.split(": ")[0] + " " + line.split(": ")[1] for line in message] == [
        "slo.yaml:5 slos[0].objective",
        "slo.yaml:6 slos[0].sli.events.error_query",
        "slo.yaml:6 slos[0].sli.events.total_query",
        "slo.yaml:8 slos[1].objective",
        "slo.yaml:9 slos[1].sli.events.total_query",
        "slo.yaml:10 slos[2].objective",
        "slo.yaml:11 slos[2].sli.events",
        "slo.yaml:16 slos[3].alerting",
    ]
    assert message[0] == (
        "slo.yaml:5: slos[0].objective: 101% is above 100%. "
        "Fix: write a percentage below 100%, such as 99.9%."
    )


def test_a_value_of_a_wrong_type_is_not_also_missing(folder: Folder) -> None:
    assert folder.refusal("version: prometheus/v1\nservice: [a]\nslos: []\n") == [
        "slo.yaml:2: service: is a list. Fix: write text."
    ]


WINDOWS = """\
    ---
    apiVersion: sloth.slok.dev/v1
    kind: AlertWindows
    spec: {sloPeriod: 7d}
    """


def test_alert_windows_are_left_out_and_are_no_slo(folder: Folder) -> None:
    message = folder.warnings(dedent(CHECKOUT) + dedent(WINDOWS))[-1]
    assert message.startswith("slo.yaml:31: warning: AlertWindows are left out: the windows of")
    assert "has no SLO" in folder.refusal(WINDOWS)[0]


def test_anchors_end_with_their_document(folder: Folder) -> None:
    text = "version: prometheus/v1\nservice: &a b\n---\nversion: prometheus/v1\nservice: *a\n"
    assert folder.refusal(text) == [
        "slo.yaml:5: the alias *a has no value. Fix: write &a at its value."
    ]


def test_an_object_of_another_kind_is_no_slo_file(folder: Folder) -> None:
    (message,) = folder.refusal("apiVersion: v1\nkind: ConfigMap\n")
    assert "is not a version that tokenslo supports" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "version: prometheus/v2",
            '"prometheus/v2" of Sloth is not supported. Fix: give prometheus/v1',
        ),
        (
            "apiVersion: sloth.slok.dev/v1\n    kind: Other",
            '"Other" of Sloth is not supported. Fix: give PrometheusServiceLevel',
        ),
        (
            "version: prometheus/v1\n    service: a\n    slos: []",
            "slos: has no SLO. Fix: add one",
        ),
        ("version: prometheus/v1\n    slos: 3", "service: is missing. Fix: add service"),
    ],
)
def test_an_invalid_sloth_file_is_refused(folder: Folder, text: str, message: str) -> None:
    assert message in "\n".join(folder.refusal(f"    {text}\n"))


def events(error: str, total: str) -> str:
    return f"""\
version: prometheus/v1
service: shop
slos:
  - name: requests
    objective: 99.5
    sli:
      events:
        error_query: '{error}'
        total_query: '{total}'
"""


W = "[{{.window}}]"
RATE = "sum(rate({}[{{window}}]))"
COUNT, WITHIN = f"sum(rate(h_seconds_count{W}))", f'sum(rate(h_seconds_bucket{{le="0.4"}}{W}))'
ALL = f"sum(rate(t_total{W}))"


@pytest.mark.parametrize(
    ("error", "total", "queries"),
    [
        (f"{COUNT} - {WITHIN}", COUNT, {"histogram": "h_seconds"}),
        (f"({COUNT} - ({WITHIN}))", f"({COUNT})", {"histogram": "h_seconds"}),
        (f"clamp_min({COUNT} - {WITHIN}, 0) or vector(0)", COUNT, {"histogram": "h_seconds"}),
        (
            f'sum(rate(h_seconds_bucket{{le="+Inf"}}{W})) - {WITHIN}',
            f'sum(rate(h_seconds_bucket{{le="+Inf"}}{W}))',
            {"histogram": "h_seconds"},
        ),
        (
            f'sum(rate(h_seconds_count{{a="b",c="d"}}{W}))'
            f' - sum(rate(h_seconds_bucket{{c="d",le="0.4",a="b"}}{W}))',
            f'sum(rate(h_seconds_count{{c="d",a="b"}}{W}))',
            {"histogram": 'h_seconds{c="d",a="b"}'},
        ),
        (f"{ALL} - sum(rate(g_total{W}))", ALL, {"good": RATE.format("g_total")}),
        (f"sum(rate(t_total{W}) - rate(g_total{W}))", ALL, {"good": RATE.format("g_total")}),
        (f"{ALL} - (sum(rate(g_total{W})) or vector(0))", ALL, {"good": RATE.format("g_total")}),
        (f"sum(rate(b_total{W})) or on() vector(0)", ALL, {"bad": RATE.format("b_total")}),
        (f"sum(rate(b_total{W}) or vector(0))", ALL, {"bad": RATE.format("b_total")}),
        (f"sum(rate(b_total{W})) or {ALL} * 0", ALL, {"bad": RATE.format("b_total")}),
        (
            f"(sum(rate(a_total{W})) or vector(0)) + sum(rate(b_total{W}))",
            ALL,
            {
                "bad": "({0} + {1}) or {0} or {1}".format(
                    RATE.format("a_total"), RATE.format("b_total")
                )
            },
        ),
        # These are other idioms.
        (f"{COUNT} - {WITHIN}", ALL, {"bad": f"{COUNT} - {WITHIN}".replace(W, "[{window}]")}),
        (
            f'{COUNT} - sum(rate(h_seconds_bucket{{le="0.4",a="b"}}{W}))',
            COUNT,
            {"good": RATE.format('h_seconds_bucket{le="0.4",a="b"}')},
        ),
        (f"clamp_min(sum(rate(b_total{W})), 1)", ALL, {"bad": "clamp_min(sum(rate("}),
    ],
)
def test_idioms_are_converted_to_the_events_they_measure(
    folder: Folder, error: str, total: str, queries: dict[str, str]
) -> None:
    objective = folder.services(events(error, total).replace("'", "`").replace("`", "'"))[0]
    queries = objective.objectives[0].queries
    for role, query in queries.items():
        assert queries[role].startswith(query)
    if "histogram" in queries:
        assert objective.objectives[0].threshold == Decimal("0.4")


@pytest.mark.parametrize(
    ("error", "total", "labels"),
    [
        (
            f'sum by (host) (rate(t_total{{code="500"}}{W}))',
            f"sum by (host) (rate(t_total{W}))",
            ["host"],
        ),
        (
            f'sum(rate(t_total{{code="500"}}{W})) by (zone, host)',
            f"sum(rate(t_total{W})) by (host, zone)",
            ["host", "zone"],
        ),
        (
            f"sum by (host) (rate(h_seconds_count{W}))"
            f' - sum by (host) (rate(h_seconds_bucket{{le="0.4"}}{W}))',
            f"sum by (host) (rate(h_seconds_count{W}))",
            ["host"],
        ),
    ],
)
def test_sums_by_a_label_become_groups(
    folder: Folder, error: str, total: str, labels: list[str]
) -> None:
    (service,) = folder.services(events(error, total))
    assert list(service.objectives[0].group_by) == labels
    assert not any(" by " in query for query in service.objectives[0].queries.values())


@pytest.mark.parametrize(
    ("error", "total"),
    [
        (f"sum by (host, code) (rate(b_total{W}))", f"sum by (host) (rate(t_total{W}))"),
        (f"sum without (pod) (rate(b_total{W}))", f"sum without (pod) (rate(t_total{W}))"),
        (f"rate(b_total{W})", f"rate(t_total{W})"),
        (f"topk(3, rate(b_total{W}))", f"rate(t_total{W})"),
        ("sum by (host) (b:rate5m)", "sum by (host) (t:rate5m)"),
    ],
)
def test_series_grouped_in_another_way_are_refused(folder: Folder, error: str, total: str) -> None:
    (message,) = folder.refusal(events(error, total))
    assert message.startswith("slo.yaml:8: slos[0].sli.events.error_query: has several series")
    ratio = (
        events(error, total).replace("events:", "raw:").replace("error_query", "error_ratio_query")
    )
    ratio = ratio.replace(f"'{error}'", f"'({error}) / ({total})'").split("        total_query")[0]
    (message,) = folder.refusal(ratio)
    assert "error_ratio_query: has several series" in message


def test_a_ratio_by_label_is_refused(folder: Folder) -> None:
    text = events("x", "y").replace("events:", "raw:").split("        error_query")[0]
    (message,) = folder.refusal(f"{text}        error_ratio_query: avg by (host) (errors:ratio)\n")
    assert "has several series" in message
