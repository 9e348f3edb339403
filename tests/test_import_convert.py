"""Converted files load as the same services."""

from __future__ import annotations

import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner
from conversion_folder import Folder
from generic_example import FORMS, generic_objective, generic_service
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service_example import CLAUSES
from test_import_hostile import TEXTS
from test_import_sloth import PLUGIN

import alerts
from slos import openslo_export, writer
from slos.indicators import CLAUSES as CLAUSE_KEYS
from slos.indicators import INDICATORS
from slos.load import load_file
from slos.model import (
    DISABLED,
    SERVICE_DISABLED,
    Alerting,
    Objective,
    Overrides,
    PolicyStep,
    Service,
    Tier,
    TimeSlices,
)
from slos.plan import plan
from tokenslo.commands.convert import convert
from tokenslo.commands.explain import explain
from tokenslo.commands.generate import generate
from tokenslo.commands.server_config import server_config
from tokenslo.commands.validate import validate

NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}(?:-[a-z0-9]{1,4})?", fullmatch=True)
CHARACTERS = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp", "Cn", "Co"))
WORDS = (
    st.text(CHARACTERS, min_size=1, max_size=30)
    .map(str.strip)
    .filter(lambda text: text and "{{" not in text and "\ufeff" not in text)
)
LINES = st.lists(WORDS, min_size=1, max_size=3).map("\n".join)
KEYS = st.from_regex(r"x_[a-zA-Z0-9_]{0,8}", fullmatch=True)
LABELS = st.dictionaries(KEYS, WORDS, max_size=2)
SECONDS = st.integers(1, 7_200_000).map(lambda ms: Decimal(ms) / 1000)
SHARES = st.integers(1, 99_999).map(lambda n: Decimal(n) / 100_000)
DISABLE = st.frozensets(st.sampled_from(DISABLED))
LEAST = st.integers(0, 1_000_000)
TIERS = st.builds(Tier, LABELS, st.dictionaries(KEYS, LINES, max_size=2))


def with_severity(severity: str) -> st.SearchStrategy[Tier]:
    labels = LABELS.map(lambda own: {"severity": severity, **own})
    return st.builds(Tier, labels, st.dictionaries(KEYS, LINES, max_size=2))


SLICES = st.none() | st.builds(TimeSlices, st.sampled_from([Decimal(60), Decimal(300)]), SHARES)
GROUPS = st.sampled_from([(), ("zone",), ("zone", "version")])
POLICY = st.lists(
    st.builds(PolicyStep, SHARES, WORDS), max_size=2, unique_by=lambda step: step.spent
).map(lambda steps: tuple(sorted(steps, key=lambda step: step.spent)))


@st.composite
def objectives(draw: st.DrawFn) -> Objective:
    more = {
        "description": draw(st.just("") | WORDS),
        "labels": draw(LABELS),
        "alerting": draw(
            st.builds(Overrides, TIERS, TIERS, st.none() | LEAST, DISABLE) | st.just(Overrides())
        ),
        "owner": draw(st.just("") | WORDS),
    }
    name, target = draw(NAMES), draw(SHARES)
    if draw(st.booleans()):
        own = generic_objective(draw(st.sampled_from(sorted(FORMS))))
        edge = draw(SECONDS) if own.threshold else None
        if own.name.endswith(("-rate", "-counter")):
            more |= {"slices": draw(SLICES), "group_by": draw(GROUPS)}
        return replace(own, name=name, target=target, threshold=edge, **more)
    more["selector"] = draw(LABELS)
    indicator = draw(st.sampled_from(sorted(INDICATORS)))
    measure = INDICATORS[indicator].threshold
    threshold = draw({"seconds": SECONDS, "ratio": SHARES, None: st.none()}[measure])
    clauses = {}
    if indicator == "goodput":
        clauses = draw(st.dictionaries(st.sampled_from(CLAUSE_KEYS), SECONDS, min_size=1))
    return Objective(name, indicator, target, threshold, clauses=clauses, **more)


SERVICES = st.builds(
    Service,
    file=st.just(""),
    service=NAMES,
    window=st.integers(1, 90).map(lambda days: Decimal(days * 86_400)),
    objectives=st.lists(
        objectives(), min_size=1, max_size=3, unique_by=lambda each: each.name.replace("-", "")
    ).map(tuple),
    owner=st.just("") | WORDS,
    description=st.just("") | WORDS,
    selector=LABELS,
    labels=LABELS,
    alerting=st.builds(
        Alerting,
        page=with_severity("critical"),
        ticket=with_severity("warning"),
        cause=with_severity("info"),
        min_bad_events=LEAST,
        disable=st.frozensets(st.sampled_from(SERVICE_DISABLED)),
    ),
    policy=POLICY,
    runbooks=st.sampled_from(["", "https://example.com/{alert}"]),
    dashboards=st.sampled_from(["", "https://grafana.example.com"]),
)


