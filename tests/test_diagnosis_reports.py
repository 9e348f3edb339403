"""A diagnosis as text, Markdown and JSON, compared whole."""

from __future__ import annotations

import json
from dataclasses import replace

from diagnosis.check_results import CheckResult
from diagnosis.diagnosis import BurnState, Diagnosis, RankedCause
from diagnosis.report_json import as_json
from diagnosis.report_text import as_markdown, as_text
from diagnosis.sidecar_status import SidecarStatus
from diagnosis.verdict import Decision
from promql.client import Sample
from runbooks.playbook import Action, Playbook, Step

PLAYBOOK = Playbook(
    key="kv_pressure",
    title="KV-cache pressure",
    layer="KV cache",
    symptoms=(),
    meaning="",
    impact="",
    steps=(Step("kv", "", "KV cache"),),
    actions=(
        Action(
            "Lower max_tokens.", "long responses end early", setting="`max_tokens` of the gateway"
        ),
        Action("Add instances.", effort="Needs a plan"),
    ),
    verified_by="waiting",
    escalate="",
    follow_up=(),
)
BY_HOST = [Sample({"instance": f"10.0.0.{n}:9464", "job": "tokenslo"}, 9.0 - n) for n in range(5)]
CHECKS = (
    CheckResult("alerts", "Do alerts on bad events fire?", "", "ALERTS{}", "no result", "sick", (
        Sample({"__name__": "ALERTS", "alertname": "ChatTtftErrorBudgetBurn", "slo": "ttft"}, 1.0),
    )),
    CheckResult("kv", "Is the KV cache full?", "", "max(kv)", "below 0.9", "sick",
                (Sample({}, 0.97),)),
    CheckResult("waiting", "Do sequences wait?", "", "w", "below 1", "sick", tuple(BY_HOST)),
    CheckResult("versions", "Is one worse?", "ttft", "v", "at most 0.01", "healthy", (
        Sample({"version": "1"}, 0.0012345),
    )),
    CheckResult("retries", "Do clients retry?", "", "r", "below 0.1", "no_data",
                reason="Prometheus has no llm_suspected_retries_total"),
    CheckResult("prompts", "Are prompts longer?", "", "p", "below 1.5", "failed",
                reason="Prometheus has not answered in 10 s"),
)  # fmt: skip
DIAGNOSIS = Diagnosis(
    service="chat",
    alert="ChatTtftErrorBudgetBurn",
    alert_state="firing",
    firing=("ChatTtftErrorBudgetBurn", "KvCachePressure"),
    objectives=(
        BurnState("ttft", 40.0, ("ChatTtftErrorBudgetBurn",)),
        BurnState("tpot", None, ()),
    ),
    checks=CHECKS,
    causes=(
        RankedCause(
            "kv_pressure", "KV-cache pressure", 0.87654, ("kv", "waiting"), ("versions",), PLAYBOOK,
            "runbooks/chat/playbooks/kv-pressure.md",
        ),
        RankedCause("unknown", "a cause without a playbook", 0.12346, (), (), None, ""),
    ),
    decision=Decision(
        "likely", "kv is sick; waiting is sick", ("kv_pressure", "unknown"), "prompts",
        "the check prompts. Sick means more work.",
    ),
    sidecar=SidecarStatus("http://10.0.0.1:9464", {}, {}, error="connection refused"),
)  # fmt: skip

