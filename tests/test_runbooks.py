"""The runbook pages: sections, links, numbers of the objective, and valid queries."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from pathlib import Path, PurePosixPath

import pytest
from generic_example import generic_plan
from markdown_it import MarkdownIt
from promql_selectors import selectors, unknown
from service_example import example, objective

import runbooks
from runbooks.check_queries import Subject
from runbooks.checks import CHECKS
from runbooks.markdown import promql
from runbooks.playbooks import PLAYBOOKS
from runbooks.triage import CAUSE_CHECKS, causes, checks
from slos.causes import CAUSE_ALERTS
from slos.indicators import GENERIC, INDICATORS
from slos.model import Alerting, Objective, PolicyStep, TimeSlices


def pages(plan):
    return runbooks.files(plan, source="slo.yaml", version="0.1.0")


def subject(plan, planned):
    return Subject(plan, planned, tuple(c for c in plan.causes if planned in c.explains))


def page(plan, name):
    return (PAGES if plan is PLAN else pages(plan))[f"runbooks/chat/{name}.md"]


PLAN = example()
PAGES = pages(PLAN)
QUERIES = {
    path: re.findall(r"```promql\n(.*?)```", text, re.DOTALL) for path, text in PAGES.items()
}


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


SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "Verify", "Escalate", "Related"]


def test_pages_have_the_customary_sections_in_order():
    for path, text in PAGES.items():
        if not path.endswith("README.md"):
            assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS


@pytest.mark.parametrize("path", PAGES)
def test_every_query_parses_and_selects_served_metrics(path):
    for query in QUERIES[path]:
        assert selectors(query), query
        assert unknown(query) == [], query


@pytest.mark.parametrize("path", PAGES)
def test_queries_about_the_engine_are_about_this_service(path):
    for query in QUERIES[path]:
        for each in selectors(query):
            if each.metric.startswith("llm_") and "model" not in each.labels:
                # The one exception looks for the signal under other labels.
                assert query.startswith("count by (model, version)")


def anchors(text):
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(path, all_pages):
    links = re.findall(r"\]\(([^)]+)\)", all_pages[path])
    assert links
    for link in links:
        if link.startswith("https://grafana.example.com/d/"):
            continue
        name, _, fragment = link.partition("#")
        linked = all_pages[str(PurePosixPath(path).parent / name) if name else path]
        assert not fragment or fragment in anchors(linked), link


@pytest.mark.parametrize("path", PAGES)
def test_every_link_leads_somewhere(path):
    check_links(path, PAGES)


def test_without_a_dashboard_address_pages_link_to_the_file():
    text = page(example(objective("ttft"), dashboards=""), "ChatTtftErrorBudgetBurn")
    assert "[Dashboard of chat](../../dashboards/chat-error-budget.json)" in text


def test_burn_page_has_the_detection_times():
    plan = example(objective("ttft", "0.95"))
    rows = re.findall(
        r"^\| (page|ticket) \|(.*)\|$", page(plan, "ChatTtftErrorBudgetBurn"), re.MULTILINE
    )
    reported = [[cell.strip() for cell in row.split("|")] for _, row in rows]
    (planned,) = plan.objectives
    assert [row[0] for row in reported] == [f"{p.long} and {p.short}" for p in planned.pairs]
    # 28 days at 95%: the fastest pair asks for 52.5% bad in 10 minutes.  Half of all requests never
    # reach that, all of them do after 315 s.
    assert reported[0] == ["10m and 5m", "52.5%", "10.5", "0.26%", "5m15s", "never", "never"]
    assert reported[1] == ["6h and 30m", "28%", "5.6", "5%", "1h41m", "3h22m", "never"]


def test_partial_failure_makes_time_slices_bad():
    slices = TimeSlices(Decimal(60), Decimal("0.9"))
    plan = example(replace(objective("availability", "0.99"), slices=slices))
    text = page(plan, "ChatAvailabilityErrorBudgetBurn")
    [row, *_] = re.findall(r"^\| page \| 1h.*$", text, re.MULTILINE)
    assert len(set(row.split(" | ")[-3:-1])) == 1
    assert "never" not in row
    assert "above 10%, the whole slice is bad." in text


def test_absent_metrics_page_checks_the_threshold():
    assert CHECKS["threshold"].question in page(PLAN, "ChatTtftMetricAbsent")
    native = page(example(objective("ttft"), histograms="native"), "ChatTtftMetricAbsent")
    assert CHECKS["threshold"].question in native
    assert "count by (model, version) (llm_time_to_first_token_seconds)" in native


def test_histogram_type_of_an_objective_overrides_the_service():
    one = replace(objective("ttft"), histograms="native")
    other = replace(objective("itl"), histograms="classic")
    for plan in (
        example(one, objective("itl")),
        example(objective("ttft"), other, histograms="native"),
    ):
        assert "sum(rate(llm_time_to_first_token_seconds{" in page(plan, "ChatTtftErrorBudgetBurn")
        assert "llm_inter_token_latency_seconds_bucket{" in page(plan, "ChatItlErrorBudgetBurn")


def test_a_burn_page_gives_the_budget_as_time():
    text = page(example(objective("availability", "0.999")), "ChatAvailabilityErrorBudgetBurn")
    assert "Error budget: 0.1%, which a total outage spends in 40m." in text


def test_a_burn_page_has_the_low_traffic_guard_only_where_there_is_one():
    guard = "requests were bad in the long one"
    assert f"at least 10 {guard}" in page(PLAN, "ChatTtftErrorBudgetBurn")
    without = example(alerting=Alerting(min_bad_events=0))
    assert guard not in page(without, "ChatTtftErrorBudgetBurn")


def test_pages_name_the_owner_and_the_index_a_missing_one():
    assert "Call **inference-platform** when" in page(PLAN, "ChatTtftErrorBudgetBurn")
    assert "\nOwner: inference-platform.\n" in page(PLAN, "README")
    without = example(owner="")
    assert "Call the service's owner when" in page(without, "ChatTtftErrorBudgetBurn")
    assert "\nOwner: none in the SLO file.\n" in page(without, "README")


@pytest.mark.parametrize("indicator", INDICATORS)
def test_every_step_leads_to_a_mitigation_on_the_same_page(indicator):
    plan = example(objective(indicator))
    for planned, alert in plan.alerts():
        steps = tuple(checks(subject(plan, planned), alert))
        assert steps
        remedies = causes(steps, alert)
        leads_to = {step.points_to for step in steps if step.points_to}
        assert leads_to <= {cause.key for cause in remedies}
        assert all(cause.actions for cause in remedies)


def test_there_is_no_check_or_cause_that_no_page_uses():
    used = set(chain.from_iterable(CAUSE_CHECKS.values()))
    used |= {step.check for playbook in PLAYBOOKS.values() for step in playbook.steps}
    remedies = {alert.runbook for alert in CAUSE_ALERTS}
    for plan in (PLAN, generic_plan()):
        for planned, alert in plan.alerts():
            steps = tuple(checks(subject(plan, planned), alert))
            used |= {step.key for step in steps}
            remedies |= {cause.key for cause in causes(steps, alert)}
    assert used == set(CHECKS)
    assert remedies <= set(PLAYBOOKS)


def test_every_cause_alert_has_steps_and_mitigations():
    assert CAUSE_CHECKS.keys() == {alert.name for alert in CAUSE_ALERTS}
    for planned in PLAN.causes:
        text = page(PLAN, planned.alert.name)
        remedy = PLAYBOOKS[planned.cause.runbook]
        assert f"\n### {remedy.title}\n" in text
        for key in CAUSE_CHECKS[planned.cause.name]:
            assert CHECKS[key].question in text


def test_pages_claim_no_inhibition_of_cause_alerts():
    for path, text in PAGES.items():
        assert not re.search("inhibit|silent|not sent", text), path


def test_causes_and_what_they_explain_link_to_each_other():
    index = PAGES["runbooks/chat/README.md"]
    for planned in PLAN.causes:
        name = planned.alert.name
        assert f"[{name}]({name}.md)" in index
        for explained in planned.explains:
            burn = explained.burn.name
            assert f"[{name}]({name}.md)" in page(PLAN, burn)
            assert f"[{burn}]({burn}.md)" in page(PLAN, name)


def test_pages_have_the_steps_of_the_budget_policy():
    steps = (PolicyStep(Decimal("0.5"), "no risky | rollouts"), PolicyStep(Decimal(1), "freeze"))
    text = page(example(objective("ttft"), policy=steps), "ChatTtftErrorBudgetPolicy")
    assert "\n| 50% | no risky \\| rollouts |\n| 100% | freeze |\n" in text


def test_the_low_traffic_page_refers_to_the_steps_of_the_burn_rate_alert():
    text = page(example(objective("ttft", "0.95")), "ChatTtftLowTrafficErrors")
    assert "\nTake the steps of [ChatTtftErrorBudgetBurn](ChatTtftErrorBudgetBurn.md), with" in text
    assert "\nAs on [ChatTtftErrorBudgetBurn](ChatTtftErrorBudgetBurn.md).\n" in text


def test_the_page_on_low_traffic_gives_the_condition():
    text = page(example(objective("ttft", "0.95")), "ChatTtftLowTrafficErrors")
    assert (
        "Over 52.5% of the requests of `chat` were bad for `ttft` in the last 3d: at least 3, and "
        "fewer than the 10 that a burn-rate alert needs."
    ) in text


def test_reversible_mitigations_come_first():
    for cause in PLAYBOOKS.values():
        at_once = [action.effort == "Reversible at once" for action in cause.actions]
        assert at_once == sorted(at_once, reverse=True), cause.key


def test_restart_costs_depend_on_the_tap():
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
    for cause in PLAYBOOKS.values():
        for action in cause.actions:
            restarts = re.search(r"sidecar.*--|sidecar's container|--listen", action.do)
            assert bool(restarts) is (action.effort == "Needs a restart of the sidecar"), action


def many():
    """Return a plan of every indicator, often enough for shared pages; some have own selectors."""
    kinds = [objective(key) for key in INDICATORS if key not in GENERIC]
    return example(
        *(replace(each, name=f"{each.name}-{n}") for n in range(5) for each in kinds),
        replace(objective("itl"), name="slow", threshold=Decimal(2), target=Decimal("0.9")),
        replace(objective("itl"), name="other", selector={"version": "2"}),
        Objective(
            "errors",
            "bad_events",
            Decimal("0.99"),
            queries={
                "bad": 'sum(rate(x_total{code="500"}[{window}]))',
                "total": "sum(rate(x_total[{window}]))",
            },
        ),
    )


SCREEN = 50  # lines
MANY = many()
MANY_PAGES = pages(MANY)
SHARED = {path: text for path, text in MANY_PAGES.items() if re.search(r"/\w+-[\w-]+\.md$", path)}


def test_pages_of_many_objectives_link_to_what_exists():
    for path in MANY_PAGES:
        check_links(path, MANY_PAGES)


def test_up_to_fifty_objectives_have_all_of_it_on_each_page():
    objectives = [replace(objective("ttft"), name=f"o{n}") for n in range(51)]
    names = pages(example(*objectives[:50])).keys()
    assert "runbooks/chat/Mitigations.md" not in names
    assert pages(example(*objectives)).keys() - names >= {
        "runbooks/chat/Mitigations.md",
        "runbooks/chat/ErrorBudgetBurn-ttft.md",
    }


def test_every_step_is_on_its_page_or_on_the_page_that_it_links_to():
    for planned, alert in MANY.alerts():
        if alert.kind == "low_traffic":
            continue
        text = MANY_PAGES[f"runbooks/chat/{alert.name}.md"]
        linked = re.findall(r"\]\((\w+-[\w-]+\.md)\)", text)
        of = subject(MANY, planned)
        for step in checks(of, alert):
            shared = [MANY_PAGES[f"runbooks/chat/{name}"] for name in linked]
            found = text if step.per_objective else "".join(shared)
            assert step.question in found
            assert promql(step.query(of)) in found
            assert f"Expect {step.healthy(of)}: " in found
            if step.points_to:
                title = PLAYBOOKS[step.points_to].title
                assert f"Otherwise: {title}." in found or f"Otherwise: [{title}](Mit" in found


def test_pages_of_many_objectives_have_the_sections_and_their_first_mitigation():
    for planned, alert in MANY.alerts():
        text = MANY_PAGES[f"runbooks/chat/{alert.name}.md"]
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
        assert planned.sentence in text
        assert len(text.partition("## Verify")[0].splitlines()) <= 2 * SCREEN
        own = [step for step in checks(subject(MANY, planned), alert) if step.per_objective]
        for cause in causes(own, alert) if alert.kind != "low_traffic" else ():
            assert f"): {cause.actions[0].do}\n" in text


def test_objectives_with_a_selector_of_their_own_have_steps_of_their_own():
    ours, other = (
        re.findall(r"\]\((ErrorBudgetBurn-itl[\w-]*\.md)\)", MANY_PAGES[f"runbooks/chat/{name}"])
        for name in ("ChatItl0ErrorBudgetBurn.md", "ChatOtherErrorBudgetBurn.md")
    )
    assert ours == ["ErrorBudgetBurn-itl.md"]
    assert ours != other
    assert 'version="2"' in MANY_PAGES[f"runbooks/chat/{other[0]}"]
    assert 'version="2"' not in MANY_PAGES[f"runbooks/chat/{ours[0]}"]


def test_pages_of_causes_of_many_objectives_stay_short():
    for planned in MANY.causes:
        text = MANY_PAGES[f"runbooks/chat/{planned.alert.name}.md"]
        assert text.count("ErrorBudgetBurn.md") <= 50


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


def test_pages_use_standard_terms():
    banned = r"(?i)\b(nobody|somebody|told|promise[ds]?|readings?|let go|befalls?|whoever)\b"
    for path, text in chain(PAGES.items(), MANY_PAGES.items()):
        assert not re.search(banned, text), (path, re.search(banned, text))


def test_page_names_its_source():
    for text in PAGES.values():
        assert text.startswith("<!-- Made by tokenslo 0.1.0 from slo.yaml. Do not edit. -->\n\n# ")
