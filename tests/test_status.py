"""The status and the readiness as JSON."""

from __future__ import annotations

import json

from exporter.objectives.objective_status import evaluate
from exporter.samples import Labels
from exporter.store.view import View
from exporter.web.readiness import readiness
from exporter.web.status import Status
from exporter.web.status_json import readiness_json, status_json
from tests.service_example import objective, service
from tests.views import busy, measured, view


def status(shown: View) -> Status:
    objectives = evaluate([service(objective("ttft"))], shown)
    return Status("1.2.3", "2026-01-02T03:04:05Z", shown, readiness(shown, 5), objectives)


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
    assert objective_["threshold"] == 0.8


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


def test_json_is_json_whatever_was_measured() -> None:
    shown = view(measured("kv_utilization", float("nan")))
    document = json.loads(status_json(status(shown)), parse_constant=lambda _: 1 / 0)
    assert document["models"][0]["signals"][0]["samples"] == [{"labels": {}, "value": None}]


def test_json_has_tenants_one_by_one() -> None:
    def labels(tenant: str) -> Labels:
        return (("outcome", "ok"), ("phase", "complete"), ("tenant", tenant))

    streams = measured("streams", {labels(name): 2.0 for name in ("a", "b", "c")})
    document = json.loads(status_json(status(view(streams))))
    samples = document["models"][0]["signals"][0]["samples"]
    assert [one["labels"]["tenant"] for one in samples] == ["a", "b", "c"]