def bare(services: tuple[Service, ...]) -> tuple[Service, ...]:
    """Return services without their places in files."""
    return tuple(
        replace(
            service,
            file="",
            objectives=tuple(replace(each, line=0) for each in service.objectives),
        )
        for service in services
    )


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(st.lists(SERVICES, min_size=1, max_size=2, unique_by=lambda each: each.service).map(tuple))
def test_written_services_are_read_back_unchanged(tmp_path: Path, services) -> None:
    path = tmp_path / "slo.yaml"
    text = writer.text(services, about="A test.")
    path.write_text(text, encoding="utf-8")
    loaded = load_file(path)
    assert bare(loaded.services) == services
    assert loaded.notes == ()
    assert writer.text(loaded.services, about="A test.") == text


def test_every_example_converts_to_itself(folder: Folder) -> None:
    for example in Path("examples").glob("*/slo.*"):
        done = CliRunner().invoke(convert, [str(example)])
        assert (done.exit_code, done.stderr) == (0, "")
        assert bare(load_file(folder.write(done.stdout)).services) == bare(
            load_file(example).services
        )


KEPT = [
    name
    for name, (kind, _) in FORMS.items()
    if kind in ("bad_events", "good_events", "gauge", "histogram")
]


@pytest.mark.parametrize("name", KEPT)
def test_events_and_gauges_round_trip_through_openslo(folder: Folder, name: str) -> None:
    service = generic_service(generic_objective(name, "0.995"), description="A shop")
    text = openslo_export.text([service])
    (back,) = bare(load_file(folder.write(text)).services)
    assert back == replace(service, file="")
    assert not [*openslo_export.left_out([service])]


@pytest.mark.parametrize("name", ["average", "weighted"])
def test_weighted_ratios_round_trip_through_openslo_as_rates(folder: Folder, name: str) -> None:
    """OpenSLO cannot express them; a second conversion changes nothing."""
    service = generic_service(generic_objective(name, "0.995"))
    once = load_file(folder.write(openslo_export.text([service]))).services
    again = load_file(folder.write(openslo_export.text(once))).services
    assert bare(again) == bare(once)
    assert once[0].objectives[0].target == Decimal("0.995")


def test_a_counter_mixed_with_a_rate_is_exported_as_a_rate(folder: Folder) -> None:
    queries = {"bad": "errors_total", "total": "sum(rate(x[{window}]))"}
    mixed = replace(generic_objective("bad-rate"), queries=queries)
    text = openslo_export.text([generic_service(mixed)])
    (note,) = openslo_export.left_out([generic_service(mixed)])
    assert "objectives[0].indicator: is written as rates" in str(note)
    (back,) = load_file(folder.write(text)).services
    assert back.objectives[0].queries == {**queries, "bad": "sum(rate(errors_total[{window}]))"}


@pytest.mark.parametrize("key", INDICATORS)
def test_built_in_indicators_are_exported_with_their_queries(folder: Folder, key: str) -> None:
    threshold = {"seconds": Decimal("0.8"), "ratio": Decimal("0.9"), None: None}
    objective = Objective(
        "x",
        key,
        Decimal("0.99"),
        threshold[INDICATORS[key].threshold],
        clauses=CLAUSES if key == "goodput" else {},
    )
    service = generic_service(objective, selector={"model": "llama"})
    (back,) = load_file(folder.write(openslo_export.text([service]))).services
    assert set(back.objectives[0].queries) in ({"bad", "total"}, {"good", "total"})
    assert all('model="llama"' in query for query in back.objectives[0].queries.values())
    (note,) = openslo_export.left_out([service])
    assert f"objectives[0].indicator: {key} is written as its queries" in str(note)


def test_slices_of_built_in_indicators_keep_their_length(folder: Folder) -> None:
    slices = TimeSlices(Decimal(60), Decimal("0.95"))
    service = generic_service(Objective("x", "availability", Decimal("0.99"), slices=slices))
    (back,) = folder.services(openslo_export.text([service]))
    bad = 'rate(llm_requests_total{outcome=~"error|draining|timeout|truncated|shed"}[1m])'
    assert bad in back.objectives[0].queries["gauge"]
    assert "[5m]" not in back.objectives[0].queries["gauge"]


