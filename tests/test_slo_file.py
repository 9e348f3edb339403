"""SLO files: defaults, errors and round trips."""

from __future__ import annotations

import json
import string
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from language_example import load

from promql.expr import decimal_text
from slos.durations import format_duration
from slos.errors import InvalidFile
from slos.fields.alerting import ALERTING, TIER
from slos.fields.objective import CLAUSE, OBJECTIVE
from slos.indicators import CLAUSES, INDICATORS
from slos.language import SERVICE
from slos.load import load_file
from slos.model import Alerting, Objective, Service, Tier

DAY = 86_400
ROOT = Path(__file__).parent.parent
# One folder serves all examples of a property: each example overwrites its file.
one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text, name="f.yaml"):
    Path(name).write_text(text, encoding="utf-8")
    return load(name)


def refusals(text, name="f.yaml"):
    with pytest.raises(InvalidFile) as refused:
        read(text, name)
    return str(refused.value).splitlines()


def test_a_file_with_everything():
    assert read("""\
apiVersion: tokenslo/v1
service: chat
owner: inference-platform
description: >
  Chat completions,
  streamed
selector: {model: llama, namespace: prod}
window: 4w
labels: {team: inference}
runbooks: https://runbooks.example.com/{alert}.html
dashboards: https://grafana.example.com:3000/grafana
objectives:
  - name: first-token
    indicator: ttft
    threshold: 800ms
    target: 95%
    description: Users see the first word within a second
  - {name: up, indicator: availability, target: 99.95%}
  - {name: kv, indicator: kv_headroom, threshold: 90%, target: 99%}
  - {name: good, indicator: goodput, clauses: {tpot: 60ms, ttft: 1.5s}, target: 9%}
alerting:
  page: {labels: {severity: page, pager: "1"}, annotations: {note: "{{ $value }}\\nsecond"}}
  ticket: {labels: {queue: llm}}
  min_bad_events: 0
""") == Service(
        file="f.yaml",
        service="chat",
        owner="inference-platform",
        description="Chat completions, streamed",
        selector={"model": "llama", "namespace": "prod"},
        window=Decimal(28 * DAY),
        labels={"team": "inference"},
        runbooks="https://runbooks.example.com/{alert}.html",
        dashboards="https://grafana.example.com:3000/grafana",
        objectives=(
            Objective(
                "first-token",
                "ttft",
                Decimal("0.95"),
                Decimal("0.8"),
                "Users see the first word within a second",
                13,
            ),
            Objective("up", "availability", Decimal("0.9995"), line=18),
            Objective("kv", "kv_headroom", Decimal("0.99"), Decimal("0.9"), line=19),
            Objective(
                "good",
                "goodput",
                Decimal("0.09"),
                line=20,
                clauses={"tpot": Decimal("0.06"), "ttft": Decimal("1.5")},
            ),
        ),
        alerting=Alerting(
            page=Tier({"severity": "page", "pager": "1"}, {"note": "{{ $value }}\nsecond"}),
            ticket=Tier({"severity": "warning", "queue": "llm"}),
            min_bad_events=0,
        ),
    )


MINIMAL = """\
apiVersion: tokenslo/v1
service: chat
objectives:
  - {name: up, indicator: availability, target: 99.9%}
"""


def test_omitted_keys_have_defaults():
    assert read(MINIMAL) == Service(
        file="f.yaml",
        service="chat",
        window=Decimal(28 * DAY),
        objectives=(Objective("up", "availability", Decimal("0.999"), line=4),),
    )


KEYS = ", ".join(field.name for field in OBJECTIVE)
WRITE_NAME = 'in lower-case letters, digits and "-", at most 63, a letter first'
WRITE_TARGET = "write a percentage below 100%, such as 99.9%"
WRITE_SECONDS = "write at most 2h, such as 800ms (m is minutes)"
WRITE_WINDOW = "write a rolling window from 1d to 90d, such as 28d"
WRITE_URL = "write one, such as https://example.com/chat"
WRITE_CLAUSES = "{ttft: 800ms, tpot: 60ms}"
USE_INDICATOR = f"use one of {', '.join(INDICATORS)}"
CLASH = "give every objective a name of its own"

