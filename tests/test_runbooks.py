"""The runbook pages: whole, linked, in this objective's numbers, and only of queries that run."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from pathlib import Path, PurePosixPath

import pytest
from generic_example import generic_plan
from markdown_it import MarkdownIt
from promql_tree import selectors, unknown
from service_example import example, objective

import runbooks
from runbooks.causes import CAUSES
from runbooks.checks import CHECKS
from runbooks.pages import CAUSE_CHECKS, causes, checks
from slos.causes import CAUSE_ALERTS
from slos.indicators import INDICATORS
from slos.model import Alerting, PolicyStep, TimeSlices


def pages(plan):
    return runbooks.files(plan, source="slo.yaml", version="0.1.0")


def page(plan, name):
    return pages(plan)[f"runbooks/chat/{name}.md"]


PLAN = example()
PAGES = pages(PLAN)
QUERIES = [
    pytest.param(query, id=f"{PurePosixPath(path).stem} {i}")
    for path, text in PAGES.items()
    for i, query in enumerate(re.findall(r"```promql\n(.*?)```", text, re.DOTALL), 1)
]


def test_a_page_in_whole():
    name = "ChatKvHeadroomErrorBudgetExhausted"
    whole = Path(__file__).with_name("expected") / f"{name}.md"
    assert page(example(objective("kv_headroom")), name) == whole.read_text(encoding="utf-8")


def test_every_alert_has_its_page_where_its_runbook_url_points():
    for _, alert in PLAN.alerts():
        assert alert.runbook_url == f"https://runbooks.example.com/chat/{alert.name}.md"
        assert f"\n# {alert.name}\n" in PAGES[f"runbooks/chat/{alert.name}.md"]
    for planned in PLAN.causes:
        assert f"\n# {planned.alert.name}\n" in PAGES[f"runbooks/chat/{planned.alert.name}.md"]
    assert len(PAGES) == 1 + len(list(PLAN.alerts())) + len(PLAN.causes)


def test_pages_have_the_customary_sections_in_order():
    for path, text in PAGES.items():
        if not path.endswith("README.md"):
            assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
                "Meaning",
                "Impact",
                "Diagnosis",
                "Mitigation",
                "Verify",
                "Escalate",
                "Related",
            ]


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_can_run_and_asks_only_for_what_is_served(query):
    assert selectors(query)
    assert unknown(query) == []


@pytest.mark.parametrize("query", QUERIES)
def test_queries_about_the_engine_are_about_this_service(query):
    for each in selectors(query):
        if each.metric.startswith("llm_") and "model" not in each.labels:
            # The one exception looks for the signal under other labels.
            assert query.startswith("count by (model, version)")


@pytest.mark.parametrize("path", PAGES)
def test_every_link_leads_somewhere(path):
    text = PAGES[path]
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    for link in links:
        if link.startswith("#"):
            assert link[1:] in anchors
        elif not link.startswith("https://grafana.example.com/d/"):
            assert str(PurePosixPath(path).parent / link) in PAGES


def test_without_a_dashboard_address_pages_link_to_the_file():
    text = page(example(objective("ttft"), dashboards=""), "ChatTtftErrorBudgetBurn")
    assert "[Dashboard of chat](../../dashboards/chat.json)" in text


def test_a_burn_page_says_how_long_failures_take_to_fire():
    plan = example(objective("ttft", "0.95"))
    rows = re.findall(
        r"^\| (page|ticket) \|(.*)\|$", page(plan, "ChatTtftErrorBudgetBurn"), re.MULTILINE
    )
    told = [[cell.strip() for cell in row.split("|")] for _, row in rows]
    (planned,) = plan.objectives
    assert [row[0] for row in told] == [f"{p.long} and {p.short}" for p in planned.pairs]
    # 28 days at 95%: the fastest pair asks for 52.5% bad in 10 minutes.  Half of all requests never
    # reach that, all of them do after 315 s.
    assert told[0] == ["10m and 5m", "52.5%", "10.5", "0.26%", "5m15s", "never", "never"]
    assert told[1] == ["6h and 30m", "28%", "5.6", "5%", "1h41m", "3h22m", "never"]


def test_a_failure_of_a_part_is_as_bad_as_an_outage_for_time_slices():
    slices = TimeSlices(Decimal(60), Decimal("0.9"))
    plan = example(replace(objective("availability", "0.99"), slices=slices))
    text = page(plan, "ChatAvailabilityErrorBudgetBurn")
    [row, *_] = re.findall(r"^\| page \| 1h.*$", text, re.MULTILINE)
    assert len(set(row.split(" | ")[-3:-1])) == 1
    assert "never" not in row
    assert "of which more than 10% makes all of it bad." in text


def test_the_page_of_absent_metrics_asks_who_judges_against_the_threshold():
    assert CHECKS["threshold"].question in page(PLAN, "ChatTtftMetricAbsent")
    native = page(example(objective("ttft"), histograms="native"), "ChatTtftMetricAbsent")
    assert CHECKS["threshold"].question in native
    assert "count by (model, version) (llm_time_to_first_token_seconds)" in native


def test_what_an_objective_says_of_its_histogram_goes_before_the_service():
    one = replace(objective("ttft"), histograms="native")
    other = replace(objective("itl"), histograms="classic")
    for plan in (
        example(one, objective("itl")),
        example(objective("ttft"), other, histograms="native"),
    ):
        assert "sum(rate(llm_time_to_first_token_seconds{" in page(plan, "ChatTtftErrorBudgetBurn")
        assert "llm_inter_token_latency_seconds_bucket{" in page(plan, "ChatItlErrorBudgetBurn")


def test_the_budget_is_told_as_time():
    text = page(example(objective("availability", "0.999")), "ChatAvailabilityErrorBudgetBurn")
    assert "The error budget is the other 0.1%. If all were bad, it would last 40m." in text


def test_the_low_traffic_guard_is_told_only_where_there_is_one():
    guard = "requests were bad in its long window"
    assert f"at least 10 {guard}" in page(PLAN, "ChatTtftErrorBudgetBurn")
    without = example(alerting=Alerting(min_bad_events=0))
    assert guard not in page(without, "ChatTtftErrorBudgetBurn")


def test_the_owner_is_named_or_said_to_be_missing():
    assert "Call **inference-platform** when" in page(PLAN, "ChatTtftErrorBudgetBurn")
    assert "the SLO file names none" in page(example(owner=""), "ChatTtftErrorBudgetBurn")


@pytest.mark.parametrize("indicator", INDICATORS)
def test_every_step_leads_to_a_mitigation_on_the_same_page(indicator):
    plan = example(objective(indicator))
    for planned, alert in plan.alerts():
        steps = tuple(checks(planned, alert))
        assert steps
        remedies = causes(steps, alert)
        assert {step.points_to for step in steps} <= {cause.key for cause in remedies}
        assert all(cause.actions for cause in remedies)


def test_there_is_no_check_or_cause_that_no_page_uses():
    used = set(chain.from_iterable(CAUSE_CHECKS.values()))
    remedies = {alert.runbook for alert in CAUSE_ALERTS}
    for plan in (PLAN, generic_plan()):
        for planned, alert in plan.alerts():
            steps = tuple(checks(planned, alert))
            used |= {step.key for step in steps}
            remedies |= {cause.key for cause in causes(steps, alert)}
    assert used == set(CHECKS)
    assert remedies == set(CAUSES)


def test_every_cause_alert_has_steps_and_mitigations():
    assert CAUSE_CHECKS.keys() == {alert.name for alert in CAUSE_ALERTS}
    for planned in PLAN.causes:
        text = page(PLAN, planned.alert.name)
        remedy = CAUSES[planned.cause.runbook]
        assert f"\n### {remedy.title}\n" in text
        for key in CAUSE_CHECKS[planned.cause.name]:
            assert CHECKS[key].question in text


def test_causes_and_what_they_explain_link_to_each_other():
    index = PAGES["runbooks/chat/README.md"]
    for planned in PLAN.causes:
        name = planned.alert.name
        assert f"[{name}]({name}.md)" in index
        for explained in planned.explains:
            burn = explained.burn.name
            assert f"[{name}]({name}.md)" in page(PLAN, burn)
            assert f"[{burn}]({burn}.md)" in page(PLAN, name)


def test_the_steps_of_a_budget_policy_are_told():
    steps = (PolicyStep(Decimal("0.5"), "no risky | rollouts"), PolicyStep(Decimal(1), "freeze"))
    text = page(example(objective("ttft"), policy=steps), "ChatTtftErrorBudgetPolicy")
    assert "\n| 50% | no risky \\| rollouts |\n| 100% | freeze |\n" in text


def test_the_page_on_a_trickle_refers_to_the_steps_of_the_burn_rate_alert():
    text = page(example(objective("ttft", "0.95")), "ChatTtftLowTrafficErrors")
    assert "\nTake the steps of [ChatTtftErrorBudgetBurn](ChatTtftErrorBudgetBurn.md), with" in text
    assert "\nAs on [ChatTtftErrorBudgetBurn](ChatTtftErrorBudgetBurn.md).\n" in text


def test_the_page_on_a_trickle_tells_what_makes_one():
    text = page(example(objective("ttft", "0.95")), "ChatTtftLowTrafficErrors")
    assert (
        "More than 52.5% of the requests in the last 3d were bad, and that was at least 3 of them. "
        "The burn-rate alerts say nothing below 10"
    ) in text


def test_what_can_be_taken_back_at_once_comes_before_what_cannot():
    for cause in CAUSES.values():
        at_once = [action.effort == "Reversible at once" for action in cause.actions]
        assert at_once == sorted(at_once, reverse=True), cause.key


def test_what_a_restart_of_the_sidecar_costs_depends_on_its_tap():
    text = page(PLAN, "ChatTtftMetricAbsent")
    restart = "*Needs a restart of the sidecar. Risk: see [Restarting the sidecar]"
    assert f"- Restart the sidecar's container.\n  {restart}(#restarting-the-sidecar).*" in text
    rows = dict(re.findall(r"^\| (`--tap \w+=…`|no `--tap`) \| (.*?) \|", text, re.MULTILINE))
    assert list(rows) == ["`--tap proxy=…`", "`--tap capture=…`", "no `--tap`"]
    assert rows.pop("`--tap proxy=…`").startswith("New connections are refused")
    assert {*rows.values()} == {"Not affected."}
    for each in PAGES.values():
        assert "not in the request path" not in each
        assert ("### Restarting the sidecar" in each) is (restart in each)


def test_restarting_the_sidecar_is_never_called_free_of_risk():
    for cause in CAUSES.values():
        for action in cause.actions:
            restarts = re.search(r"sidecar.*--|sidecar's container|--listen", action.do)
            assert bool(restarts) is (action.effort == "Needs a restart of the sidecar"), action


def test_pages_of_many_objectives_share_their_mitigations():
    objectives = [replace(objective("ttft"), name=f"o{n}") for n in range(51)]
    few, many = pages(example(*objectives[:50])), pages(example(*objectives))
    shared = many["runbooks/chat/Mitigations.md"]
    assert "runbooks/chat/Mitigations.md" not in few
    headings = re.findall(r"^### (.*)$", shared, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    name = "runbooks/chat/ChatO1ErrorBudgetBurn.md"
    links = re.findall(r"\]\(Mitigations\.md#([^)]+)\)", many[name])
    assert links
    assert set(links) <= anchors
    assert not re.findall(r"\]\(#", many[name])
    assert len(many[name]) < 0.7 * len(few[name])


HOSTILE = "<img src=x onerror=alert(1)> [x](javascript:alert(1)) ![y](data:,) `a` **b** | c_d"


def test_texts_of_the_slo_file_are_no_markup():
    plan = example(
        owner=HOSTILE,
        description=HOSTILE,
        policy=(PolicyStep(Decimal(1), HOSTILE),),
        dashboards="https://grafana.example.com/x)[y](javascript:alert(1)",
    )
    parser = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table")
    for path, text in pages(plan).items():
        header, _, body = text.partition("\n")
        assert header.startswith("<!-- Made by tokenslo")
        for token in chain.from_iterable([t, *(t.children or ())] for t in parser.parse(body)):
            assert token.type not in ("html_block", "html_inline", "image") or token.content in (
                "<br>",  # ours, between links in a table
            ), path
            assert not str(token.attrGet("href") or "").startswith("javascript:"), path
    assert r"Owner: \<img src=x" in pages(plan)["runbooks/chat/README.md"]
    assert "c_d" in pages(plan)["runbooks/chat/README.md"]


def test_a_page_says_where_it_comes_from():
    for text in PAGES.values():
        assert text.startswith("<!-- Made by tokenslo 0.1.0 from slo.yaml. Do not edit. -->\n\n# ")
