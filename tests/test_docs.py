"""The documentation agrees with the code: tables, outputs, links, facts and names of files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner
from gate_example import GATE, measurements
from service_example import example, objective
from test_diagnosis_reports import DIAGNOSIS

from alerts.backtest import History, backtest
from alerts.backtest_report import as_json as backtest_json
from alerts.backtest_report import as_text as backtest_text
from diagnosis.report_json import as_json as diagnosis_json
from diagnosis.report_text import as_text as diagnosis_text
from exporter.background import TaskState
from exporter.objectives.objective_status import evaluate
from exporter.web.readiness import readiness
from exporter.web.status import Status
from exporter.web.status_json import status_json
from gates.measurement import ArmLabels
from gates.report import Context
from gates.report import as_json as gate_json
from gates.verdict import decide
from slos import names
from slos.causes import CAUSE_ALERTS
from slos.explain import as_json as explain_json
from slos.explain import explain
from slos.load import load_file
from slos.model import PolicyStep
from tests.views import FIRST_TOKEN, UP, measured, view
from tokenslo.commands.signals import signals
from tools.docs.pages import ROOT, Fence, every_fence, fences, pages, render
from tools.docs.sandbox import CommandError

DOCS = ROOT / "docs"
ALL_PAGES = pages()
KINDS = ("how-to", "reference", "explanation")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", pages(), ids=name)
def test_generated_tables_and_printed_outputs_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert render(text) == text, "write it again: make examples"


def test_a_stale_output_table_or_exit_code_would_be_found() -> None:
    stale = "```console\n$ tokenslo --version\ntokenslo 0\n```\n"
    assert "tokenslo 0.1.0" in render(stale)
    assert "tokenslo 0.1.0" in render("```console\n$ tokenslo \\\n    --version\nx\n```\n")
    assert "| TL001 |" in render("<!-- generated: checks -->\n<!-- end -->\n")
    with pytest.raises(CommandError, match=r"`tokenslo validate x.yaml` ends with 2 instead of 0"):
        render("```console\n$ tokenslo validate x.yaml\n```\n")


def test_the_signals_page_is_current() -> None:
    printed = CliRunner().invoke(signals).output
    assert (DOCS / "reference/signals.md").read_text() == printed, "write it again: make examples"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name)
def test_a_page_has_its_kind_a_title_and_a_sentence_about_its_reader(page: Path) -> None:
    assert page.parent.name in KINDS or name(page) in ("docs/README.md", "docs/tutorial.md")
    title, blank, first = page.read_text(encoding="utf-8").splitlines()[:3]
    assert title.startswith("# ")
    assert not blank
    assert first.startswith("For ")


def test_the_index_lists_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = {(DOCS / path).resolve() for path in re.findall(r"\]\(([^)#]+\.md)\)", index)}
    assert linked == {*DOCS.rglob("*.md")} - {DOCS / "README.md"}


# Links


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=name)
def test_links_have_existing_targets(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_pages_named_in_the_code_exist() -> None:
    named = {
        path
        for file in ROOT.glob("[a-z]*/**/*.py")
        if file.parts[len(ROOT.parts)] in ("alerts", "exporter", "promql", "slos", "tokenslo")
        for path in re.findall(r"\bdocs/[\w/-]+\.md", file.read_text(encoding="utf-8"))
        if "backend" not in path and path != "docs/model_config.md"
    }
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


# Files that pages show


@pytest.mark.parametrize(
    ("page", "fence"),
    [
        pytest.param(page, fence, id=f"{page}:{fence.line}")
        for page, fence in every_fence("yaml", "jsonnet")
        if "tokenslo/v1" in fence.body and fence.title != "broken.yaml"
    ],
)
def test_slo_files_are_valid(page: str, fence: Fence, tmp_path: Path) -> None:
    for other in fences((ROOT / page).read_text(encoding="utf-8")):
        if other.title.endswith(".libsonnet"):
            (tmp_path / Path(other.title).name).write_text(other.body)
    file = tmp_path / f"slo.{fence.kind}"
    file.write_text(fence.body)
    assert load_file(file, [tmp_path]).services


# Facts


PLAN = example(policy=(PolicyStep(Decimal("0.5"), "stop"),))
SHOWN = view(
    measured("ttft", FIRST_TOKEN),
    measured("kv_utilization", 0.5),
    sources=(replace(UP, errors={}),),
)
STATUS = Status(
    "1", "now", SHOWN, readiness(SHOWN, 5), evaluate([PLAN.service], SHOWN), (TaskState("a"),)
)
COMPARED = Context(
    "chat", ArmLabels({"version": "2"}, {"version": "1"}), "15m", "2026-05-04T12:00:00Z"
)
BURNT = backtest(PLAN, PLAN.objectives[0], History(0.0, 60.0, [1.0] * 60, [1.0] * 60))


def keys(value: object) -> Iterator[str]:
    """Yield every key except shares of bad events, which are data."""
    if isinstance(value, dict):
        yield from (key for key in value if key[0].isalpha())
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from keys(inner)


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("Explain", explain_json([(PLAN, explain(PLAN))])),
        ("Backtest", backtest_json([(PLAN, [BURNT])])),
        ("Diagnose", diagnosis_json(replace(DIAGNOSIS, checks=DIAGNOSIS.checks[1:2]))),
        ("Gate", gate_json(COMPARED, decide(GATE, measurements(), 1.0, 1.0))),
        ("Status", status_json(STATUS)),
    ],
)
def test_every_key_of_json_is_described_and_no_other(section: str, text: str) -> None:
    page = (DOCS / "reference/json-output.md").read_text()
    described = page.partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", described, re.MULTILINE)
    made = set(keys(json.loads(text)))
    assert {name for row in rows for name in re.findall(r"`(\w+)`", " ".join(row))} >= made
    assert {name for keys_, _ in rows for name in re.findall(r"`(\w+)`", keys_)} <= made


def test_the_output_of_a_backtest_is_current() -> None:
    """Backtest an outage of half an hour on the last of four days, at ten requests/s."""
    day = 1_440
    total = [10.0] * 4 * day
    bad = [10.0 if 3 * day <= minute < 3 * day + 30 else 0.0 for minute in range(4 * day)]
    plan = example(objective("availability", "0.99"))
    start = 1_767_225_600.0
    found = backtest(plan, plan.objectives[0], History(start, 60.0, bad, total))
    (shown,) = (fence for _, fence in every_fence("text") if fence.title == "backtest")
    assert shown.body == backtest_text(plan, [found])


def test_the_output_of_a_diagnosis_is_current() -> None:
    (shown,) = (fence for _, fence in every_fence("text") if fence.title == "diagnosis")
    assert shown.body == diagnosis_text(DIAGNOSIS)


def test_the_worked_example_of_a_diagnosis_follows_from_its_tables() -> None:
    """Recompute the odds of two causes from the printed priors and likelihoods."""
    page = (DOCS / "explanation/diagnosis.md").read_text()
    rows = [
        [cell.strip("` ") for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| ")
    ]
    results = [row for row in rows if len(row) == 8 and row[1] in ("sick", "healthy")]
    assert len(results) == 7
    products = []
    for given, ratio in ((4, 6), (5, 7)):
        product = 1.0
        strongest: dict[tuple[str, bool], float] = {}
        for row in results:
            found = float(row[given]) / float(row[3])
            group = (row[2] or row[0], found > 1)
            best = strongest.get(group, 1.0)
            strongest[group] = max(best, found) if found > 1 else min(best, found)
            assert float(row[ratio].strip("()")) == pytest.approx(found, rel=0.01)
        for found in strongest.values():
            product *= found
        products.append(product)
    ranked = {row[0].split("`")[1]: row for row in rows if len(row) == 4 and "`" in row[0]}
    first, second = ranked["kv_pressure"], ranked["overload"]
    assert [float(first[2]), float(second[2])] == pytest.approx(products, rel=0.01)
    odds = float(first[1]) * products[0] / (float(second[1]) * products[1])
    assert odds == pytest.approx(float(first[3]) / float(second[3]), rel=0.05)


def first_column(page: str, heading: str) -> list[str]:
    section = (DOCS / page).read_text().partition(f"{heading}\n")[2]
    section = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)


def test_every_alert_and_cause_is_described() -> None:
    suffixes = {
        names.BURN,
        names.EXHAUSTED,
        names.ABSENT,
        names.INCONSISTENT,
        names.LOW_TRAFFIC,
        names.POLICY,
    }
    described = first_column("reference/rules.md", "## Alerts of an objective")
    assert {each.strip("…") for each in described if each.startswith("…")} == suffixes
    causes = first_column("reference/rules.md", "## Causes")
    assert causes[: len(CAUSE_ALERTS)] == [alert.name for alert in CAUSE_ALERTS]
    conditions = causes[len(CAUSE_ALERTS) : 2 * len(CAUSE_ALERTS)]
    assert conditions == [alert.name for alert in CAUSE_ALERTS]


def test_every_recorded_series_is_described() -> None:
    page = (DOCS / "reference/recorded-series.md").read_text().partition("## Increases")[0]
    rules = (ROOT / "examples/chat/alerts/chat.rules.yaml").read_text()
    recorded = {re.sub(r"rate\w+$", "rate", each) for each in re.findall(r"record: (\S+)", rules)}
    described = {re.sub(r"rate\w+$", "rate", each) for each in re.findall(r"`(slo:[^`]+)`", page)}
    assert described == recorded


def test_defaults_of_slo_files_are_those_of_the_loader(tmp_path: Path) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text(
        "apiVersion: tokenslo/v1\nservice: a\nobjectives:\n"
        "  - {name: b, indicator: availability, target: 99%}\n"
    )
    (service,) = load_file(file).services
    page = (DOCS / "reference/slo-language.md").read_text()
    defaults = dict(re.findall(r"^\| `([\w.]+)` \| .*? \| `([^|]+)` \|", page, re.MULTILINE))
    assert defaults["window"] == f"{int(service.window) // 86_400}d"
    assert (defaults["rules"], defaults["histograms"]) == (service.rules, service.histograms)
    assert defaults["alerting.min_bad_events"] == str(service.alerting.min_bad_events)
    for tier in ("page", "ticket", "cause"):
        severity = getattr(service.alerting, tier).labels["severity"]
        assert defaults[f"alerting.{tier}"] == f"{{labels: {{severity: {severity}}}}}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def test_files_named_in_the_contributors_table_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rows = page.partition("## Where to change what\n")[2].partition("\n## ")[0]
    places = [
        re.findall(r"`([\w./]+(?:\.py|/|\.md))`", row) for row in rows.splitlines() if "`" in row
    ]
    assert len(places) >= 10
    assert all(len(row) >= 1 for row in places)
    assert [path for row in places for path in row if not (ROOT / path).exists()] == []