OPENSLO = """\
# Converted by tokenslo 0.1.0 from slo.yaml.
apiVersion: openslo/v1
kind: Service
metadata:
  name: shop
spec:
  description: A shop
---
apiVersion: openslo/v1
kind: SLO
metadata:
  name: requests
  labels:
    team:
      - a
spec:
  description: They are answered
  service: shop
  indicator:
    metadata:
      name: requests-sli
    spec:
      ratioMetric:
        counter: true
        bad:
          metricSource:
            type: Prometheus
            spec:
              query: errors_total
        total:
          metricSource:
            type: Prometheus
            spec:
              query: requests_total
  timeWindow:
    - duration: 30d
      isRolling: true
  budgetingMethod: Occurrences
  objectives:
    - target: 0.999
---
apiVersion: openslo/v1
kind: SLO
metadata:
  name: lag
  labels:
    team:
      - a
spec:
  service: shop
  indicator:
    metadata:
      name: lag-sli
    spec:
      thresholdMetric:
        metricSource:
          type: Prometheus
          spec:
            query: max_over_time(lag[{{.window}}])
  timeWindow:
    - duration: 30d
      isRolling: true
  budgetingMethod: Occurrences
  objectives:
    - op: lt
      value: 5
      target: 0.9
"""
SHOP = """\
    apiVersion: tokenslo/v1
    service: shop
    description: A shop
    owner: me
    window: 30d
    labels: {team: a}
    objectives:
      - name: requests
        description: They are answered
        indicator: {bad: errors_total, total: requests_total}
        target: 99.9%
        alerting: {min_bad_events: 3}
      - name: lag
        indicator: {gauge: '(max_over_time(lag[{window}])) < bool 5'}
        target: 90%
    """


def test_openslo_export_is_as_expected(folder: Folder) -> None:
    done = folder.convert(SHOP, "--to", "openslo")
    assert done.stdout == OPENSLO
    assert done.exit_code == 0
    assert folder.relative(done.stderr) == [
        "slo.yaml:2: warning: owner: is left out: OpenSLO has no place for it. "
        "Fix: keep it in a file of ours.",
        "slo.yaml:8: warning: objectives[0].alerting: is left out: OpenSLO has no place for it. "
        "Fix: keep it in a file of ours.",
    ]


def test_time_slices_round_trip_through_openslo(folder: Folder) -> None:
    sliced = generic_objective("bad-rate", slices=TimeSlices(Decimal(300), Decimal("0.9")))
    text = openslo_export.text([generic_service(sliced)])
    (back,) = bare(load_file(folder.write(text)).services)
    assert back.objectives == (sliced,)


def test_budgets_by_label_are_lost_in_openslo(folder: Folder) -> None:
    text = SHOP.replace("target: 99.9%", "target: 99.9%\n        group_by: [zone]")
    done = folder.convert(text, "--to", "openslo")
    assert done.exit_code == 1
    assert "objectives[0].group_by: is left out" in done.stderr


def test_names_in_openslo_are_not_given_twice() -> None:
    one = generic_service(generic_objective("up"))
    text = openslo_export.text([one, replace(one, service="other")])
    assert "name: shop-up\n" in text
    assert "name: other-up\n" in text
    notes = [str(note) for note in openslo_export.left_out([one, replace(one, service="other")])]
    assert ["is written shop-up, as" in notes[0], "is written other-up, as" in notes[1]] == [
        True
    ] * 2


def test_the_result_is_written_to_a_file(folder: Folder) -> None:
    target = folder.path / "new" / "ours.yaml"
    done = folder.convert(SHOP, "-o", str(target))
    assert (done.exit_code, done.stdout) == (0, "")
    assert bare(load_file(target).services) == bare(folder.services(SHOP))
    (folder.path / "taken").mkdir()
    done = folder.convert(SHOP, "-o", str(folder.path / "taken"))
    assert done.exit_code == 1
    assert "directory" in done.stderr.lower()


def test_an_existing_file_is_replaced_only_with_force(folder: Folder) -> None:
    target = folder.path / "ours.yaml"
    target.write_text("# precious\n")
    done = folder.convert(SHOP, "-o", str(target))
    assert (done.exit_code, target.read_text()) == (1, "# precious\n")
    assert folder.relative(done.stderr) == [
        "Error: ours.yaml: exists. Fix: give --force to replace it."
    ]
    done = folder.convert(SHOP, "-o", str(target), "--force")
    assert done.exit_code == 0
    assert bare(load_file(target).services) == bare(folder.services(SHOP))


