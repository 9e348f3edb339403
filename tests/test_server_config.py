"""The generated settings for Triton, ready to paste."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from exporter.doctor.server_config import server_config
from slos.errors import InvalidFile
from slos.model import Objective, Service
from tests.service_example import objective, service

CHAT = """\
# What these SLO files need of Triton: slo.yaml (tokenslo 1.2.3)

# 1. Start tritonserver with this flag (Triton 2.52, container 24.11, or later).  Do not set
#    counter_latencies=false: it freezes all of Triton's request counters at 0.
--metrics-config histogram_latencies=true

# 2. Add this to config.pbtxt of llama and load it again.
#    Boundaries are whole milliseconds.  From the SLO files: 300, 800.
model_metrics {
  metric_control: [
    {
      metric_identifier: { family: "nv_inference_first_response_histogram_ms" }
      histogram_options: {
        buckets: [
          1, 5, 10, 20, 40, 60, 80, 100, 250, 300, 500, 750, 800, 1000, 2500, 5000, 7500,
          10000, 20000, 40000, 80000, 160000, 640000, 2560000
        ]
      }
    }
  ]
}
"""


def ttft(threshold: str) -> Objective:
    return replace(objective("ttft"), threshold=Decimal(threshold), line=7)


def test_thresholds_become_bucket_boundaries() -> None:
    chat = service(objective("availability"), ttft("0.8"), ttft("0.3"), ttft("1"))
    assert server_config([chat], "1.2.3") == CHAT


def edges(text: str) -> dict[str, str]:
    """Return "from the SLO files" by model."""
    stanzas = text.split("config.pbtxt of ")[1:]
    return {
        stanza.split(" and load")[0]: stanza.split("SLO files: ")[1].split(".")[0]
        if "SLO files: " in stanza
        else ""
        for stanza in stanzas
    }


def for_model(model: str, *thresholds: str) -> Service:
    selector = {"model": model} if model else {"cluster": "eu"}
    return service(*map(ttft, thresholds), selector=selector)


def test_each_model_gets_its_own_and_common_thresholds() -> None:
    files = [
        for_model("b", "0.2"),
        for_model("a", "0.3"),
        for_model("", "0.9"),
        for_model("a", "5"),
    ]
    text = server_config(files, "1.2.3")
    assert edges(text) == {
        "a": "300, 900",
        "b": "200, 900",
        "every other model that streams": "900",
    }
    assert [line[:4] for line in text.splitlines() if line[2:4] in ("1.", "2.", "3.", "4.")] == [
        "# 1.",
        "# 2.",
        "# 3.",
        "# 4.",
    ]


def test_selector_without_a_model_applies_to_every_model() -> None:
    assert edges(server_config([for_model("", "0.5")], "1.2.3")) == {"every model that streams": ""}


def test_nothing_is_needed_without_a_first_token_objective() -> None:
    assert server_config([service(objective("availability"))], "1.2.3") == (
        "# What these SLO files need of Triton: slo.yaml (tokenslo 1.2.3)\n"
        "# Nothing: no objective depends on a setting of the server.\n"
    )


def test_thresholds_below_a_millisecond_are_refused() -> None:
    with pytest.raises(InvalidFile) as failed:
        server_config([service(objective("itl"), ttft("0.0125"), ttft("0.0005"))], "1.2.3")
    assert str(failed.value).splitlines() == [
        "slo.yaml:7: objectives[1].threshold: 12.5ms is not a whole number of milliseconds, and "
        "Triton measures nothing finer. Fix: write 12ms or 13ms.",
        "slo.yaml:7: objectives[2].threshold: 0.5ms is not a whole number of milliseconds, and "
        "Triton measures nothing finer. Fix: write 1ms.",
    ]
