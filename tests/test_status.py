"""The status page and its JSON."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

from exporter.objectives.objective_status import evaluate
from exporter.samples import Distribution, Labels, ModelInfo, Value
from exporter.store.view import SourceState, View
from exporter.web.page_assets import CONTENT_SECURITY_POLICY
from exporter.web.readiness import readiness
from exporter.web.status import Status
from exporter.web.status_json import readiness_json, status_json
from exporter.web.status_page import status_html
from tests.service_example import objective, service
from tests.views import busy, measured, unavailable, view

EVIL = "</td><script>alert('model')</script>\"&<img src=x onerror=alert(1)>"


def status(shown: View) -> Status:
    objectives = evaluate([service(objective("ttft"))], shown)
    return Status("1.2.3", "2026-01-02T03:04:05Z", shown, readiness(shown, 5), objectives)


class StatusPageParser(HTMLParser):
    """What a browser would see: tags with attributes, and the text of each table row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.titles: list[str] = []
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self._inside.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "h2":
            self.titles.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag, f"unbalanced </{tag}>"

    def handle_data(self, data: str) -> None:
        if "h2" in self._inside:
            self.titles[-1] += data
        elif {"td", "th"} & set(self._inside):
            self.rows[-1][-1] += ("\n" if self._inside[-1] in ("small", "code") else "") + data
        for tag, found in (("script", self.scripts), ("style", self.styles)):
            if tag in self._inside:
                found.append(data)


def rows(html: str) -> dict[str, list[str]]:
    return {row[0].split("\n")[0].strip(): row[1:] for row in StatusPageParser(html).rows}


def test_each_signal_is_shown_with_value_method_and_quality() -> None:
    shown = rows(status_html(status(busy())))
    assert shown["Time to first token"] == [
        "p50 ≈0.58 s",
        "10 observed",
        "Triton's first-response histogram\nwhole milliseconds",
        "estimate",
    ]
    assert shown["Requests by outcome"][:2] == ["no history yet", "error 9, ok 981"]
    assert shown["KV-cache utilization"][0] == "50.0%"
    assert shown["Active sequences"][3] == "exact"


def test_tenants_are_summed_on_the_page_and_separate_in_json() -> None:
    def labels(tenant: str) -> Labels:
        return (("outcome", "ok"), ("phase", "complete"), ("tenant", tenant))

    streams = measured("streams", {labels(name): 2.0 for name in ("a", "b", "c")})
    shown = status(view(streams))
    assert rows(status_html(shown))["Streams by outcome"][1] == "ok complete 6"
    document = json.loads(status_json(shown))
    samples = document["models"][0]["signals"][0]["samples"]
    assert [one["labels"]["tenant"] for one in samples] == ["a", "b", "c"]


def test_unavailable_signals_are_folded_below_with_reason_and_fix() -> None:
    html = status_html(status(busy()))
    assert '<details data-key="llama/1"><summary>1 signal unavailable</summary>' in html
    assert rows(html)["Inter-token latency"] == [
        "\nTriton does not see token gaps\nFix: serve with the vLLM backend",
    ]
    order = [row[0].split("\n")[0] for row in StatusPageParser(html).rows]
    assert order.index("Inter-token latency") > order.index("KV-cache utilization")


def test_sources_objectives_and_excluded_models_are_shown() -> None:
    html = status_html(status(busy()))
    shown = rows(html)
    assert StatusPageParser(html).titles == [
        "Sources",
        "Objectives",
        "llama version 1 · tensorrtllm · streams · engine statistics 0.2 s old",
        "Excluded models",
    ]
    assert shown["chat/ttft"][:3] == ["99%: its first token comes within 800ms", "", "llama"]
    assert shown["tokenizer"] == ["not decoupled"]
    assert any(
        row[:2] == ["\ntriton/statistics", "down\nanswered 503"]
        for row in StatusPageParser(html).rows
    )


def test_amounts_are_readable() -> None:
    shown = rows(
        status_html(
            status(
                view(
                    measured("memory_gpu", 71.3 * 2**30),
                    measured("memory_cpu", 12.0),
                    measured("output_tokens", 1234567.0, "trtllm_output_length"),
                    measured("ttft", Distribution((1.0, float("inf")), (0.0, 0.0), 0.0)),
                )
            )
        )
    )
    assert [shown[name][0] for name in ("GPU memory", "CPU memory")] == ["71.3 GiB", "12 B"]
    assert shown["Output tokens"][1] == "1,234,567"
    assert shown["Time to first token"][1] == "0 observed"