TEXT = """\
chat: KV-cache pressure, likely (88%)
ChatTtftErrorBudgetBurn is firing.
Firing: ChatTtftErrorBudgetBurn, KvCachePressure.
Burn rates: ttft 40x.
The sidecar at http://10.0.0.1:9464 cannot be read: connection refused.

Checks:
  SICK    alerts           Do alerts on bad events fire?
                           ChatTtftErrorBudgetBurn; healthy: no result
  SICK    kv               Is the KV cache full?
                           0.97; healthy: below 0.9
  SICK    waiting          Do sequences wait?
                           9 {instance="10.0.0.0:9464"}, 8 {instance="10.0.0.1:9464"}, \
7 {instance="10.0.0.2:9464"} and 2 more; healthy: below 1
  ok      versions (ttft)  0.001234 {version="1"}; healthy: at most 0.01
  no data retries          Do clients retry?
                           Prometheus has no llm_suspected_retries_total; healthy: below 0.1
  FAILED  prompts          Are prompts longer?
                           Prometheus has not answered in 10 s; healthy: below 1.5

Verdict: KV-cache pressure, likely (88%).
Because kv is sick; waiting is sick.
KV-cache pressure (layer: KV cache)
  for: kv is sick (0.97); waiting is sick (9 {instance="10.0.0.0:9464"}, \
8 {instance="10.0.0.1:9464"}, 7 {instance="10.0.0.2:9464"} and 2 more)
  against: versions is healthy (0.001234 {version="1"})
Ranked: KV-cache pressure 88%, a cause without a playbook 12%.
Decides between KV-cache pressure and a cause without a playbook: the check prompts. \
Sick means more work.
First mitigation: Lower max_tokens.
  setting: `max_tokens` of the gateway
  risk: long responses end early
  effort: reversible at once
  verified by: the check waiting is healthy
Playbook: runbooks/chat/playbooks/kv-pressure.md
"""
MARKDOWN = """\
**chat: KV-cache pressure, likely (88%)**

- ChatTtftErrorBudgetBurn is firing.
- Firing: ChatTtftErrorBudgetBurn, KvCachePressure.
- Burn rates: ttft 40x.
- The sidecar at http://10.0.0.1:9464 cannot be read: connection refused.
- Verdict: KV-cache pressure, likely (88%).
- Because kv is sick; waiting is sick.
- KV-cache pressure (layer: KV cache)
  - for: kv is sick (0.97); waiting is sick (9 {instance="10.0.0.0:9464"}, \
8 {instance="10.0.0.1:9464"}, 7 {instance="10.0.0.2:9464"} and 2 more)
  - against: versions is healthy (0.001234 {version="1"})
- Ranked: KV-cache pressure 88%, a cause without a playbook 12%.
- Decides between KV-cache pressure and a cause without a playbook: the check prompts. \
Sick means more work.
- First mitigation: Lower max_tokens.
  - setting: `max_tokens` of the gateway
  - risk: long responses end early
  - effort: reversible at once
  - verified by: the check waiting is healthy
- Playbook: runbooks/chat/playbooks/kv-pressure.md

Sick and failed checks:

- **SICK** `alerts`: ChatTtftErrorBudgetBurn; healthy: no result
- **SICK** `kv`: 0.97; healthy: below 0.9
- **SICK** `waiting`: 9 {instance="10.0.0.0:9464"}, 8 {instance="10.0.0.1:9464"}, \
7 {instance="10.0.0.2:9464"} and 2 more; healthy: below 1
- **FAILED** `prompts`: Prometheus has not answered in 10 s; healthy: below 1.5

Healthy: versions.

No data: retries.
"""


def test_text_is_the_expected_one() -> None:
    assert as_text(DIAGNOSIS) == TEXT


def test_markdown_is_the_expected_one() -> None:
    assert as_markdown(DIAGNOSIS) == MARKDOWN


def test_json_is_the_expected_one() -> None:
    found = json.loads(as_json(DIAGNOSIS))
    checks, causes = found.pop("checks"), found.pop("causes")
    assert found == {
        "service": "chat",
        "alert": "ChatTtftErrorBudgetBurn",
        "alert_state": "firing",
        "firing": ["ChatTtftErrorBudgetBurn", "KvCachePressure"],
        "objectives": [
            {"name": "ttft", "burn_rate": 40.0, "firing": ["ChatTtftErrorBudgetBurn"]},
            {"name": "tpot", "burn_rate": None, "firing": []},
        ],
        "verdict": "likely",
        "because": "kv is sick; waiting is sick",
        "between": ["kv_pressure", "unknown"],
        "decided_by": "prompts",
        "decide": "the check prompts. Sick means more work.",
        "sidecar": {
            "url": "http://10.0.0.1:9464",
            "sources_down": {},
            "unavailable": {},
            "unready": [],
            "error": "connection refused",
        },
    }
    assert causes[0] == {
        "key": "kv_pressure",
        "title": "KV-cache pressure",
        "probability": 0.8765,
        "layer": "KV cache",
        "page": "runbooks/chat/playbooks/kv-pressure.md",
        "supports": ["kv", "waiting"],
        "contradicts": ["versions"],
        "mitigation": {
            "do": "Lower max_tokens.",
            "risk": "long responses end early",
            "effort": "Reversible at once",
            "setting": "`max_tokens` of the gateway",
        },
        "verified_by": "waiting",
    }
    assert (causes[1]["page"], causes[1]["mitigation"]) == (None, None)
    assert checks[3] == {
        "check": "versions",
        "objective": "ttft",
        "question": "Is one worse?",
        "query": "v",
        "healthy": "at most 0.01",
        "verdict": "healthy",
        "value": '0.001234 {version="1"}',
        "samples": [{"labels": {"version": "1"}, "value": 0.0012345}],
        "reason": None,
    }


def test_each_product_of_a_setting_has_a_line() -> None:
    action = replace(PLAYBOOK.actions[0], setting="NGINX: `a`.\nEnvoy: `b`.")
    cause = replace(DIAGNOSIS.causes[0], playbook=replace(PLAYBOOK, actions=(action,)))
    diagnosis = replace(DIAGNOSIS, causes=(cause, *DIAGNOSIS.causes[1:]))
    assert "\n  setting: NGINX: `a`.\n  setting: Envoy: `b`.\n" in as_text(diagnosis)
    assert "\n  - setting: NGINX: `a`.\n  - setting: Envoy: `b`.\n" in as_markdown(diagnosis)