# An objective's entries and their errors, after "f.yaml:4: objectives[0]".
BAD_OBJECTIVES = {
    "{}": [
        f".{key}: is missing. Fix: add {key}: {example}."
        for key, example in (("name", "first-token"), ("indicator", "ttft"), ("target", "99.9%"))
    ],
    "x": [f": is text. Fix: write a mapping with the keys {KEYS}."],
    "~": [f": is empty. Fix: write a mapping with the keys {KEYS}."],
    "{name: a, indicator: ttft, threshold: 1s, taget: 9%}": [
        ".taget: is not a known key. Fix: write target."
    ],
    "{name: a, indicator: ttft, treshold: 1s, target: 9%}": [
        ".treshold: is not a known key. Fix: write threshold."
    ],
    "{name: a, indicator: availability, target: 9%, x: 1}": [
        f".x: is not a known key. Fix: use one of {KEYS}."
    ],
    **{
        f"{{name: {name}, indicator: availability, target: 9%}}": [f".name: {message}."]
        for name, message in {
            "First Token": '"First Token" is not a name. Fix: write first-token',
            "9": f"is a number. Fix: write a name {WRITE_NAME}",
            "9a": f'"9a" is not a name. Fix: write a name {WRITE_NAME}',
            "a-": '"a-" is not a name. Fix: write a',
            "../a": '"../a" is not a name. Fix: write a',
            "x" * 64: f'"{"x" * 60}…" is not a name. Fix: write a name {WRITE_NAME}',
            "true": f"is true or false. Fix: write a name {WRITE_NAME}",
            "[a]": f"is a list. Fix: write a name {WRITE_NAME}",
        }.items()
    },
    **{
        f"{{name: a, indicator: {indicator}, target: 9%}}": [f".indicator: {message}."]
        for indicator, message in {
            "availabilty": '"availabilty" is not an indicator. Fix: write availability',
            "speed": f'"speed" is not an indicator. Fix: {USE_INDICATOR}',
        }.items()
    },
    **{
        f"{{name: a, indicator: availability, target: {target}}}": [f".target: {message}."]
        for target, message in {
            "100%": f"100% leaves no error budget. Fix: {WRITE_TARGET}",
            "100.0%": f"100% leaves no error budget. Fix: {WRITE_TARGET}",
            "101%": f"101% is above 100%. Fix: {WRITE_TARGET}",
            "0%": f"0% is not above 0%. Fix: {WRITE_TARGET}",
            "-1%": '"-1%" is not a percentage. Fix: write a percentage such as 99.9%',
            "99.9 %": '"99.9 %" is not a percentage. Fix: write 99.9%',
            "99.9": "99.9 has no unit. Fix: write 99.9%",
            "0.999": "0.999 has no unit. Fix: write 99.9%",
            "'0.999'": '"0.999" has no unit. Fix: write a percentage such as 99.9%',
            "1": f"1 has no unit. Fix: {WRITE_TARGET}",
            "100.0": f"100.0 has no unit. Fix: {WRITE_TARGET}",
            "1e2": f"100.0 has no unit. Fix: {WRITE_TARGET}",
            ".nan": f"nan has no unit. Fix: {WRITE_TARGET}",
            ".inf": f"inf has no unit. Fix: {WRITE_TARGET}",
            "true": f"is true or false. Fix: {WRITE_TARGET}",
            "~": f"is empty. Fix: {WRITE_TARGET}",
        }.items()
    },
    **{
        f"{{name: a, indicator: ttft, threshold: {threshold}, target: 9%}}": [
            f".threshold: {message}."
        ]
        for threshold, message in {
            "800": "800 has no unit. "
            "Fix: write a threshold with its unit, such as 800ms or 90%",
            "'800'": '"800" has no unit. '
            "Fix: write a number with its unit, such as 800ms, 2.5s or 1h30m",
            "90%": '"90%" is not a duration. '
            "Fix: write a number with its unit, such as 800ms, 2.5s or 1h30m",
            "0ms": f"0ms is not above 0s. Fix: {WRITE_SECONDS}",
            "800m": f"800m is above 2h. Fix: {WRITE_SECONDS}",
            "~": "is empty. Fix: write a threshold with its unit, such as 800ms or 90%",
        }.items()
    },
    **{
        f"{{name: a, indicator: kv_headroom, threshold: {threshold}, target: 9%}}": [
            f".threshold: {message}."
        ]
        for threshold, message in {
            "800ms": '"800ms" is not a percentage. Fix: write a percentage such as 99.9%',
            "100%": "nothing can be above 100%. Fix: write a share below 100%, such as 90%",
            "100.1%": "100.1% is above 100%. Fix: write a share below 100%, such as 90%",
            "0%": "0% is not above 0%. Fix: write a share below 100%, such as 90%",
        }.items()
    },
    "{name: a, indicator: kv_headroom, target: 9%}": [
        ".threshold: is missing, but kv_headroom needs it. Fix: add threshold: 90%."
    ],
    "{name: a, indicator: ttft, target: 9%}": [
        ".threshold: is missing, but ttft needs it. Fix: add threshold: 800ms."
    ],
    **{
        f"{{name: a, indicator: {indicator}, threshold: 1s, target: 9%}}": [
            f".threshold: {indicator} has no threshold. Fix: delete it."
        ]
        for indicator in ("availability", "stream_completion", "disconnects")
    },
    "{name: a, indicator: goodput, threshold: 1s, target: 9%}": [
        f".clauses: is missing, but goodput needs it. Fix: add clauses: {WRITE_CLAUSES}.",
        ".threshold: goodput has no threshold. Fix: delete it.",
    ],
    "{name: a, indicator: availability, clauses: {ttft: 1s}, target: 9%}": [
        ".clauses: availability has no clauses. Fix: delete it."
    ],
    **{
        f"{{name: a, indicator: goodput, clauses: {clauses}, target: 9%}}": [f".clauses{message}."]
        for clauses, message in {
            "{}": f": has no clause. Fix: write at least one, such as {WRITE_CLAUSES}",
            "~": f": is empty. Fix: write a mapping such as {WRITE_CLAUSES}",
            "800ms": f": is text. Fix: write a mapping such as {WRITE_CLAUSES}",
            "[ttft]": f": is a list. Fix: write a mapping such as {WRITE_CLAUSES}",
            "{itl: 60ms}": ".itl: is about a share of all gaps, which a single request does not "
            "have. Fix: use max_gap for its longest gap, or tpot for its mean one",
            "{kv_headroom: 90%}": ".kv_headroom: is not a known key. "
            "Fix: use one of ttft, tpot, max_gap, e2e, queue",
            "{tfft: 1s}": ".tfft: is not a known key. Fix: write ttft",
            "{ttft: 800}": f".ttft: 800 has no unit. Fix: {WRITE_SECONDS}",
            "{ttft: 1s, e2e: 3h}": f".e2e: 3h is above 2h. Fix: {WRITE_SECONDS}",
            "{ttft: 1s, e2e: ~}": f".e2e: is empty. Fix: {WRITE_SECONDS}",
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize(("objective", "message"), BAD_OBJECTIVES.items())
def test_a_bad_objective_is_refused(objective, message):
    text = f"apiVersion: tokenslo/v1\nservice: chat\nobjectives:\n  - {objective}\n"
    assert refusals(text) == [f"f.yaml:4: objectives[0]{line}" for line in message]


# Lines added to a valid file and their errors, after "f.yaml:5: ".
BAD_LINES = {
    "onwer: me": "onwer: is not a known key. Fix: write owner",
    "owner: ''": "owner: is empty. Fix: write some text",
    "owner:": "owner: is empty. Fix: write a line of text",
    "owner: 7": "owner: is a number. Fix: put it in quotes",
    "owner: [me]": "owner: is a list. Fix: write a line of text",
    f"owner: {'x' * 1001}": "owner: is longer than 1,000 characters. Fix: shorten it",
    'description: "a\\nb"': "description: holds line breaks or control characters. "
    'Fix: write one line; ">" joins lines',
    'description: "a {{ b }}"': 'description: holds "{{", which starts a template in alerts. '
    "Fix: write it without braces",
    "window: 28": f"window: 28 has no unit. Fix: {WRITE_WINDOW}",
    "window: 12h": f"window: 12h is not within 1d and 90d. Fix: {WRITE_WINDOW}",
    "window: 91d": f"window: 91d is not within 1d and 90d. Fix: {WRITE_WINDOW}",
    "window: 30d12h": f"window: 30d12h is not a number of whole days. Fix: {WRITE_WINDOW}",
    **{
        f"window: {window}": "window: calendar windows are not supported, as Prometheus only looks "
        f"back a fixed time. Fix: {WRITE_WINDOW}"
        for window in ("1M", "month", "Calendar-Quarter")
    },
    "window: 4 weeks": 'window: "4 weeks" is not a duration. '
    "Fix: write a number with its unit, such as 800ms, 2.5s or 1h30m",
    "selector: {model: 70}": "selector.model: is a number. Fix: put it in quotes",
    "selector: {model: no, x: true}": "selector.x: is true or false. Fix: put it in quotes",
    "selector: {model: ''}": "selector.model: is empty. Fix: write some text",
    "selector: {model: [a, b]}": "selector.model: is a list. Fix: write text",
    'selector: {model: "a\\nb"}': "selector.model: holds line breaks or control characters. "
    "Fix: write one line",
    "selector: {le: '1'}": "selector.le: is the bucket label of histograms. Fix: delete it",
    "selector: {outcome: ok}": "selector.outcome: is a label that indicators select by themselves. "
    "Fix: delete it",
    "selector: {slo: x}": "selector.slo: is a label of the recorded series. "
    "Fix: select by another label",
    "selector: {__name__: x}": "selector.__name__: is reserved for Prometheus itself. "
    "Fix: use another name",
    "selector: {a-b: x}": "selector.a-b: is not a valid name. Fix: use letters, digits and _",
    "selector: model=x": "selector: is text. Fix: write a mapping of names to text",
    "labels: {severity: page}": "labels.severity: differs between pages and tickets. "
    "Fix: set it in the labels of alerting.page and alerting.ticket",
    **{
        f"labels: {{{name}: x}}": f"labels.{name}: is a label that alerts set themselves. "
        "Fix: use another name"
        for name in ("alertname", "service", "slo", "window", "burn_rate")
    },
    **{
        f"runbooks: {url}": f"runbooks: is not an http or https URL. Fix: {WRITE_URL}"
        for url in (
            "ftp://example.com",
            "example.com",
            "'javascript:alert(1)'",
            "https://",
            "https://x:99999/",
            "https://exa mple.com",
            "https://example.com/{name}",
            "'https://[::1/'",
        )
    },
    "dashboards: https://me:secret@example.com": "dashboards: holds credentials, which every alert "
    "would show. Fix: remove them",
    "dashboards: https://example.com/{alert}": "dashboards: is not an http or https URL. "
    f"Fix: {WRITE_URL}",
    "alerting: []": "alerting: is a list. "
    "Fix: write a mapping with the keys page, ticket, cause, min_bad_events, windows, causes, "
    "disable",
    "alerting: {pages: {}}": "alerting.pages: is not a known key. Fix: write page",
    "alerting: {min_bad_events: -1}": "alerting.min_bad_events: -1 is out of bounds. "
    "Fix: write a whole number from 0 to 1,000,000",
    "alerting: {min_bad_events: 1.5}": "alerting.min_bad_events: is a number. "
    "Fix: write a whole number from 0 to 1,000,000",
    "alerting: {min_bad_events: true}": "alerting.min_bad_events: is true or false. "
    "Fix: write a whole number from 0 to 1,000,000",
    "alerting: {page: {labels: {window: x}}}": "alerting.page.labels.window: is a label that "
    "alerts set themselves. Fix: use another name",
    "alerting: {ticket: {labels: {severity: 2}}}": "alerting.ticket.labels.severity: is a number. "
    "Fix: put it in quotes",
    'alerting: {page: {annotations: {x: "\\u0000"}}}': "alerting.page.annotations.x: holds control "
    "characters. Fix: delete them",
    "service: other": 'the key "service" is defined on line 2 already. Fix: delete one of them',
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.items())
def test_a_bad_line_is_refused(line, message):
    assert refusals(f"{MINIMAL}{line}\n") == [f"f.yaml:5: {message}."]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", ["1: is a list. Fix: write a mapping with the keys "
                   f"{', '.join(field.name for field in SERVICE)}."]),
        ("# chat\napiVersion: v1\nservice: chat\nobjectives: []\n",
         ['2: apiVersion: "v1" is not a version that tokenslo supports. Fix: write tokenslo/v1.',
          "4: objectives: has no objective. Fix: add one."]),
        ("apiVersion: 1\nservice: chat\nobjectives: {a: b}\n",
         ["1: apiVersion: this is not a version that tokenslo supports. Fix: write tokenslo/v1.",
          "3: objectives: is a mapping. Fix: write a list of objectives."]),
        ("owner: me\n",
         ["1: apiVersion: is missing. Fix: add apiVersion: tokenslo/v1.",
          "1: service: is missing. Fix: add service: chat.",
          "1: objectives: is missing. "
          "Fix: add objectives: [{name: …, indicator: …, target: …}]."]),
        (MINIMAL + "  - {name: up, indicator: availability, target: 9%}\n"
                   "  - {name: u-p, indicator: availability, target: 9%}\n",
         [f'5: objectives[1].name: "up" is also the name on line 4. Fix: {CLASH}.',
          '6: objectives[2].name: "u-p" and "up" on line 4 would give the same alert names. '
          f"Fix: {CLASH}."]),
        (MINIMAL + "  - {name: x, indicator: availability, target: 9%}\n" * 1000,
         ["3: objectives: holds 1,001 objectives, more than 1,000. "
          "Fix: split the service into several."]),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused(text, message):
    assert refusals(text) == [f"f.yaml:{line}" for line in message]


def test_all_errors_are_reported_in_file_order():
    assert refusals("""\
apiVersion: tokenslo/v1
objectives:
  - name: first-token
    target: 95
    threshold: !ms 800
    indicator: ttft
  - {name: first-token, indicator: tftt, target: 100%}
service: Chat
service: chat
""") == [
        "f.yaml:4: objectives[0].target: 95 has no unit. Fix: write 95%.",
        'f.yaml:5: the tag "!ms" is not allowed. Fix: delete it.',
        "f.yaml:5: objectives[0].threshold: 800 has no unit. "
        "Fix: write a threshold with its unit, such as 800ms or 90%.",
        'f.yaml:7: objectives[1].indicator: "tftt" is not an indicator. Fix: write ttft.',
        f"f.yaml:7: objectives[1].target: 100% leaves no error budget. Fix: {WRITE_TARGET}.",
        'f.yaml:7: objectives[1].name: "first-token" is also the name on line 3. '
        f"Fix: {CLASH}.",
        'f.yaml:8: service: "Chat" is not a name. Fix: write chat.',
        'f.yaml:9: the key "service" is defined on line 8 already. Fix: delete one of them.',
    ]  # fmt: skip


def test_problems_of_jsonnet_output_name_the_field():
    source = """\
local objective(name) = { name: name, indicator: 'availability', target: 99.9 };
{ apiVersion: 'tokenslo/v1', service: 'chat', objectives: [objective('a'), objective('a')] }
"""
    assert refusals(source, "f.jsonnet") == [
        "f.jsonnet: objectives[0].target: 99.9 has no unit. Fix: write 99.9%.",
        "f.jsonnet: objectives[1].target: 99.9 has no unit. Fix: write 99.9%.",
        'f.jsonnet: objectives[1].name: "a" is also the name of objectives[0]. '
        f"Fix: {CLASH}.",
    ]  # fmt: skip


def test_error_in_an_alias_is_reported_once_at_its_anchor():
    text = MINIMAL + "labels: &shared\n  team: 7\nselector: *shared\n"
    assert refusals(text) == ["f.yaml:6: labels.team: is a number. Fix: put it in quotes."]


TEN = """\
apiVersion: tokenslo/v1
service: chat
selector: &usual {model: 70,
    namespace: prod}
labels: *usual
objectives:
  - &first
    name: up
    indicator: availability
    target: 99
  - <<: *first
    name: fast
    indicator: ttft
    group_by: [tenant]
  - *first
  - {name: odd, indicator: tftt,
     threshold: 80 bananas, target: 99%}
---
apiVersion: tokenslo/v1
service: chat
window: quarterly
objectives: [{name: a, indicator: kv_headroom, threshold: 90%, target: 100%}]
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_errors_of_every_kind_are_reported_once_in_one_run(newline, mark):
    """Through anchors, aliases, merge keys, lines of a flow mapping and documents."""
    Path("f.yaml").write_bytes((mark + TEN.replace("\n", newline)).encode())
    with pytest.raises(InvalidFile) as refused:
        load_file("f.yaml")
    assert str(refused.value).splitlines() == [
        "f.yaml:3: selector.model: is a number. Fix: put it in quotes.",
        "f.yaml:10: objectives[0].target: 99 has no unit. Fix: write 99%.",
        "f.yaml:11: merge keys are not supported. Fix: write the keys out.",
        "f.yaml:11: objectives[1].threshold: is missing, but ttft needs it. "
        "Fix: add threshold: 800ms.",
        "f.yaml:13: objectives[1].indicator: ttft is not counted by tenant, but group_by lists "
        "it. Fix: use one of availability, stream_completion, disconnects, goodput.",
        'f.yaml:15: objectives[2].name: "up" is also the name on line 8. '
        f"Fix: {CLASH}.",
        'f.yaml:16: objectives[3].indicator: "tftt" is not an indicator. Fix: write ttft.',
        'f.yaml:17: objectives[3].threshold: "80 bananas" is neither a duration nor a percentage. '
        "Fix: write one, such as 800ms or 90%.",
        'f.yaml:20: service: "chat" is also the service of line 2 of this file. '
        "Fix: give every service a name of its own.",
        "f.yaml:21: window: calendar windows are not supported, as Prometheus only looks back a "
        f"fixed time. Fix: {WRITE_WINDOW}.",
        f"f.yaml:22: objectives[0].target: 100% leaves no error budget. Fix: {WRITE_TARGET}.",
    ]  # fmt: skip


names = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
lines = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Cn", "Zl", "Zp"], exclude_characters="{\ufeff"),
    min_size=1,
    max_size=30,
).filter(lambda text: text == text.strip())
maps = st.dictionaries(st.from_regex(r"x_[A-Za-z0-9_]{0,9}", fullmatch=True), lines, max_size=3)
shares = st.decimals("0.0001", "0.9999", places=6)
quantities = {"seconds": st.decimals("0.001", "7200", places=3), "ratio": shares}


@st.composite
def objectives(draw):
    indicator = draw(st.sampled_from(list(INDICATORS.values())))
    clauses = st.dictionaries(st.sampled_from(CLAUSES), quantities["seconds"], min_size=1)
    return Objective(
        name=draw(names),
        indicator=indicator.key,
        target=draw(shares),
        threshold=draw(quantities.get(indicator.threshold, st.none())),
        description=draw(lines | st.just("")),
        clauses=draw(clauses) if indicator.key == "goodput" else {},
    )


tiers = st.builds(Tier, maps.map(lambda labels: {"severity": "x", **labels}), maps)
services = st.builds(
    Service,
    file=st.just("f.json"),
    service=names,
    window=st.integers(1, 90).map(lambda days: Decimal(days * DAY)),
    objectives=st.lists(
        objectives(), min_size=1, max_size=5, unique_by=lambda o: o.name.replace("-", "")
    ).map(tuple),
    owner=lines | st.just(""),
    description=lines | st.just(""),
    selector=maps,
    labels=maps,
    alerting=st.builds(Alerting, tiers, tiers, st.integers(0, 1000)),
    runbooks=st.sampled_from(["", "https://example.com/{alert}", "http://h:1/a?b=c#d"]),
    dashboards=st.sampled_from(["", "https://example.com"]),
)


def share(ratio):
    return f"{decimal_text(ratio * 100)}%"


def as_file(service):
    """Write a service the way its file would."""
    written = {
        "seconds": format_duration,
        "ratio": share,
        None: lambda _: None,
    }
    value = {
        "apiVersion": "tokenslo/v1",
        "service": service.service,
        "owner": service.owner,
        "description": service.description,
        "selector": service.selector,
        "window": format_duration(service.window),
        "labels": service.labels,
        "runbooks": service.runbooks,
        "dashboards": service.dashboards,
        "objectives": [
            {
                "name": each.name,
                "indicator": each.indicator,
                "threshold": written[INDICATORS[each.indicator].threshold](each.threshold),
                "clauses": {name: format_duration(most) for name, most in each.clauses.items()}
                or None,
                "target": share(each.target),
                "description": each.description,
            }
            for each in service.objectives
        ],
        "alerting": {
            "page": {
                "labels": service.alerting.page.labels,
                "annotations": service.alerting.page.annotations,
            },
            "ticket": {
                "labels": service.alerting.ticket.labels,
                "annotations": service.alerting.ticket.annotations,
            },
            "min_bad_events": service.alerting.min_bad_events,
        },
    }
    return json.dumps(_without_gaps(value), ensure_ascii=False, indent=1)


def _without_gaps(value):
    if isinstance(value, list):
        return [_without_gaps(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_gaps(part) for key, part in value.items() if part not in ("", None)}
    return value


@one_folder
@given(services)
def test_service_survives_a_round_trip(service):
    found = read(as_file(service), "f.json")
    lineless = tuple(replace(objective, line=0) for objective in found.objectives)
    assert replace(found, objectives=lineless) == service
    for one, other in zip(found.objectives, service.objectives, strict=True):
        assert list(one.clauses) == list(other.clauses), "clauses stay in the file's order"


def test_tenant_objectives_require_signals_by_tenant():
    text = """\
apiVersion: tokenslo/v1
service: chat
selector: {tenant: acme}
objectives:
  - {name: up, indicator: availability, target: 99%}
  - {name: fast, indicator: ttft, threshold: 1s, target: 99%}
  - {name: good, indicator: goodput, clauses: {ttft: 1s}, target: 99%}
  - {name: whole, indicator: stream_completion, target: 99%}
  - {name: stay, indicator: disconnects, target: 99%}
"""
    assert refusals(text) == [
        "f.yaml:6: objectives[1].indicator: ttft is not counted by tenant, but the selector "
        "names one. Fix: use one of availability, stream_completion, disconnects, goodput."
    ]
    assert read(text.replace("ttft, threshold: 1s", "availability")).selector == {"tenant": "acme"}


words = st.sampled_from(
    [field.name for table in (SERVICE, OBJECTIVE, CLAUSE, ALERTING, TIER) for field in table]
    + ["ttft", "kv_headroom", "goodput", "800ms", "95%", "tokenslo/v1", "28d", "https://x"]
)
leaves = (
    words
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(string.printable, max_size=8)
)
trees = st.recursive(
    leaves,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(words, parts, max_size=6),
    max_leaves=30,
)
almost = st.fixed_dictionaries(
    {"apiVersion": st.just("tokenslo/v1"), "service": names | leaves, "objectives": trees},
    optional={field.name: trees for field in SERVICE if not field.required},
)


@one_folder
@given(trees | almost)
def test_any_document_is_loaded_or_refused_with_one_line_errors(tree):
    try:
        found = read(json.dumps(tree), "f.json")
    except InvalidFile as refused:
        lines = [str(problem) for problem in refused.problems]
    else:
        lines = []
        assert found.objectives
    assert all(len(line.splitlines()) == 1 and line.isprintable() for line in lines)
