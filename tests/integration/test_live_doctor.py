"""The doctor on a real Triton and on a trtllm-serve that serves its records once."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path

from lab import trtllm_server
from lab.triton import Triton
from lab.trtllm_serve.settings import RELEASES

ROOT = Path(__file__).parents[2]
SLO = """\
apiVersion: tokenslo/v1
service: chat
owner: inference
selector: {{model: {model}}}
window: 28d
objectives:
  - {{name: first-token, indicator: ttft, threshold: 500ms, target: 95%}}
  - {{name: token-pace, indicator: itl, threshold: 50ms, target: 99%}}
"""


def doctor(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "tokenslo", "doctor", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def qualities(text: str, model: str) -> dict[str, tuple[str, str]]:
    [found] = [one for one in json.loads(text)["models"] if one["model"] == model]
    return {one["signal"]: (one["quality"], one["method"]) for one in found["signals"]}


def test_signals_of_each_kind_of_model(test_triton: Triton) -> None:
    code, text, errors = doctor(test_triton.url, test_triton.metrics, "--json")
    assert (code, errors) == (0, "")
    document = json.loads(text)
    assert [(one["setting"], one["what"]) for one in document["servers"]] == [
        ("triton", "Triton 2.51.0"),
        ("triton-metrics", "Triton's metrics"),
    ]
    vllm = qualities(text, "vllm_llm")
    assert (vllm["ttft"], vllm["itl"]) == (("exact", "vllm_histogram"),) * 2
    streaming = qualities(text, "streaming")
    assert streaming["ttft"] == ("unavailable", "")
    assert qualities(text, "first_response")["ttft"] == ("estimate", "triton_first_response")
    brought = {one["model"]: one["first_response"] for one in document["models"]}
    assert 'family: "nv_inference_first_response_histogram_ms"' in brought["streaming"]
    assert brought["vllm_llm"] is None


def test_whether_objectives_can_be_measured(test_triton: Triton, tmp_path: Path) -> None:
    urls = (test_triton.url, test_triton.metrics)
    slo = tmp_path / "slo.yaml"
    slo.write_text(SLO.format(model="vllm_llm"))
    code, text, errors = doctor(*urls, "--slo", str(slo))
    assert (code, errors) == (0, "")
    assert "chat/first-token on vllm_llm" in text
    slo.write_text(SLO.format(model="streaming"))
    code, text, errors = doctor(*urls, "--slo", str(slo))
    assert (code, errors) == (1, "")
    assert text.count("CANNOT BE MEASURED") == 2


def test_the_metrics_port_alone_and_a_port_that_is_not_http(test_triton: Triton) -> None:
    code, text, _ = doctor(test_triton.metrics.removesuffix("/metrics"))
    assert code == 0
    assert f"tokenslo exporter --triton-metrics {test_triton.metrics}\n" in text
    code, text, errors = doctor(f"http://{test_triton.grpc}")
    assert (code, text) == (2, "")
    assert errors.count("\n") == 1
    assert "answers, but is not a supported server" in errors


def test_doctor_consumes_no_iteration_records(tmp_path: Path) -> None:
    with trtllm_server.start(tmp_path / "serve", RELEASES["1.0"]) as server:
        request = json.dumps({"model": "tensorrt_llm", "prompt": "a b c", "max_tokens": 9})
        connection = http.client.HTTPConnection("127.0.0.1", server.ports[0], timeout=20)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", request, headers)
        assert connection.getresponse().read()
        connection.close()
        code, text, errors = doctor(server.url, "--json")
    assert (code, errors) == (0, "")
    found = qualities(text, "tensorrt_llm")
    assert found["itl"][0] == "estimate"
    assert found["sequences_active"][0] == "exact"