def test_zeros_are_left_out_and_no_outcome_is_written_twice() -> None:
    def labels(outcome: str, reason: str) -> Labels:
        return (("outcome", outcome), ("reason", reason))

    outcomes: dict[Labels, Value] = {
        (("outcome", "ok"),): 3.0,
        (("outcome", "error"),): 0.0,
    }
    failures: dict[Labels, Value] = {
        labels("cancelled", "canceled"): 2.0,
        labels("timeout", "TIMEOUT"): 1.0,
        labels("error", "BACKEND"): 1.0,
    }
    shown = rows(
        status_html(
            status(view(measured("requests", outcomes), measured("request_failures", failures)))
        )
    )
    assert shown["Requests by outcome"][1] == "ok 3"
    assert "cancelled 2, error BACKEND 1, timeout 1" in [row[1] for row in shown.values() if row]
    idle = dict.fromkeys(outcomes, 0.0)
    assert (
        rows(status_html(status(view(measured("requests", idle)))))["Requests by outcome"][1] == "0"
    )


def test_text_of_servers_is_escaped() -> None:
    shown = view(
        measured("requests", {(("outcome", EVIL), ("reason", EVIL)): 1.0}, model=EVIL, recent=EVIL),
        unavailable("itl", EVIL, EVIL, model=EVIL),
        sources=(SourceState(EVIL, False, None, None, EVIL, {EVIL: 1}, False),),
        models=(
            ModelInfo(EVIL, EVIL, EVIL, ready=False, reason=EVIL),
            ModelInfo("x", "1", excluded=EVIL),
        ),
    )
    plain, evil = (
        StatusPageParser(status_html(status(one)))
        for one in (view(measured("kv_utilization", 0.5), unavailable("itl", "none")), shown)
    )
    assert {tag for tag, _ in evil.tags} <= {tag for tag, _ in plain.tags} | {"p"}
    assert evil.scripts == plain.scripts
    assert not [attrs for _, attrs in evil.tags if any(name.startswith("on") for name in attrs)]
    assert EVIL in "".join(evil.titles)


def test_page_loads_nothing_external_and_has_a_content_security_policy() -> None:
    page = StatusPageParser(status_html(status(busy())))
    for kind, parts in (("script", page.scripts), ("style", page.styles)):
        [part] = parts
        digest = b64encode(sha256(part.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in CONTENT_SECURITY_POLICY
    outside = [attrs for _, attrs in page.tags if attrs.keys() & {"src", "style", "onclick"}]
    links = [attrs["href"] for _, attrs in page.tags if "href" in attrs]
    assert outside == []
    assert all(link and link.startswith("/") for link in links)


def test_reasons_are_at_the_top() -> None:
    down = SourceState("triton", False, None, None, "refused", {}, None)
    html = status_html(status(view(sources=(down,), models=())))
    assert '<strong class="bad">not ready</strong>' in html
    assert "source triton has not been scraped yet: refused" in html


def test_json_has_the_same_content() -> None:
    document = json.loads(status_json(status(busy())))
    assert {key: document[key] for key in ("tokenslo", "time", "ready")} == {
        "tokenslo": "1.2.3",
        "time": "2026-01-02T03:04:05Z",
        "ready": True,
    }
    assert document["sources"][1] == {
        "source": "triton/statistics",
        "up": False,
        "age_seconds": None,
        "read_seconds": None,
        "error": "answered 503",
        "errors": {"status": 3},
        "server_ready": None,
    }
    [llama, tokenizer] = document["models"]
    assert tokenizer["excluded"] == "not decoupled"
    assert tokenizer["signals"] == []
    assert llama["engine_stats_age_seconds"] == 0.25
    assert llama["signals"][0] == {
        "signal": "ttft",
        "metric": "llm_time_to_first_token_seconds",
        "unit": "s",
        "method": "triton_first_response",
        "quality": "estimate",
        "note": "whole milliseconds",
        "fix": "",
        "recent": "p50 ≈0.58 s",
        "samples": [{"labels": {}, "count": 10.0, "sum": 6.5}],
    }
    assert llama["signals"][4]["samples"] == [{"labels": {"state": "active"}, "value": 14.0}]
    [objective_] = document["objectives"]
    assert objective_["target"] == "99%"
    assert objective_["quality"] == "estimate"


def test_readiness_json_names_every_layer() -> None:
    good = {"ready": True, "reason": "", "version": ""}
    assert json.loads(readiness_json(readiness(view(models=()), 5))) == {
        "ready": True,
        "layers": [
            {"layer": "process", "name": "tokenslo", **good},
            {"layer": "source", "name": "triton", **good},
            {"layer": "server", "name": "triton", **good},
        ],
    }


def test_model_with_only_unavailable_signals_is_shown() -> None:
    html = status_html(status(view(unavailable("itl", "gone"), models=())))
    assert "Inter-token latency" in rows(html)
    assert any(title.startswith("llama") for title in StatusPageParser(html).titles)


def test_json_is_json_whatever_was_measured() -> None:
    shown = view(measured("kv_utilization", float("nan")))
    document = json.loads(status_json(status(shown)), parse_constant=lambda _: 1 / 0)
    assert document["models"][0]["signals"][0]["samples"] == [{"labels": {}, "value": None}]