@pytest.mark.parametrize("kind", ["same", "symlink", "hardlink", "folder"])
def test_the_input_is_never_replaced(folder: Folder, kind: str) -> None:
    source = Path(folder.write(SHOP))
    target = {
        "same": source,
        "symlink": folder.path / "symlink.yaml",
        "hardlink": folder.path / "hardlink.yaml",
        "folder": folder.path / "symlink/slo.yaml",
    }[kind]
    if kind == "symlink":
        target.symlink_to(source)
    elif kind == "hardlink":
        target.hardlink_to(source)
    elif kind == "folder":
        (folder.path / "symlink").symlink_to(folder.path)
    before = source.read_text()
    done = CliRunner().invoke(convert, [str(source), "-o", str(target), "--force"])
    assert (done.exit_code, source.read_text()) == (1, before)
    assert done.stderr.endswith(f"{target.name}: is the input. Fix: write to another file.\n")


def test_standard_input_is_converted(folder: Folder) -> None:
    given = Path(folder.write(SHOP)).read_text()
    done = CliRunner().invoke(convert, ["-"], input=given)
    assert done.exit_code == 0
    assert "from standard input." in done.stdout
    assert bare(folder.services(done.stdout)) == bare(folder.services(given))


def test_a_symlink_and_a_pipe_are_written_to(folder: Folder) -> None:
    real, link = folder.path / "real.yaml", folder.path / "link.yaml"
    link.symlink_to(real)
    folder.convert(SHOP, "-o", str(link))
    assert link.is_symlink()
    assert real.is_file()
    measurement, writing = os.pipe()
    with open(measurement) as pipe:  # noqa: PTH123  (a file descriptor)
        done = folder.convert(SHOP, "-o", f"/dev/fd/{writing}")
        os.close(writing)
        assert (done.exit_code, pipe.read()) == (0, real.read_text())
    done = folder.convert(SHOP, "-o", "-")
    assert done.stdout == real.read_text()
    assert not (folder.path / "-").exists()


def test_a_bad_file_writes_nothing(folder: Folder) -> None:
    target = folder.path / "ours.yaml"
    done = folder.convert("apiVersion: tokenslo/v1\nservice: A\n", "-o", str(target))
    assert done.exit_code != 0
    assert not target.exists()


SLOTH = """\
version: prometheus/v1
service: {service}
slos:
  - name: requests
    objective: 99.9
    sli: {{events: {{error_query: 'sum(b:rate5m)', total_query: 'sum(a:rate5m)'}}}}
    alerting: {{name: Old}}
"""


def test_other_commands_read_files_of_other_tools(folder: Folder) -> None:
    a = folder.write(SLOTH.format(service="a"), "a.yaml")
    both = "---\n".join(SLOTH.format(service=name) for name in "bc")
    two = folder.write(both, "two.yaml")
    out = folder.path / "out"
    done = CliRunner().invoke(generate, [a, two, "-o", str(out)])
    assert done.exit_code == 0, done.stderr
    assert sorted(path.name for path in out.glob("alerts/*.rules.yaml")) == [
        "a.rules.yaml",
        "b.rules.yaml",
        "c.rules.yaml",
    ]
    assert [line.partition(": warning")[0] for line in folder.relative(done.stderr)] == [
        "a.yaml:7",
        "two.yaml:7",
        "two.yaml:15",
    ]
    done = CliRunner().invoke(validate, [two])
    assert done.stdout == "ok: b: 1 objective\nok: c: 1 objective\n"
    done = CliRunner().invoke(generate, [a, two, "-o", str(out), "--check"])
    assert done.exit_code == 0, done.stdout
    done = CliRunner().invoke(explain, [two])
    assert "b: over 30d\n" in done.stdout
    assert folder.relative(done.stderr)[0].startswith("two.yaml:7: warning: ")
    done = CliRunner().invoke(server_config, [two])
    assert "# Nothing: " in done.stdout


RULES = [*TEXTS, PLUGIN]


@pytest.mark.parametrize("text", RULES, ids=range(len(RULES)))
def test_rules_are_the_same_before_and_after(folder: Folder, text: str) -> None:
    loaded = load_file(folder.write(text), partly=True)
    ours = folder.services(folder.convert(text).stdout)
    assert [rules(service) for service in ours] == [rules(service) for service in loaded.services]


def rules(service: Service) -> dict[str, str]:
    return alerts.files(plan(replace(service, file="")), source="slo.yaml", version="0.1.0")


def test_a_service_that_occurs_twice_in_a_file_is_refused(folder: Folder) -> None:
    one = SLOTH.format(service="a")
    path = folder.write(f"{one}---\n{one}")
    done = CliRunner().invoke(generate, [path, "-o", str(folder.path / "out")])
    assert '"a" is also the service of line 2 of this file' in str(done.exception)
