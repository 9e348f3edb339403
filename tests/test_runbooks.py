"""The runbook pages: sections, links, numbers of the objective, and valid queries."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from pathlib import Path, PurePosixPath
from posixpath import normpath

import pytest
from generic_example import generic_plan
from markdown_it import MarkdownIt
from promql_selectors import selectors, unknown
from service_example import example, objective

import runbooks
from runbooks.check_queries import Subject
from runbooks.check_section import TRIAGE_CHECKS, triage
from runbooks.checks import CHECKS
from runbooks.markdown import DETAILS, TRIAGE, playbook_file, playbook_link, promql, sentence
from runbooks.playbooks import PLAYBOOKS
from runbooks.playbooks.generic import GENERIC as GENERIC_PLAYBOOKS
from runbooks.triage import checks, playbooks, playbooks_of
from slos.indicators import GENERIC, INDICATORS
from slos.model import Alerting, Objective, PolicyStep, TimeSlices, TokenQuota


def pages(plan):
    return runbooks.files(plan, source="slo.yaml", version="0.1.0")


def subject(plan, planned):
    return Subject(plan, planned, tuple(c for c in plan.causes if planned in c.explains))


def page(plan, name):
    return (PAGES if plan is PLAN else pages(plan))[f"runbooks/chat/{name}.md"]


PLAN = example()
GENERIC_PLAN = generic_plan()
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
    assert len(PAGES) == 1 + len(list(PLAN.alerts())) + len(PLAN.causes) + len(playbooks_of(PLAN))


ALERT_SECTIONS = [
    "Meaning",
    "Impact",
    TRIAGE,
    "Other playbooks",
    DETAILS,
    "Verify",
    "Escalate",
    "Related",
]
CAUSE_SECTIONS = ["Meaning", "Impact", TRIAGE, DETAILS, "Verify", "Escalate", "Related"]
QUOTA_SECTIONS = ["Meaning", "Impact", TRIAGE, "Mitigation", "Verify", "Escalate", "Related"]
PLAYBOOK_SECTIONS = [
    "Meaning", "Impact", "Diagnosis", "Mitigation", "Verify", "Escalate", "Follow-up", "See also",
]  # fmt: skip


def sections(text):
    return re.findall(r"^## (.*)$", text, re.MULTILINE)


def test_pages_have_the_customary_sections_in_order():
    for plan, made in ((PLAN, PAGES), (GENERIC_PLAN, pages(GENERIC_PLAN))):
        home = f"runbooks/{plan.service.service}"
        for _, alert in plan.alerts():
            found = sections(made[f"{home}/{alert.name}.md"])
            assert [each for each in ALERT_SECTIONS if each in found] == found
            assert {*ALERT_SECTIONS} - {*found} <= {"Other playbooks", DETAILS}
        for cause in plan.causes:
            found = sections(made[f"{home}/{cause.alert.name}.md"])
            assert [each for each in CAUSE_SECTIONS if each in found] == found
            assert {*CAUSE_SECTIONS} - {*found} <= {DETAILS}
        for playbook in playbooks_of(plan):
            assert sections(made[f"{home}/{playbook_file(playbook.key)}"]) == PLAYBOOK_SECTIONS


SCREEN_LINES = 45


def test_alert_pages_fit_on_two_screens_before_their_details():
    for plan in (PLAN, MANY, GENERIC_PLAN):
        made = pages(plan)
        for _, alert in plan.alerts():
            text = made[f"runbooks/{plan.service.service}/{alert.name}.md"]
            above = re.split(f"\n## (?:{DETAILS}|Verify)\n", text)[0]
            height = sum(max(1, -(-len(line) // 100)) for line in above.splitlines())
            assert height <= 2 * SCREEN_LINES, (alert.name, height)
            assert 1 <= above.count("\n### ") <= TRIAGE_CHECKS


def meaning(text):
    return text.partition("\n## Meaning\n")[2].partition("\n## ")[0].strip()


def test_pages_of_causes_have_two_sentences_two_checks_and_a_playbook():
    for plan in (PLAN, MANY, GENERIC_PLAN):
        for cause in plan.causes:
            text = page(plan, cause.alert.name)
            above = re.split(f"\n## (?:{DETAILS}|Verify)\n", text)[0]
            assert len(re.findall(r"[.?!](?: |$)", meaning(text))) == 2, meaning(text)
            assert above.count("\n### ") == above.count("\nExpect ") == 2
            assert f"Otherwise open {playbook_link(PLAYBOOKS[cause.cause.runbook])}." in above
            height = sum(max(1, -(-len(line) // 100)) for line in above.splitlines())
            assert height <= 2 * SCREEN_LINES, (cause.alert.name, height)


def test_pages_of_quotas_have_the_value_that_decides():
    quotas = (TokenQuota("acme", 1_000_000, "day"),)
    plan = example(objective("ttft"), quotas=quotas)
    made = pages(plan)
    for name in ("NearlyUsed", "Exceeded", "Projected"):
        (text,) = (text for path, text in made.items() if path.endswith(f"Quota{name}.md"))
        assert sections(text) == QUOTA_SECTIONS
        assert text.count("\n### ") == text.count("\nExpect ") == 2


def test_playbooks_link_what_their_steps_do_not():
    for path, text in PAGES.items():
        if "/playbooks/" in path:
            steps, _, see = text.partition("\n## See also\n")
            steps = steps.partition("\n## Diagnosis\n")[2].partition("\n## Mitigation\n")[0]
            linked = set(re.findall(r"\]\(([a-z-]+\.md)\)", steps))
            assert not linked & set(re.findall(r"\]\(([a-z-]+\.md)\)", see)), path


def test_every_triage_check_has_its_query_its_value_and_its_playbook():
    for planned, alert in PLAN.alerts():
        of = subject(PLAN, planned)
        above = re.split(f"\n## (?:{DETAILS}|Verify)\n", page(PLAN, alert.name))[0]
        found = checks(of, alert)
        for number, check in enumerate(triage(of, found), 1):
            _, _, section = above.partition(f"\n### {number}. {check.question}\n")
            assert promql(check.query(of)) in section
            assert f"Expect {check.healthy(of)}." in section
            if check.points_to:
                assert f"]({playbook_file(check.points_to)})" in section
        for playbook in playbooks(found, alert):
            assert f"[{playbook.title}]({playbook_file(playbook.key)})" in above


def test_triage_of_latencies_refers_to_the_procedure_by_layer():
    last = "; without one, [p99 spike by layer](playbooks/latency-spike.md).\n"
    timed = {"ttft", "itl", "tpot", "max_gap", "e2e", "queue", "goodput"}
    for planned, alert in PLAN.alerts():
        is_timed = alert.kind == "burn" and planned.objective.indicator in timed
        assert (last in page(PLAN, alert.name)) is is_timed, alert.name


def test_playbooks_have_the_checks_of_the_whole_service():
    text = page(many(), "playbooks/bad-rollout")
    assert 'version="2"' not in text
    assert "Queries about one objective are those of " in text


def test_the_texts_of_playbooks_are_on_their_pages_only():
    for playbook in PLAYBOOKS.values():
        for action in playbook.actions:
            if len(action.do) > 40:
                holders = [path for path, text in PAGES.items() if action.do in text]
                assert all("/playbooks/" in path for path in holders)


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
        linked = all_pages[normpath(PurePosixPath(path).parent / name) if name else path]
        assert not fragment or fragment in anchors(linked), link


@pytest.mark.parametrize("path", PAGES)
def test_every_link_leads_somewhere(path):
    check_links(path, PAGES)


def test_without_a_dashboard_address_pages_name_its_file():
    text = page(example(objective("ttft"), dashboards=""), "ChatTtftErrorBudgetBurn")
    assert "\n- Dashboard of chat: `dashboards/chat-error-budget.json`\n" in text


def test_burn_page_has_the_detection_times():
    plan = example(objective("ttft", "0.95"))
    rows = re.findall(
        r"^\| (page|ticket) \|(.*)\|$", page(plan, "ChatTtftErrorBudgetBurn"), re.MULTILINE
    )
    reported = [[cell.strip() for cell in row.split("|")] for _, row in rows]
    (planned,) = plan.objectives
    assert [row[0] for row in reported] == [f"{p.long} and {p.short}" for p in planned.pairs]
    # 28 days at 95%: the fastest pair fires at 52.5% bad in 10 minutes.  Half of all requests never
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
    guard = "bad requests in the long one"
    assert f"at least 10 {guard}" in page(PLAN, "ChatTtftErrorBudgetBurn")
    without = example(alerting=Alerting(min_bad_events=0))
    assert guard not in page(without, "ChatTtftErrorBudgetBurn")


def test_pages_name_the_owner_and_the_index_a_missing_one():
    assert "Call **inference-platform** when" in page(PLAN, "ChatTtftErrorBudgetBurn")
    assert "\nOwner: inference-platform.\n" in page(PLAN, "README")
    without = example(owner="")
    assert "Call the service's owner when" in page(without, "ChatTtftErrorBudgetBurn")
    assert "\nOwner: none in the SLO file.\n" in page(without, "README")


def test_every_check_is_on_a_page():
    used = {step.check for playbook in PLAYBOOKS.values() for step in playbook.steps}
    for plan in (PLAN, GENERIC_PLAN):
        for planned, alert in plan.alerts():
            used |= {check.key for check in checks(subject(plan, planned), alert)}
    assert used == set(CHECKS)


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
            assert "](README.md#cause-alerts)" in page(PLAN, burn)
            assert f"[{burn}]({burn}.md)" in page(PLAN, name)


def test_playbooks_name_an_owner_if_the_service_has_one():
    owned = pages(replace(PLAN, service=replace(PLAN.service, owner="team-a")))
    for path in PAGES:
        if "/playbooks/" in path:
            assert "Owner of the service: **team-a**." in owned[path]
    for path, text in pages(replace(PLAN, service=replace(PLAN.service, owner=""))).items():
        assert "Owner of the service:" not in text, path


def test_pages_have_the_steps_of_the_budget_policy():
    steps = (PolicyStep(Decimal("0.5"), "no risky | rollouts"), PolicyStep(Decimal(1), "freeze"))
    text = page(example(objective("ttft"), policy=steps), "ChatTtftErrorBudgetPolicy")
    assert "\n| 50% | no risky \\| rollouts |\n| 100% | freeze |\n" in text


def test_the_page_on_low_traffic_gives_the_condition():
    text = page(example(objective("ttft", "0.95")), "ChatTtftLowTrafficErrors")
    assert (
        "Over 52.5% of the requests of `chat` were bad for `ttft` in the last 3d: at least 3, and "
        "fewer than the 10 that a burn-rate alert needs."
    ) in text


def test_steps_link_to_the_playbooks_of_their_checks():
    text = page(PLAN, "playbooks/latency-spike")
    sections = text.split("\n### ")[1:]
    for step in PLAYBOOKS["latency_spike"].steps:
        check = CHECKS[step.check]
        (section,) = (each for each in sections if check.question in each)
        target = playbook_file(check.points_to).removeprefix("playbooks/")
        assert f"Playbook: [{PLAYBOOKS[check.points_to].title}]({target})." in section


def test_a_step_does_not_link_to_its_own_page():
    text = page(PLAN, "playbooks/timeout-storm")
    assert "Playbook: [" in text
    assert "](timeout-storm.md)" not in text


def test_settings_of_several_products_are_a_list_within_their_action():
    text = page(PLAN, "playbooks/gateway-timeout")
    mitigation = text.partition("## Mitigation\n")[2].partition("\n## ")[0]
    tokens = MarkdownIt("commonmark").parse(mitigation)
    items = [token.level for token in tokens if token.type == "list_item_open"]
    actions = PLAYBOOKS["gateway_timeout"].actions
    several = [a.setting.count("\n") + 1 for a in actions if "\n" in a.setting]
    assert items.count(1) == len(actions)
    assert items.count(3) == sum(several) > 0
    costs = [t.level for t in tokens if t.type == "inline" and "*Reversible at once." in t.content]
    assert set(costs) == {3}


def test_an_empty_line_ends_each_mitigation():
    for path, text in PAGES.items():
        mitigation = text.partition("\n## Mitigation\n")[2].partition("\n## ")[0]
        numbered = re.findall(r"^\d+\. ", mitigation, re.MULTILINE)
        assert len(re.findall(r"\n\n\d+\. ", f"\n{mitigation}")) == len(numbered), path


def test_reversible_mitigations_come_first():
    for cause in PLAYBOOKS.values():
        at_once = [action.effort == "Reversible at once" for action in cause.actions]
        assert at_once == sorted(at_once, reverse=True), cause.key


def test_restart_costs_depend_on_the_tap():
    restart = "*Needs a restart of the sidecar. Risk: see [Restarting the sidecar]"
    holders = [text for text in PAGES.values() if restart in text]
    assert holders
    for text in holders:
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


MANY = many()
MANY_PAGES = pages(MANY)


def test_pages_of_many_objectives_link_to_what_exists():
    for path in MANY_PAGES:
        check_links(path, MANY_PAGES)


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


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("weights of the route", "Weights of the route."),
        ("`max_tokens` of a request", "`max_tokens` of a request."),
        ("config.pbtxt of the model", "config.pbtxt of the model."),
        ("vLLM backend: a flag.", "vLLM backend: a flag."),
        ("trtllm-serve: a flag", "trtllm-serve: a flag."),
    ],
)
def test_a_sentence_starts_with_a_capital_unless_with_a_name(text, written):
    assert sentence(text) == written


def test_the_index_lists_every_playbook_by_symptom():
    _, _, by_symptom = PAGES["runbooks/chat/README.md"].partition("\n## By symptom\n")
    listed = playbooks_of(PLAN)
    for playbook in listed:
        link = f"[{playbook.title}]({playbook_file(playbook.key)})"
        assert f"| {'; '.join(playbook.symptoms)} | {link} |" in by_symptom
    assert {each.key for each in (*listed, *GENERIC_PLAYBOOKS)} == {*PLAYBOOKS}
